"""Python's standard library as words, in windows of which none comes twice."""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from matrix_adagrad.datasets.python_text import library_sources
from matrix_adagrad.demos.gpt import windows

__all__ = ["Text", "batches", "library", "numbered", "split"]


class Text(NamedTuple):
    """Words as numbers: those to train on, and those of other files."""

    training: Tensor
    held_out: Tensor
    vocabulary: int


@functools.cache
def library(frequent: int) -> Text:
    """The standard library, with that many words."""
    return numbered(*split(library_sources()), frequent)


def split(files: list[str]) -> tuple[list[str], list[str]]:
    """The files to train on, and a tenth to hold out, in a random order that is always the same."""
    shuffled = list(files)
    random.Random(0).shuffle(shuffled)
    return [file for place, file in enumerate(shuffled) if place % 10], shuffled[::10]


def numbered(training: list[str], held_out: list[str], frequent: int) -> Text:
    """A number for each of the most frequent words, signs and blanks of the training files; others by character."""
    parts = [re.findall(r" ?\w+|\s+|[^\w\s]", "\n".join(files)) for files in (training, held_out)]
    kept = {piece for piece, _ in Counter(parts[0]).most_common(frequent)}
    tokens = [[token for piece in part for token in ([piece] if piece in kept else piece)] for part in parts]
    numbers = {token: number for number, token in enumerate(sorted(set().union(*tokens)))}
    seen, unseen = (torch.tensor([numbers[token] for token in part]) for part in tokens)
    return Text(seen, unseen, len(numbers))


def batches(training: Tensor, seed: int, *, steps: int, batch: int, context: int) -> Iterator[Tensor]:
    """The windows of the text in an order of the seed's own, the next ``batch`` at each step.

    Each takes up where another ends: no token is predicted twice.
    """
    starts = torch.arange(0, len(training) - context, context)
    if len(starts) < steps * batch:
        raise SystemExit(
            f"the standard library of this Python has {len(starts):,} windows of {context} words to train on, and "
            f"{steps:,} steps without repetition take {steps * batch:,}: use a Python that has all of its sources"
        )
    order = torch.randperm(len(starts), generator=torch.Generator().manual_seed(seed))
    for chosen in starts[order[: steps * batch]].split(batch):
        yield windows(training, chosen, context)

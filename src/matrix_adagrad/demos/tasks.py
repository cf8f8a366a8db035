"""The tasks of ``advise --demo``: MovieLens 100K, the paper's MLP, and a small character-level GPT."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from matrix_adagrad.advisor.task import Task
from matrix_adagrad.datasets.movielens import movielens as load_movielens
from matrix_adagrad.datasets.python_text import characters, python_text
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows

__all__ = ["Factors", "TransposedEmbedding", "lm", "mlp", "movielens", "seeded_generator", "shuffled_batches"]

FACTORS, RATINGS, DECAY, START = 20, 1024, 0.02, 0.1  # factorization: k, ratings per batch, λ, and N(0, 0.1²)
INPUTS, WIDTH, OUTPUTS, SAMPLES, SAMPLES_A_BATCH = 20, 20, 5, 640, 64  # of the stacked MLP, the paper's
CONTEXT, TEXTS = 64, 6  # of the character model: characters of a window, and windows a batch
HELD_OUT_BATCHES, HELD_OUT_TEXTS = 4, 24  # and of those that judge it


def movielens(transposed: bool = False, path: Path | None = None) -> Task:
    """Matrix factorization of MovieLens 100K, scored by the mean squared error on a tenth of the ratings.

    Args:
        transposed: store embeddings as columns instead of rows, which swaps the roles of row and column.
        path: your copy of the data; by default it is found or downloaded by `matrix_adagrad.datasets.movielens`.
    """
    ratings = load_movielens(path)
    known = (ratings.users, ratings.items, ratings.ratings.float())
    users, items = (int(index.max()) + 1 for index in known[:2])
    held_out, train = torch.randperm(len(known[2]), generator=seeded_generator(-1)).tensor_split([len(known[2]) // 10])
    trained = tuple(column[train] for column in known)
    return Task(
        lambda: Factors(users, items, FACTORS, transposed),
        _squares,
        lambda seed: shuffled_batches(seeded_generator(seed), RATINGS, *trained),
        held_out=[tuple(column[held_out] for column in known)],
        name="movielens-transposed" if transposed else "movielens",
    )


def mlp(depth: int = 15) -> Task:
    """The paper's stacked MLP, with tanh and Xavier weights. It fits noise, and is scored by its training loss.

    Args:
        depth: the number of layers with weights.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")

    def make_model() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise([INPUTS, *[WIDTH] * (depth - 1), OUTPUTS]):
            linear = nn.Linear(inputs, outputs)
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    def batches(seed: int) -> Iterator[tuple[Tensor, ...]]:
        random = seeded_generator(seed)
        x, y = (torch.randn(SAMPLES, size, generator=random) for size in (INPUTS, OUTPUTS))
        return shuffled_batches(random, SAMPLES_A_BATCH, x, y)

    return Task(make_model, lambda model, batch: functional.mse_loss(model(batch[0]), batch[1]), batches, name="mlp")


def lm() -> Task:
    """A GPT with two blocks on text that ships with Python, scored by its loss on the last tenth of it."""
    text = characters(python_text())
    train, held_out = text.tensor_split([len(text) * 9 // 10])
    vocabulary = int(text.max()) + 1

    def batches(seed: int) -> Iterator[Tensor]:
        random = seeded_generator(seed)
        while True:
            yield windows(train, torch.randint(len(train) - CONTEXT, (TEXTS,), generator=random), CONTEXT)

    starts = torch.linspace(0, len(held_out) - CONTEXT - 1, HELD_OUT_BATCHES * HELD_OUT_TEXTS).long()
    return Task(
        lambda: GPT(vocabulary, context=CONTEXT),
        next_character_loss,
        batches,
        held_out=[windows(held_out, some, CONTEXT) for some in starts.split(HELD_OUT_TEXTS)],
        name="lm",
    )


class TransposedEmbedding(nn.Module):
    """An embedding whose table is stored transposed: ``weight[:, i]`` is the embedding of i."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(rows.T.contiguous())

    def forward(self, indices: Tensor) -> Tensor:
        """The embeddings of the indices, like those of `nn.Embedding`."""
        return functional.embedding(indices, self.weight.T)


class Factors(nn.Module):
    """Two tables of k factors, for users and for items, initialized as N(0, 0.1²)."""

    def __init__(self, users: int, items: int, k: int, transposed: bool = False) -> None:
        super().__init__()
        self.users, self.items = (
            TransposedEmbedding(start) if transposed else nn.Embedding.from_pretrained(start, freeze=False)
            for start in (START * torch.randn(size, k) for size in (users, items))
        )

    def forward(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of the users, and of the items."""
        return self.users(users), self.items(items)


def seeded_generator(seed: int) -> torch.Generator:
    """A generator for the batches of a seed, independent of the one that initialized its model.

    Seeds -1, -2, … are for what all seeds share.
    """
    return torch.Generator().manual_seed(seed + 7_000_003)


def shuffled_batches(random: torch.Generator, size: int, *samples: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Endless batches of the samples, reshuffled at every epoch."""
    while True:
        for indices in torch.randperm(len(samples[0]), generator=random).split(size):
            yield tuple(tensor[indices] for tensor in samples)


def _squares(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """The mean squared error, plus λ/2 (‖u‖² + ‖v‖²) for each rating in training mode."""
    users, items, values = batch
    u, v = model(users, items)
    loss: Tensor = ((u * v).sum(1) - values).square().mean()
    if model.training:  # in eval mode, held-out ratings are scored by the error alone
        loss = loss + DECAY / 2 * (u.square().sum() + v.square().sum()) / len(values)
    return loss

"""Three tasks for the advisor: MovieLens 100K, the paper's stacked MLP, and a small character model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from matrix_adagrad.advisor.task import Task
from matrix_adagrad.experiments.gpt import GPT, next_character_loss, windows
from matrix_adagrad.experiments.mlp import INPUTS, OUTPUTS, SAMPLES, SETTINGS, WIDTH
from matrix_adagrad.experiments.text import characters, python_text

__all__ = ["Columns", "Factors", "epochs", "generator", "lm", "mlp", "movielens"]

FACTORS, RATINGS, DECAY, START = 20, 1024, 0.02, 0.1  # of the factorisation: k, a batch, λ, and N(0, 0.1²)
CONTEXT, TEXTS = 64, 6  # of the character model: characters of a window, and windows a batch
HELD_OUT_BATCHES, HELD_OUT_TEXTS = 4, 24  # and of those that judge it


def movielens(transposed: bool = False, path: Path | None = None) -> Task:
    """Matrix factorisation of MovieLens 100K, judged by the mean squared error on a tenth of the ratings.

    Args:
        transposed: whether an embedding is a column of its table instead of a row: row and column change places.
        path: where the ratings are; without it they are looked for as `matrix_adagrad.experiments.data.movielens` says.
    """
    from matrix_adagrad.experiments import data

    ratings = data.movielens(path)
    known = (ratings.users, ratings.items, ratings.ratings.float())
    users, items = (int(index.max()) + 1 for index in known[:2])
    held_out, train = torch.randperm(len(known[2]), generator=generator(-1)).tensor_split([len(known[2]) // 10])
    trained = tuple(one[train] for one in known)
    return Task(
        lambda: Factors(users, items, FACTORS, transposed),
        _squares,
        lambda seed: epochs(generator(seed), RATINGS, *trained),
        held_out=[tuple(one[held_out] for one in known)],
        name="movielens-transposed" if transposed else "movielens",
    )


def mlp(depth: int = 15) -> Task:
    """The paper's stacked MLP, as in setting A of `matrix_adagrad.experiments.mlp`: it fits noise, and the better the
    signal passes its layers, the more of it. Judged by the training loss.

    Args:
        depth: how many layers have weights.
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
        random = generator(seed)
        x, y = (torch.randn(SAMPLES, size, generator=random) for size in (INPUTS, OUTPUTS))
        return epochs(random, SETTINGS["A"].batch, x, y)

    return Task(make_model, lambda model, batch: functional.mse_loss(model(batch[0]), batch[1]), batches, name="mlp")


def lm() -> Task:
    """A GPT of two blocks on the text that ships with Python, judged by its loss on the last tenth of it."""
    text = characters(python_text())
    train, held_out = text.tensor_split([len(text) * 9 // 10])
    vocabulary = int(text.max()) + 1

    def batches(seed: int) -> Iterator[Tensor]:
        random = generator(seed)
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


class Columns(nn.Module):
    """An embedding whose table is stored by columns: ``weight[:, i]`` is the embedding of i."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(rows.T.contiguous())

    def forward(self, which: Tensor) -> Tensor:
        """One row for each of ``which``, as `nn.Embedding` gives them."""
        return functional.embedding(which, self.weight.T)


class Factors(nn.Module):
    """A table of k factors for the users and one for the items, which start as N(0, 0.1²)."""

    def __init__(self, users: int, items: int, k: int, transposed: bool = False) -> None:
        super().__init__()
        self.users, self.items = (
            Columns(start) if transposed else nn.Embedding.from_pretrained(start, freeze=False)
            for start in (START * torch.randn(size, k) for size in (users, items))
        )

    def forward(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of the users, and of the items."""
        return self.users(users), self.items(items)


def generator(seed: int) -> torch.Generator:
    """Random numbers for the batches of this seed, which are not those that its model was drawn from.

    The seed -1, and so on, is for what all seeds share.
    """
    return torch.Generator().manual_seed(seed + 7_000_003)


def epochs(random: torch.Generator, size: int, *samples: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Batches of the samples, without end, in a new order at every pass."""
    while True:
        for which in torch.randperm(len(samples[0]), generator=random).split(size):
            yield tuple(one[which] for one in samples)


def _squares(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """The mean squared error; in training mode with λ/2 (‖u‖² + ‖v‖²) for each rating, as the factorisation has it."""
    users, items, values = batch
    u, v = model(users, items)
    loss: Tensor = ((u * v).sum(1) - values).square().mean()
    if model.training:  # held-out ratings are judged in eval mode, by the error alone
        loss = loss + DECAY / 2 * (u.square().sum() + v.square().sum()) / len(values)
    return loss

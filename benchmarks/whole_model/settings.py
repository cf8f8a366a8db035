"""What is trained: a word-level GPT on text, and a recommender on ratings. No datum comes twice."""

from __future__ import annotations

import functools
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.library_text import Text, batches, library
from matrix_adagrad.datasets.movielens import Ratings, movielens
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows

__all__ = ["SETTINGS", "Gpt", "Recommender", "Setting"]


class Setting(ABC):
    """A model, the batches that it is trained on, and the data that it is judged on."""

    name: str
    steps: int
    tuning_runs: int
    seeds: range
    tuning_seed = 100
    loss_name = "held-out loss"

    @property
    def judged(self) -> tuple[int, ...]:
        """The steps after which a run is judged: each quarter of it."""
        return tuple(quarter * self.steps // 4 for quarter in (1, 2, 3, 4))

    @abstractmethod
    def make_model(self) -> nn.Module:
        """A new model."""

    @abstractmethod
    def batches(self, seed: int) -> Iterator[Tensor]:
        """The batches of a run, in the order of a seed."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The mean loss over a batch."""

    @abstractmethod
    def held_out(self, seed: int) -> Iterator[Tensor]:
        """The data that runs are judged on."""

    @abstractmethod
    def describe(self) -> str:
        """A sentence on model and data."""

    def judge(self, model: nn.Module, seed: int) -> float:
        """The mean loss over what is held out."""
        with torch.no_grad():
            return statistics.fmean(self.loss(model, batch).item() for batch in self.held_out(seed))

    def _parameters(self) -> str:
        return f"{sum(param.numel() for param in self.make_model().parameters()) / 1e6:.2f} M parameters"


class Gpt(Setting):
    """A GPT that reads words of Python's standard library. Whole files are held out."""

    name, steps, tuning_runs, seeds = "gpt", 1500, 6, range(5)
    context, width, heads, layers, batch, words, windows = 64, 128, 4, 2, 4, 6400, 256

    @functools.cached_property
    def text(self) -> Text:
        return library(self.words)

    def make_model(self) -> nn.Module:
        return GPT(self.text.vocabulary, context=self.context, width=self.width, heads=self.heads, layers=self.layers)

    def batches(self, seed: int) -> Iterator[Tensor]:
        return batches(self.text.training, seed, steps=self.steps, batch=self.batch, context=self.context)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return next_character_loss(model, batch)

    def held_out(self, seed: int) -> Iterator[Tensor]:  # noqa: ARG002
        starts = torch.linspace(0, len(self.text.held_out) - self.context - 1, self.windows).long()
        return (windows(self.text.held_out, part, self.context) for part in starts.split(64))

    def describe(self) -> str:
        return (
            f"A GPT of {self.layers} layers of width {self.width}, {self._parameters()}, untied head; "
            f"{self.steps:,} steps of {self.batch} × {self.context} words of the sources of Python's standard library: "
            f"{self.steps * self.batch * self.context:,} of {len(self.text.training):,}, none twice; "
            f"{self.text.vocabulary:,} words and characters; whole files are held out"
        )


class Network(nn.Module):
    """A rating from the embeddings of a person and a film, by a network of three layers."""

    def __init__(self, people: int, films: int, width: int) -> None:
        super().__init__()
        self.people, self.films = nn.Embedding(people, width), nn.Embedding(films, width)
        self.layers = nn.Sequential(
            nn.Linear(2 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 2 * width), nn.ReLU()
        )
        self.rating = nn.Linear(2 * width, 1)
        for table in (self.people, self.films):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, people: Tensor, films: Tensor) -> Tensor:
        """Predicted ratings, less the middle of the scale."""
        both = torch.cat([self.people(people), self.films(films)], 1)
        predicted: Tensor = self.rating(self.layers(both)).squeeze(1)
        return predicted


class Recommender(Setting):
    """Two tables and a small network predict MovieLens' ratings, in one pass over nine tenths of them."""

    name, steps, tuning_runs, seeds = "recommender", 2800, 8, range(5)
    width, batch = 32, 32
    loss_name = "held-out squared error"

    @functools.cached_property
    def data(self) -> Ratings:
        return movielens()

    def make_model(self) -> nn.Module:
        return Network(int(self.data.users.max()) + 1, int(self.data.items.max()) + 1, self.width)

    def _order(self, seed: int) -> Tensor:
        return torch.randperm(len(self.data.ratings), generator=torch.Generator().manual_seed(seed))

    def batches(self, seed: int) -> Iterator[Tensor]:
        return iter(self._order(seed)[: self.steps * self.batch].split(self.batch))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        predicted = model(self.data.users[batch], self.data.items[batch])
        return functional.mse_loss(predicted, self.data.ratings[batch].float() - 3)

    def held_out(self, seed: int) -> Iterator[Tensor]:
        return iter(self._order(seed)[self.steps * self.batch :].split(2080))

    def describe(self) -> str:
        ratings = self.steps * self.batch
        return (
            f"Tables of people and films of width {self.width} and a network of three layers, {self._parameters()}; "
            f"MovieLens 100K, {self.steps:,} steps of {self.batch} ratings: one pass over {ratings:,}, drawn anew for "
            f"every seed; the other {len(self.data.ratings) - ratings:,} are held out"
        )


SETTINGS: dict[str, Setting] = {setting.name: setting for setting in (Gpt(), Recommender())}

"""Tasks that the advisor's rules were made with: the demos of `matrix_adagrad.demos.tasks`, more small models, and
planted problems whose best geometry is known. ``TASKS`` lists them by name, with the number of steps of a run.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from matrix_adagrad.advisor.task import Task
from matrix_adagrad.datasets.python_text import python_text
from matrix_adagrad.demos.tasks import lm, mlp, movielens, seeded_generator, shuffled_batches

__all__ = ["TASKS"]

BATCH = 64  # samples, where nothing else is said
WORDS, DIMENSION, WINDOW, NEGATIVES, PAIRS, HELD_OUT_PAIRS = 2500, 32, 3, 5, 256, 8192  # of skip-gram
FEATURES, CLASSES, ACTIVE = 1000, 15, 20  # of the softmax regression: a sample has about so many active features
SIZE, HELD_OUT = 64, 1024  # of a planted matrix, and samples

Pair = tuple[Tensor, ...]


def digits_mlp() -> Task:
    """scikit-learn's digits with one hidden layer, judged by the training loss."""
    return _digits("digits-mlp", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))


def digits_cnn() -> Task:
    """scikit-learn's digits with two convolutions, judged by the training loss."""
    return _digits(
        "digits-cnn",
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)),
        ),
    )


def _digits(name: str, make_model: Callable[[], nn.Module]) -> Task:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16
    labels = torch.from_numpy(digits.target).long()
    return Task(
        make_model,
        _cross_entropy,
        lambda seed: shuffled_batches(seeded_generator(seed), BATCH, images, labels),
        name=name,
    )


def _cross_entropy(model: nn.Module, batch: Pair) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


class SkipGram(nn.Module):
    """One vector for each word, and another for the word as a neighbour."""

    def __init__(self, words: int, dimension: int) -> None:
        super().__init__()
        self.words, self.neighbours = (
            nn.Embedding.from_pretrained(torch.randn(words, dimension) / dimension, freeze=False) for _ in range(2)
        )

    def forward(self, words: Tensor, neighbours: Tensor) -> Tensor:
        """The logits of each word's neighbours: (words, neighbours)."""
        return torch.einsum("pd,pnd->pn", self.words(words), self.neighbours(neighbours))


def skip_gram() -> Task:
    """Word vectors by negative sampling on the text that ships with Python, judged on its last tenth.

    Frequent words often have large gradients, rare words seldom. Each row is a word, so rows need separate scales.
    """
    spoken = re.findall("[a-z]+", python_text().lower())
    counts = collections.Counter(spoken).most_common(WORDS)
    numbers = {word: number for number, (word, _) in enumerate(counts)}
    text = torch.tensor([numbers[word] for word in spoken if word in numbers])
    unigrams = torch.tensor([float(count) for _, count in counts]).pow(0.75)
    train, held_out = (_neighbours(part) for part in text.tensor_split([len(text) * 9 // 10]))

    def with_negatives(pairs: Pair, random: torch.Generator) -> Pair:
        words, neighbours = pairs
        negatives = torch.multinomial(unigrams, len(words) * NEGATIVES, replacement=True, generator=random)
        return words, torch.cat([neighbours[:, None], negatives.view(-1, NEGATIVES)], 1)

    def batches(seed: int) -> Iterator[Pair]:
        random = seeded_generator(seed)
        for pairs in shuffled_batches(random, PAIRS, *train):
            yield with_negatives(pairs, random)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        logits = model(*batch)
        true = functional.one_hot(torch.zeros(len(logits), dtype=torch.long), 1 + NEGATIVES).to(logits.dtype)
        return functional.binary_cross_entropy_with_logits(logits, true, reduction="sum") / len(logits)

    judged = next(shuffled_batches(seeded_generator(-1), HELD_OUT_PAIRS, *held_out))
    fixed = [with_negatives(judged, seeded_generator(-2))]
    return Task(lambda: SkipGram(len(counts), DIMENSION), loss, batches, held_out=fixed, name="skip-gram")


def _neighbours(text: Tensor) -> Pair:
    """All pairs of words that are at most `WINDOW` places apart."""
    sides = [(text[:-apart], text[apart:]) for apart in range(1, WINDOW + 1)]
    words, neighbours = zip(*sides, *((right, left) for left, right in sides), strict=True)
    return torch.cat(words), torch.cat(neighbours)


def softmax_sparse() -> Task:
    """Convex softmax regression on sparse features: feature j is active with frequency about 1/j, like words in a text.

    Judged on the stream of samples, none of which repeats. A feature's weights are a column: one scale per column.
    """
    often = 1 / torch.arange(1, FEATURES + 1)
    often = (often * ACTIVE / often.sum()).clamp_(max=1)
    planted = 2 * torch.randn(FEATURES, CLASSES, generator=seeded_generator(-1))

    def make_model() -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        nn.init.zeros_(model.weight)  # as is usual for a convex problem
        nn.init.zeros_(model.bias)
        return model

    def batches(seed: int) -> Iterator[Pair]:
        random = seeded_generator(seed)
        while True:
            x = torch.bernoulli(often.expand(BATCH, -1), generator=random)
            yield x, torch.multinomial((x @ planted).softmax(1), 1, generator=random).flatten()

    return Task(make_model, _cross_entropy, batches, name="softmax-sparse")


def planted_row() -> Task:
    """Least squares where the noise of the targets, and so the gradients, grow over the rows, from 0.1 to 30.

    Row should win: a noisy row needs small steps, a quiet one can take large ones, and entries of a row are alike.
    """
    return _planted("planted-row", noise=torch.logspace(-1, 1.5, SIZE), scales=torch.ones(SIZE))


def planted_column() -> Task:
    """Least squares where the scale of the inputs, and so the gradients, grow over the columns, from 0.1 to 10.

    Column should win: the weights of a small input need large steps, and entries of a column are alike.
    """
    return _planted("planted-column", noise=torch.full((SIZE,), 0.5), scales=torch.logspace(-1, 1, SIZE))


def planted_none() -> Task:
    """Least squares with white inputs and noise. All entries are alike, so one scale for the whole matrix is enough."""
    return _planted("planted-none", noise=torch.full((SIZE,), 0.5), scales=torch.ones(SIZE))


def _planted(name: str, noise: Tensor, scales: Tensor) -> Task:
    """The targets are W x + noise, where all inputs contribute equally; judged without the noise."""
    planted = torch.randn(SIZE, SIZE, generator=seeded_generator(-1)) / scales / SIZE**0.5

    def draw(samples: int, noise: Tensor, random: torch.Generator) -> Pair:
        x = scales * torch.randn(samples, SIZE, generator=random)
        return x, x @ planted.T + noise * torch.randn(samples, SIZE, generator=random)

    def batches(seed: int) -> Iterator[Pair]:
        random = seeded_generator(seed)
        return (draw(BATCH, noise, random) for _ in itertools.count())

    def make_model() -> nn.Module:
        model = nn.Linear(SIZE, SIZE, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return functional.mse_loss(model(batch[0]), batch[1])

    held_out = [draw(HELD_OUT, torch.zeros(SIZE), seeded_generator(-2))]
    return Task(make_model, loss, batches, held_out=held_out, name=name)


TASKS: dict[str, tuple[Callable[[], Task], int]] = {
    "movielens": (movielens, 200),
    "movielens-transposed": (functools.partial(movielens, transposed=True), 200),
    "mlp": (mlp, 160),
    "gpt": (lm, 64),
    "digits-mlp": (digits_mlp, 240),
    "digits-cnn": (digits_cnn, 160),
    "skip-gram": (skip_gram, 120),
    "softmax-sparse": (softmax_sparse, 200),
    "planted-row": (planted_row, 200),
    "planted-column": (planted_column, 200),
    "planted-none": (planted_none, 200),
}

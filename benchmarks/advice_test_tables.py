"""Tasks that test the advisor and shaped none of its rules: tables, bags and linear models.

They are made of random numbers, or of the text that ships with Python. ``TASKS`` lists them by name, with the number of
steps of a training run.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from matrix_adagrad.advisor.task import Task
from matrix_adagrad.datasets.python_text import library_sources
from matrix_adagrad.demos.tasks import seeded_generator, shuffled_batches

__all__ = ["TASKS", "Batch", "fixed", "fresh"]

BATCH, HELD_OUT = 64, 2048  # samples of a batch, and of those that judge a run

Batch = tuple[Tensor, ...]
Draw = Callable[[int, torch.Generator], Batch]


def fresh(draw: Draw, batch: int = BATCH) -> tuple[Callable[[int], Iterator[Batch]], list[Batch]]:
    """Batches that never repeat, and held-out ones."""

    def batches(seed: int) -> Iterator[Batch]:
        random = seeded_generator(seed)
        return (draw(batch, random) for _ in itertools.count())

    return batches, [draw(HELD_OUT, seeded_generator(-2))]


def fixed(draw: Draw, samples: int, batch: int = BATCH) -> tuple[Callable[[int], Iterator[Batch]], list[Batch]]:
    """Batches of one sample of this size, in an order of the seed's own, and held-out ones."""
    data = draw(samples, seeded_generator(-3))
    return lambda seed: shuffled_batches(seeded_generator(seed), batch, *data), [draw(HELD_OUT, seeded_generator(-2))]


def power_law(count: int, power: float) -> Tensor:
    """Frequencies that fall like a power of the rank."""
    return torch.arange(1, count + 1).float().pow(-power)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Of the model's logits, against the labels."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def squares(model: nn.Module, batch: Batch) -> Tensor:
    """The mean squared error; the target comes last."""
    return functional.mse_loss(model(*batch[:-1]), batch[-1])


def binary(model: nn.Module, batch: Batch) -> Tensor:
    """The logistic loss; the target comes last."""
    return functional.binary_cross_entropy_with_logits(model(*batch[:-1]), batch[-1])


class Bag(nn.Module):
    """The mean of the items' vectors, and a linear head."""

    def __init__(self, items: int, dimension: int, classes: int) -> None:
        super().__init__()
        self.items, self.head = nn.EmbeddingBag(items, dimension, mode="mean"), nn.Linear(dimension, classes)

    def forward(self, bags: Tensor) -> Tensor:
        """The logits of each bag."""
        logits: Tensor = self.head(self.items(bags))
        return logits


def bags() -> Task:
    """Bags of 12 words with Zipf's frequencies; each word votes for some of 10 topics."""
    votes = 1.5 * torch.randn(1500, 10, generator=seeded_generator(-1))
    often = power_law(1500, 1.0)

    def draw(samples: int, random: torch.Generator) -> Batch:
        words = torch.multinomial(often, samples * 12, replacement=True, generator=random).view(samples, 12)
        return words, torch.multinomial(votes[words].sum(1).softmax(1), 1, generator=random).flatten()

    batches, held_out = fresh(draw)
    return Task(lambda: Bag(1500, 16, 10), cross_entropy, batches, held_out, name="bags")


def which_module() -> Task:
    """Which of 16 modules of the standard library a line comes from, by the hashes of its trigrams."""
    long = sorted(library_sources(), key=len)[-40::2][:16]
    lines = [
        (line.strip(), label)
        for label, source in enumerate(long)
        for line in source.splitlines()
        if len(line.strip()) >= 24
    ]
    grams = torch.tensor([[_hashed(line[3 * i : 3 * i + 3], 2048) for i in range(8)] for line, _ in lines])
    labels = torch.tensor([label for _, label in lines])
    order = torch.randperm(len(labels), generator=seeded_generator(-1))
    held_out, train = order.tensor_split([len(order) // 8])
    return Task(
        lambda: Bag(2048, 24, 16),
        cross_entropy,
        lambda seed: shuffled_batches(seeded_generator(seed), BATCH, grams[train], labels[train]),
        [(grams[held_out], labels[held_out])],
        name="which-module",
    )


def _hashed(text: str, buckets: int) -> int:
    return functools.reduce(lambda code, character: (31 * code + ord(character)) % 1_000_003, text, 7) % buckets


class Product(nn.Module):
    """The sum over k of the product of one vector from each table."""

    def __init__(self, sizes: tuple[int, ...], k: int, start: float) -> None:
        super().__init__()
        tables = (nn.Embedding.from_pretrained(start * torch.randn(size, k), freeze=False) for size in sizes)
        self.tables = nn.ModuleList(tables)

    def forward(self, indices: Tensor) -> Tensor:
        """One number for each row of indices."""
        vectors = [table(column) for table, column in zip(self.tables, indices.unbind(1), strict=True)]
        values: Tensor = functools.reduce(torch.mul, vectors).sum(1)
        return values


def _products(
    name: str, sizes: tuple[int, ...], powers: tuple[float, ...], k: int, noise: float, size: float, start: float
) -> Task:
    """Entries of a low-rank array, drawn with power laws over each axis, with noise."""
    random = seeded_generator(-1)
    true = [size * torch.randn(count, k, generator=random) for count in sizes]

    def draw(samples: int, random: torch.Generator) -> Batch:
        indices = [
            torch.multinomial(power_law(count, power), samples, replacement=True, generator=random)
            for count, power in zip(sizes, powers, strict=True)
        ]
        values = functools.reduce(torch.mul, [own[i] for own, i in zip(true, indices, strict=True)]).sum(1)
        return torch.stack(indices, 1), values + noise * torch.randn(samples, generator=random)

    batches, held_out = fresh(draw, 256)
    return Task(lambda: Product(sizes, k, start), squares, batches, held_out, name=name)


def three_way() -> Task:
    """A three-way array of rank 6, whose axes have different power laws."""
    return _products("three-way", (120, 60, 30), (1.0, 0.5, 0.0), k=6, noise=0.3, size=0.8, start=0.5)


def noise_ratings() -> Task:
    """Ratings that are noise and nothing else: there is nothing to learn."""
    return _products("noise-ratings", (300, 300), (0.7, 0.7), k=8, noise=1.0, size=0.0, start=0.05)


class Graph(nn.Module):
    """DistMult: the score of (head, relation, tail) is the sum of the product of their vectors."""

    def __init__(self, entities: int, relations: int, k: int) -> None:
        super().__init__()
        self.entities, self.relations = nn.Embedding(entities, k), nn.Embedding(relations, k)
        nn.init.normal_(self.entities.weight, std=0.3)

    def forward(self, triples: Tensor) -> Tensor:
        """The logit of each triple."""
        head, relation, tail = triples.unbind(1)
        logits: Tensor = (self.entities(head) * self.relations(relation) * self.entities(tail)).sum(1)
        return logits


def knowledge_graph() -> Task:
    """True and false triples of a planted graph with popular entities, by logistic loss."""
    random, often = seeded_generator(-1), power_law(80, 0.8)
    entities, relations = torch.randn(80, 8, generator=random), torch.randn(6, 8, generator=random)

    def draw(samples: int, random: torch.Generator) -> Batch:
        heads, tails = torch.multinomial(often, 2 * samples, replacement=True, generator=random).view(2, samples)
        kinds = torch.randint(6, (samples,), generator=random)
        logits = (entities[heads] * relations[kinds] * entities[tails]).sum(1)
        return torch.stack([heads, kinds, tails], 1), torch.bernoulli(logits.sigmoid(), generator=random)

    batches, held_out = fresh(draw, 256)
    return Task(lambda: Graph(80, 6, 16), binary, batches, held_out, name="knowledge-graph")


def _zero_linear(inputs: int, outputs: int) -> nn.Module:
    model = nn.Linear(inputs, outputs)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def rare_labels() -> Task:
    """Many labels at once, some of them rare, from sparse features with a power law."""
    often = (12 * power_law(300, 0.9) / power_law(300, 0.9).sum()).clamp(max=1)
    random = seeded_generator(-1)
    planted, offsets = torch.randn(300, 40, generator=random), torch.linspace(0.0, -5.0, 40)

    def draw(samples: int, random: torch.Generator) -> Batch:
        x = torch.bernoulli(often.expand(samples, -1), generator=random)
        return x, torch.bernoulli((x @ planted + offsets).sigmoid(), generator=random)

    batches, held_out = fresh(draw)
    return Task(lambda: _zero_linear(300, 40), binary, batches, held_out, name="rare-labels")


def product_scales() -> Task:
    """Least squares whose gradients are as large as a scale of the row times one of the column, in random order."""
    random = seeded_generator(-1)
    inputs, noise = (torch.logspace(-1, 1, 48)[torch.randperm(48, generator=random)] for _ in range(2))
    planted = noise[:, None] * torch.randn(48, 48, generator=random) / inputs / 48**0.5

    def draw(samples: int, random: torch.Generator) -> Batch:
        x = inputs * torch.randn(samples, 48, generator=random)
        return x, (x @ planted.T + noise * torch.randn(samples, 48, generator=random)) / noise.square().mean().sqrt()

    batches, held_out = fresh(draw)
    return Task(lambda: _zero_linear(48, 48), squares, batches, held_out, name="product-scales")


def auto_rec() -> Task:
    """A shallow autoencoder of sparse purchases, with popular items and 12 tastes."""
    often, random = power_law(300, 0.7), seeded_generator(-1)
    tastes = (often.log() + 1.5 * torch.randn(12, 300, generator=random)).softmax(1)

    def draw(samples: int, random: torch.Generator) -> Batch:
        mixed = tastes[torch.randint(12, (samples,), generator=random)]
        bought = torch.multinomial(mixed, 16, generator=random)
        shown, hidden = (torch.zeros(samples, 300).scatter_(1, part, 1.0) for part in bought.split(8, 1))
        return shown, hidden / 8

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    batches, held_out = fresh(draw)
    make = lambda: nn.Sequential(nn.Linear(300, 24), nn.Tanh(), nn.Linear(24, 300))  # noqa: E731
    return Task(make, loss, batches, held_out, name="auto-rec")


TASKS: dict[str, tuple[Callable[[], Task], int]] = {
    "bags": (bags, 160),
    "which-module": (which_module, 160),
    "three-way": (three_way, 200),
    "noise-ratings": (noise_ratings, 96),
    "knowledge-graph": (knowledge_graph, 200),
    "rare-labels": (rare_labels, 160),
    "product-scales": (product_scales, 240),
    "auto-rec": (auto_rec, 120),
}

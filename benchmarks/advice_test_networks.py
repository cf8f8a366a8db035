"""Tasks that test the advisor and shaped none of its rules: networks with hidden layers.

They are made of random numbers, or of the text that ships with Python. ``TASKS`` lists them by name, with the number of
steps of a training run.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.advice_test_tables import Batch, binary, cross_entropy, fixed, fresh, power_law, squares
from matrix_adagrad.advisor.task import Task
from matrix_adagrad.datasets.python_text import characters, python_text
from matrix_adagrad.demos.tasks import seeded_generator, shuffled_batches

__all__ = ["TASKS"]


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of these widths, with activations between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def teacher() -> Task:
    """A network that imitates another one without noise: a long run, whose loss goes to zero."""
    torch.manual_seed(0)
    imitated = mlp(16, 24, 4, activation=nn.Tanh).requires_grad_(False)

    def draw(samples: int, random: torch.Generator) -> Batch:
        x = torch.randn(samples, 16, generator=random)
        return x, 3 * imitated(x)

    batches, held_out = fresh(draw)
    return Task(lambda: mlp(16, 48, 4, activation=nn.Tanh), squares, batches, held_out, name="teacher")


def memorize() -> Task:
    """256 samples of 8 overlapping classes, learned by heart: judged by the training loss, which goes to zero."""
    centres = torch.randn(8, 24, generator=seeded_generator(-1))

    def draw(samples: int, random: torch.Generator) -> Batch:
        labels = torch.randint(8, (samples,), generator=random)
        return centres[labels] + 1.5 * torch.randn(samples, 24, generator=random), labels

    return Task(lambda: mlp(24, 64, 8), cross_entropy, fixed(draw, 256)[0], name="memorize")


def random_labels() -> Task:
    """512 samples with random labels, judged on others: there is nothing to learn."""

    def draw(samples: int, random: torch.Generator) -> Batch:
        return torch.randn(samples, 20, generator=random), torch.randint(10, (samples,), generator=random)

    def make_model() -> nn.Module:
        model = mlp(20, 48, 10)
        for param in model[-1].parameters():
            nn.init.zeros_(param)
        return model

    return Task(make_model, cross_entropy, *fixed(draw, 512), name="random-labels")


def overfit() -> Task:
    """200 noisy samples of a linear rule, judged on others: long runs with high rates end worse than shorter ones."""
    rule = torch.randn(30, 3, generator=seeded_generator(-1)) / 30**0.5

    def draw(samples: int, random: torch.Generator) -> Batch:
        x = torch.randn(samples, 30, generator=random)
        return x, x @ rule + 0.7 * torch.randn(samples, 3, generator=random)

    return Task(lambda: mlp(30, 64, 3), squares, *fixed(draw, 200), name="overfit")


def heavy_tails() -> Task:
    """A regression on columns of very different units and heavy tails, as in raw tables, with layer norms inside."""
    units = torch.logspace(-2, 1, 20)[torch.randperm(20, generator=seeded_generator(-1))]
    rule = torch.randn(20, 8, generator=seeded_generator(-4)) / 20**0.5

    def draw(samples: int, random: torch.Generator) -> Batch:
        z = torch.randn(samples, 20, generator=random)
        y = torch.sin(2 * z @ rule).sum(1, keepdim=True) + 0.3 * torch.randn(samples, 1, generator=random)
        return units * z.sign() * z.abs().expm1(), y

    def make_model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(20, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    return Task(make_model, squares, *fresh(draw), name="heavy-tails")


def picture() -> Task:
    """A network from coordinates to the colour of a picture: judged by the training loss of a long run."""
    random = seeded_generator(-1)
    waves, colours = 6 * torch.randn(2, 12, generator=random), torch.randn(12, 3, generator=random) / 2

    def draw(samples: int, random: torch.Generator) -> Batch:
        at = 2 * torch.rand(samples, 2, generator=random) - 1
        return at, torch.sin(at @ waves) @ colours

    return Task(lambda: mlp(2, 48, 48, 48, 3), squares, fresh(draw)[0], name="picture")


def stripes() -> Task:
    """Which of 6 directions the stripes of a noisy image have, by two convolutions."""
    angles = torch.arange(6) * torch.pi / 6
    y, x = torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij")

    def draw(samples: int, random: torch.Generator) -> Batch:
        labels = torch.randint(6, (samples,), generator=random)
        along = x * angles[labels].cos()[:, None, None] + y * angles[labels].sin()[:, None, None]
        phase = 6.3 * torch.rand(samples, 1, 1, generator=random)
        return (torch.sin(1.6 * along + phase) + torch.randn(samples, 10, 10, generator=random))[:, None], labels

    def make_model() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6)),
        )

    batches, held_out = fresh(draw, 48)
    return Task(make_model, cross_entropy, batches, [tuple(part[:1024] for part in held_out[0])], name="stripes")


class Towers(nn.Module):
    """A user's vector and an item's vector, each through a network of its own; the logit is their product."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, 16), nn.Embedding(items, 16)
        self.user_tower, self.item_tower = mlp(16, 32, 16), mlp(16, 32, 16)

    def forward(self, pairs: Tensor) -> Tensor:
        """The logit of each pair."""
        users, items = pairs.unbind(1)
        logits: Tensor = (self.user_tower(self.users(users)) * self.item_tower(self.items(items))).sum(1)
        return logits


def two_towers() -> Task:
    """Who clicks on what: users and items with power laws, and clusters of tastes."""
    random = seeded_generator(-1)
    tastes = 2 * torch.randn(10, 10, generator=random)
    of_users, of_items = (torch.randint(10, (count,), generator=random) for count in (150, 100))

    def draw(samples: int, random: torch.Generator) -> Batch:
        users, items = (
            torch.multinomial(power_law(count, 0.8), samples, replacement=True, generator=random)
            for count in (150, 100)
        )
        liked = tastes[of_users[users], of_items[items]].sigmoid()
        return torch.stack([users, items], 1), torch.bernoulli(liked, generator=random)

    return Task(lambda: Towers(150, 100), binary, *fresh(draw, 128), name="two-towers")


class WordModel(nn.Module):
    """The next word from the vectors of the last three, by a network with one hidden layer."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.hidden, self.head = nn.Embedding(words, 16), nn.Linear(48, 48), nn.Linear(48, words)

    def forward(self, context: Tensor) -> Tensor:
        """The logits of the next word."""
        logits: Tensor = self.head(torch.tanh(self.hidden(self.words(context).flatten(1))))
        return logits


def _words(name: str, schedule: Callable[[Optimizer, int], LambdaLR] | None = None) -> Task:
    spoken = re.findall(r"[a-z]+|[.,:;()=]", python_text().lower())
    numbers = {word: i for i, (word, _) in enumerate(collections.Counter(spoken).most_common(600))}
    text = torch.tensor([numbers[word] for word in spoken if word in numbers])
    samples = text.unfold(0, 4, 1)
    train, held_out = samples.tensor_split([len(samples) * 9 // 10])
    judged = held_out[:: max(1, len(held_out) // 2048)]

    def batches(seed: int) -> Iterator[Batch]:
        return shuffled_batches(seeded_generator(seed), 64, train[:, :3], train[:, 3])

    make = lambda: WordModel(len(numbers))  # noqa: E731
    return Task(make, cross_entropy, batches, [(judged[:, :3], judged[:, 3])], name=name, schedule=schedule)


def words() -> Task:
    """The next word of the text that ships with Python."""
    return _words("words")


def words_scheduled() -> Task:
    """The same with a learning rate that falls to zero over the run."""
    return _words("words-scheduled", lambda optimizer, steps: LambdaLR(optimizer, lambda step: 1 - step / steps))


class Recurrent(nn.Module):
    """A GRU over characters."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters, self.gru = nn.Embedding(characters, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, characters)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of each next character: (samples, characters, time)."""
        logits: Tensor = self.head(self.gru(self.characters(text))[0]).mT
        return logits


def recurrent() -> Task:
    """The next character of the text that ships with Python, by a GRU over 16 characters."""
    text = characters(python_text())
    samples = text[: len(text) // 17 * 17].view(-1, 17)
    train, held_out = samples.tensor_split([len(samples) * 9 // 10])
    judged = held_out[:: max(1, len(held_out) // 256)]
    count = int(text.max()) + 1
    return Task(
        lambda: Recurrent(count),
        cross_entropy,
        lambda seed: shuffled_batches(seeded_generator(seed), 24, train[:, :-1], train[:, 1:]),
        [(judged[:, :-1], judged[:, 1:])],
        name="recurrent",
    )


class Attention(nn.Module):
    """One layer of attention with two heads, and one hidden layer."""

    def __init__(self, tokens: int, length: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.mlp, self.head = nn.LayerNorm(width), mlp(width, 64, width), nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the answer, read at the last token."""
        x = self.tokens(tokens) + self.positions
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        last = self.norm(x[:, -1])
        logits: Tensor = self.head(last + self.mlp(last))
        return logits


def most_frequent() -> Task:
    """Which of 12 letters comes most often among 16, with unequal frequencies, by one layer of attention."""
    often = power_law(12, 0.5)

    def draw(samples: int, random: torch.Generator) -> Batch:
        letters = torch.multinomial(often, samples * 16, replacement=True, generator=random).view(samples, 16)
        return letters, functional.one_hot(letters, 12).sum(1).argmax(1)

    return Task(lambda: Attention(12, 16), cross_entropy, *fresh(draw, 48), name="most-frequent")


TASKS: dict[str, tuple[Callable[[], Task], int]] = {
    "teacher": (teacher, 320),
    "memorize": (memorize, 320),
    "random-labels": (random_labels, 128),
    "overfit": (overfit, 160),
    "heavy-tails": (heavy_tails, 160),
    "picture": (picture, 240),
    "stripes": (stripes, 96),
    "two-towers": (two_towers, 160),
    "words": (words, 128),
    "words-scheduled": (words_scheduled, 128),
    "recurrent": (recurrent, 64),
    "most-frequent": (most_frequent, 96),
}

"""Synthetic clicks for recommenders: ids that follow a power law, and a planted model that says what can be learned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

__all__ = ["ClickBatch", "Clicks", "auc"]

_KINDS, _FACTORS = 8191, 4  # of ids: ids of one kind have the same effect; the kinds are no table that fills memory
_DENSE, _LINEAR, _PAIRS, _BIAS = 0.7, 1.0, 0.7, -1.0  # standard deviations of the parts of the log-odds, and their mean


@dataclass(frozen=True, eq=False)
class ClickBatch:
    """Examples, with the ids of all tables one after another: table by table, and in each example by example.

    Attributes:
        dense: numbers of each example, standard normal, of shape (examples, features).
        index: the ids, as int64.
        offsets: where the bag of each table and example starts in ``index``, and where the last one ends.
        clicked: 1.0 or 0.0 for each example.
        odds: the planted log-odds of a click. No model ranks better, so ``auc(odds, clicked)`` is a ceiling.
    """

    dense: Tensor
    index: Tensor
    offsets: Tensor
    clicked: Tensor
    odds: Tensor


class Clicks:
    r"""A stream of clicks, the same for everyone with the same seed.

    The id of rank k in a table has a probability of about :math:`k^{-s}`, and ranks are scattered over the table. A
    click depends on the dense features, on each id alone, and on pairs of tables through products of hidden factors.
    Everything about an id is computed, so that large tables take no memory here.

    Args:
        rows: the number of rows of each table.
        ids: the most ids in a bag, of all tables or of each. With 1, bags have exactly one; otherwise, 0 to ``ids``.
        exponent: the power s of the power law.
        dense: the number of dense features.
        seed: for the planted model and the order of ids.

    Example:
        >>> from matrix_adagrad.datasets.clicks import Clicks, auc
        >>> clicks = Clicks([1000, 50], ids=[1, 4], dense=3)
        >>> batch = next(clicks.batches(4096))
        >>> batch.dense.shape, batch.offsets.shape, len(batch.index) == batch.offsets[-1]
        (torch.Size([4096, 3]), torch.Size([8193]), tensor(True))
        >>> 0.75 < auc(batch.odds, batch.clicked) < 0.85
        True
    """

    def __init__(
        self,
        rows: Sequence[int],
        *,
        ids: int | Sequence[int] = 1,
        exponent: float = 1.2,
        dense: int = 13,
        seed: int = 0,
    ) -> None:
        ids = [ids] * len(rows) if isinstance(ids, int) else list(ids)
        if not rows or not all(1 <= n < 1 << 31 for n in rows):
            raise ValueError(f"rows must be one number from 1 to 2³¹ − 1 for each table, got {list(rows)}")
        if len(ids) != len(rows) or min(ids) < 1:
            raise ValueError(f"ids must be at least 1, one number or {len(rows)} of them, got {ids}")
        if exponent < 0 or dense < 0:
            raise ValueError(f"exponent and dense must not be negative, got {exponent} and {dense}")
        random = torch.Generator().manual_seed(seed)
        self.exponent = exponent
        self.rows, self.ids = torch.tensor(rows), torch.tensor(ids)
        self._steps = torch.tensor([_coprime(n) for n in rows])  # from the id of a rank to that of the next
        self._starts = torch.randint(1 << 31, (len(rows),), generator=random)
        self._kinds = torch.randint(_KINDS, (len(rows),), generator=random)  # that of id 0 in each table
        self._effects = torch.randn(_KINDS, 1 + _FACTORS, generator=random)
        self._dense = torch.randn(dense, generator=random)
        self._dense *= _DENSE / self._dense.norm().clamp(min=1e-9)

    def batches(self, size: int, seed: int = 0) -> Iterator[ClickBatch]:
        """An endless stream of batches that do not repeat; other seeds give other examples of the same model."""
        random = torch.Generator().manual_seed(seed)
        while True:
            yield self._batch(size, random)

    def _batch(self, size: int, random: torch.Generator) -> ClickBatch:
        tables = len(self.rows)
        dense = torch.randn(size, len(self._dense), generator=random)
        most = self.ids[:, None]
        lengths = (torch.rand(tables, size, generator=random) * (most + 1)).long().where(most > 1, 1)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.view(-1).cumsum(0)])
        table = torch.arange(tables).repeat_interleave(lengths.sum(1))
        ranks = self._ranks(torch.rand(len(table), dtype=torch.float64, generator=random), self.rows[table])
        index = (ranks * self._steps[table] + self._starts[table]) % self.rows[table]
        odds = self._odds(dense, (index + self._kinds[table]) * 7919 % _KINDS, offsets)
        clicked = (torch.rand(size, generator=random) < odds.sigmoid()).float()
        return ClickBatch(dense, index, offsets, clicked, odds)

    def _ranks(self, uniform: Tensor, rows: Tensor) -> Tensor:
        """Ranks from 0: the density x^-s from 1 to rows + 1, rounded down."""
        power, ends = 1 - self.exponent, (rows + 1).double()
        # The limit for s = 1, close to which the other formula loses its digits.
        ranks = ends**uniform if abs(power) < 1e-6 else (1 + uniform * (ends**power - 1)) ** (1 / power)
        return (ranks.long() - 1).clamp_(min=0).minimum(rows - 1)

    def _odds(self, dense: Tensor, kinds: Tensor, offsets: Tensor) -> Tensor:
        tables = len(self.rows)
        sums = embedding_bag(kinds, self._effects, offsets, mode="sum", include_last_offset=True)
        mean_length = torch.where(self.ids > 1, self.ids / 2, 1)
        sums = sums.view(tables, -1, 1 + _FACTORS) * mean_length.rsqrt()[:, None, None]
        linear, factors = sums[..., 0].sum(0) / math.sqrt(tables), sums[..., 1:]
        pairs = (factors.sum(0).square() - factors.square().sum(0)).sum(1) / 2  # of all pairs of tables
        pairs /= math.sqrt(max(1, tables * (tables - 1) / 2) * _FACTORS)
        return _BIAS + dense @ self._dense + _LINEAR * linear + _PAIRS * pairs


def auc(scores: Tensor, clicked: Tensor) -> float:
    """The area under the ROC curve: how often a click has a higher score than no click, counting ties as half.

    Example:
        >>> import torch
        >>> from matrix_adagrad.datasets.clicks import auc
        >>> auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
        0.75
    """
    positive, negative = scores[clicked > 0].contiguous(), scores[clicked <= 0].sort().values
    if not len(positive) or not len(negative):
        raise ValueError(
            f"clicked must have both clicks and none, got {len(positive)} clicks of {len(scores)} examples"
        )
    below = torch.searchsorted(negative, positive) + torch.searchsorted(negative, positive, right=True)
    return below.double().mean().item() / 2 / len(negative)


def _coprime(n: int) -> int:
    """A number near the golden section of n whose multiples reach every number modulo n."""
    step = max(1, int(n * 0.6180339887498949))
    while math.gcd(step, n) != 1:
        step += 1
    return step

"""Synthetic clicks: the same for everyone, with a power law over ids, and labels from the planted model."""

import itertools

import pytest
import torch

from matrix_adagrad.datasets.clicks import Clicks, _coprime, auc

ROWS = [1000, 50, 1]


def a_batch(size=200, seed=0, **options):
    return next(Clicks(ROWS, **{"ids": [1, 4, 2], **options}).batches(size, seed))


def bags_of(batch, table, size):
    offsets = batch.offsets[table * size : (table + 1) * size + 1]
    return batch.index[offsets[0] : offsets[-1]], offsets.diff()


def test_the_same_seeds_give_the_same_batches_and_others_do_not():
    fields = [vars(a_batch()), vars(a_batch()), vars(a_batch(seed=1))]
    for name in fields[0]:
        assert torch.equal(fields[0][name], fields[1][name])
    assert not torch.equal(fields[0]["dense"], fields[2]["dense"])


def test_batches_do_not_repeat():
    batches = list(itertools.islice(Clicks(ROWS).batches(100), 20))
    assert len({batch.dense[0, 0].item() for batch in batches}) == 20
    assert len({tuple(batch.index.tolist()) for batch in batches}) == 20


def test_bags_have_the_lengths_and_the_ids_that_were_asked_for():
    batch, size = a_batch(5000), 5000
    assert batch.index.dtype == batch.offsets.dtype == torch.int64
    assert batch.offsets.shape == (3 * size + 1,)
    assert batch.offsets[-1] == len(batch.index)
    for table, (rows, lengths) in enumerate(zip(ROWS, ([1], [0, 1, 2, 3, 4], [0, 1, 2]), strict=True)):
        ids, found = bags_of(batch, table, size)
        assert found.unique().tolist() == lengths
        assert 0 <= ids.min() <= ids.max() < rows


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 1.2, 2.0])
def test_ids_follow_the_power_law(exponent):
    ids = next(Clicks([1000], exponent=exponent).batches(200_000)).index
    found = ids.bincount(minlength=1000).sort(descending=True).values / len(ids)
    bounds = torch.arange(1, 1002, dtype=torch.float64)
    mass = bounds.log() if exponent == 1 else bounds ** (1 - exponent) / (1 - exponent)
    torch.testing.assert_close(found[:20].double(), (mass.diff() / (mass[-1] - mass[0]))[:20], rtol=0.2, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64, 1000, 1001])
def test_ranks_are_scattered_over_the_whole_table(rows):
    step = _coprime(rows)
    assert (torch.arange(rows) * step % rows).unique().numel() == rows
    assert step > rows / 2 or rows < 4


def test_the_clicks_are_those_of_the_planted_odds():
    batch = a_batch(100_000)
    for low, high in itertools.pairwise([-9.0, -2.0, -1.0, 0.0, 1.0, 9.0]):
        some = (batch.odds > low) & (batch.odds <= high)
        torch.testing.assert_close(
            batch.clicked[some].mean(), batch.odds[some].sigmoid().mean(), rtol=0, atol=4 * some.sum().item() ** -0.5
        )


def test_the_odds_depend_on_dense_features_ids_and_pairs_of_tables():
    clicks = Clicks([5, 5], dense=1)
    batch = next(clicks.batches(20_000))
    one, two = batch.index.view(2, -1)
    rest = batch.odds - batch.dense @ clicks._dense
    table = torch.zeros(5, 5).index_put((one, two), rest)
    torch.testing.assert_close(table[one, two], rest)  # ids and dense features explain all
    additive = table - table.mean(0) - table.mean(1, keepdim=True) + table.mean()
    assert additive.std() > 0.1  # and pairs a part of it


def test_no_score_ranks_better_than_the_odds():
    batch = a_batch(50_000)
    ceiling = auc(batch.odds, batch.clicked)
    assert 0.7 < ceiling < 0.9
    assert auc(batch.odds + torch.randn(50_000), batch.clicked) < ceiling


def test_auc_counts_pairs_and_half_of_those_with_equal_scores():
    scores, clicked = torch.randint(5, (60,)).float(), torch.randint(2, (60,)).float()
    pairs = [(s > t) + (s == t) / 2 for s in scores[clicked == 1] for t in scores[clicked == 0]]
    assert auc(scores, clicked) == pytest.approx(sum(map(float, pairs)) / len(pairs), abs=1e-12)
    assert auc(clicked, clicked) == 1
    assert auc(-clicked, clicked) == 0


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ([], {}, "rows must be one number from 1 to .* for each table, got \\[\\]"),
        ([10, 0], {}, "rows must be .* got \\[10, 0\\]"),
        ([1 << 31], {}, "rows must be .* got \\[2147483648\\]"),
        ([10, 10], {"ids": [1]}, "ids must be at least 1, one number or 2 of them, got \\[1\\]"),
        ([10, 10], {"ids": 0}, "ids must be at least 1, one number or 2 of them, got \\[0, 0\\]"),
        ([10], {"exponent": -1}, "exponent and dense must not be negative, got -1 and 13"),
        ([10], {"dense": -1}, "exponent and dense must not be negative, got 1.2 and -1"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        Clicks(arguments, **options)


def test_a_batch_needs_clicks_and_none_to_be_ranked():
    with pytest.raises(ValueError, match="clicked must have both clicks and none, got 3 clicks of 3 examples"):
        auc(torch.rand(3), torch.ones(3))

"""Planted structure: what is drawn, who mirrors whom, and where two geometries are one."""

from dataclasses import replace

import pytest
import torch

from reproduction.structure import cost, regret, training
from reproduction.structure.planted import Structure
from reproduction.structure.tuned import FIRST, GEOMETRIES, PER_DECADE, compared

SHORT = {"rounds": 25, "seeds": 2, "tuning": 2}
ROWS = Structure(6, 4, row_decades=1.0, column_decades=0.5, row_activity="zipf", within_rows=0.3, within_columns=0.2)
SWAPPED = {"row": "column", "column": "row", "entry": "entry", "whole": "whole", "factored": "factored"}
MIRRORED = {"Frobenius ball": "Frobenius ball", "row balls": "column balls", "column balls": "row balls", "box": "box"}


def by_name(result):
    return {name: torch.tensor(scores) for name, scores in zip(GEOMETRIES, result.scores, strict=True)}


@pytest.mark.parametrize("domain", regret.DOMAINS)
def test_transposing_a_game_swaps_row_and_column(domain):
    game = regret.Config(ROWS, domain, **SHORT)
    own = by_name(regret.run(game))
    mirror = by_name(regret.run(replace(game, domain=MIRRORED[domain], transposed=True)))
    for name, other in SWAPPED.items():
        torch.testing.assert_close(own[name], mirror[other], rtol=1e-9, atol=1e-9)
    assert (own["row"] - own["column"]).abs().min() > 1e-3


@pytest.mark.parametrize("proportional", [False, True])
def test_storing_outputs_as_rows_swaps_row_and_column(proportional):
    task = training.Config(ROWS, proportional, **SHORT)
    own, mirror = (by_name(training.run(replace(task, transposed=transposed))) for transposed in (False, True))
    for name, other in SWAPPED.items():
        torch.testing.assert_close(own[name], mirror[other], rtol=1e-9, atol=0)
    assert (own["row"] / own["column"] - 1).abs().min() > 1e-3


@pytest.mark.parametrize("module", [regret, training])
def test_if_the_entries_of_a_row_are_one_number_rows_and_entries_take_the_same_steps(module):
    full = by_name(module.run(module.Config(Structure(6, 4, row_decades=1.0, within_rows=1.0), **SHORT)))
    for name in ("entry", "factored"):
        torch.testing.assert_close(full[name], full["row"], rtol=1e-9, atol=0)
    none = by_name(module.run(module.Config(Structure(6, 4, row_decades=1.0), **SHORT)))
    assert (none["entry"] / none["row"] - 1).abs().min() > 1e-4


def test_gradients_have_the_planted_sizes_frequencies_and_correlations():
    def drawn(**planted):
        (g,) = regret.gradients(regret.Config(Structure(8, 8, **planted), rounds=20_000, drift=0.0), [0]).unbind(1)
        return g

    sizes = drawn(row_decades=2.0, column_decades=1.0).square().mean(0).sqrt()
    torch.testing.assert_close(
        sizes, torch.logspace(0, -2, 8)[:, None].double() * torch.logspace(0, -1, 8), rtol=0.03, atol=0
    )
    often = (drawn(row_activity="zipf") != 0).double().mean(0)
    torch.testing.assert_close(often[0] / often[3], torch.full((8,), 4.0).double(), rtol=0.1, atol=0)
    assert often.sum(0) == pytest.approx([1.0] * 8)
    entries = drawn(within_rows=0.6, within_columns=0.3).flatten(1)
    found = torch.corrcoef(entries.T)
    assert found[0, 1] == pytest.approx(0.6, abs=0.03)  # of one row
    assert found[0, 8] == pytest.approx(0.3, abs=0.03)  # of one column
    assert found[0, 9] == pytest.approx(0.0, abs=0.03)
    spread = drawn(entry_decades=2.0).square().mean(0).sqrt().flatten().sort(descending=True).values
    assert spread[[0, -1]].tolist() == pytest.approx([1.0, 0.01], rel=0.03)


def test_the_drift_adds_up_to_so_many_times_the_noise():
    game = regret.Config(Structure(row_activity="zipf"), rounds=1500, drift=30.0)
    for drift, typical in ((30.0, 30.0), (0.0, 1.0)):
        total = regret.gradients(replace(game, drift=drift), range(6)).sum(0)
        squares = regret.gradients(replace(game, drift=0.0), range(6)).square().sum(0)
        assert (total.square() / squares).mean().sqrt() == pytest.approx(typical, rel=0.1)


def test_the_solution_of_a_regression_has_no_loss_and_is_where_gradients_vanish():
    data = training._Data(training.Config(ROWS, rounds=3000), (0,))
    assert data.loss(data.solution) == 0
    x = data.solution + torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(data.loss(x).sum(), x)
    residuals = data.features @ (x - data.solution).detach() - data.noise
    drawn = (data.features.mT @ (data.weights * residuals) / training.BATCH).mean(0)
    assert (drawn - slope).norm() < 0.05 * slope.norm()


def test_the_search_for_a_rate_goes_on_until_the_best_is_inside():
    for exponent in (-30, -3, 17):
        asked = []

        def score(_, seeds, rates, exponent=exponent, asked=asked):
            asked.append(rates)
            return ((rates.log10() * PER_DECADE - exponent).square())[:, None].expand(-1, len(seeds))

        rates, scores = compared(score, [100], [0, 1])
        assert rates == pytest.approx([10 ** (exponent / PER_DECADE)] * len(GEOMETRIES))
        assert {len(each) for each in scores} == {2}
        assert (len(asked) > 2 * len(GEOMETRIES)) == (exponent not in FIRST)


def test_rows_keep_a_number_each_and_need_no_root():
    found = cost.run(cost.Config(12, 5))
    names = list(cost.GEOMETRIES)
    assert dict(zip(names, found.state, strict=True)) == {
        "row": 4 * 12,
        "column": 4 * 5,
        "full, by row": 4 * 12**2,
        "full, by column": 4 * 5**2,
    }
    assert found.roots == (0, 0, 1, 1)
    # GGᵀ, and V · (Vᵀ G)
    assert found.products == (0, 0, 3 * 12 * 12 * 5, 3 * 5 * 5 * 12)
    assert found.seconds == ()
    assert len(cost.run(cost.Config(3, 2, repeats=2)).seconds) == 4


def test_what_cannot_be_planted_is_refused():
    with pytest.raises(ValueError, match=r"correlations must be .* sum to at most 1, got \(0.7, 0.4\)"):
        Structure(within_rows=0.7, within_columns=0.4)
    with pytest.raises(ValueError, match="entry_decades must be 0"):
        training.Config(Structure(entry_decades=1.0))
    with pytest.raises(ValueError, match="domain must be one of Frobenius ball, .*, got 'simplex'"):
        regret.Config(Structure(), "simplex")


def test_the_mirror_image_of_a_mirror_image_is_the_structure_itself():
    assert ROWS.transpose.transpose == ROWS
    assert ROWS.transpose.column_activity == "zipf"
    assert (ROWS.transpose.m, ROWS.transpose.within_columns) == (4, 0.3)

"""Grids grow until the best learning rate lies inside of them, and no cell is asked for without a reason."""

import itertools
import statistics

import pytest

from reproduction import factorisation, mlp, sweep
from reproduction.evidence import Evidence
from reproduction.sweep import DEFAULT, FULL, QUICK, Search
from tests.reproduction.fakes import Fake


def played(size, fake=None, what="all", known=()):
    """All cells of a reproduction, with made-up results unless they are known, and in how many rounds it asked."""
    fake, known, rounds = fake or Fake(), dict(known), 0
    while wanted := [cell for cell in sweep.needed(what, size, known) if cell not in known]:
        known.update((cell, fake.run(cell)) for cell in wanted)
        rounds += 1
    return known, rounds


@pytest.mark.parametrize("size", [FULL, QUICK], ids=["full", "quick"])
@pytest.mark.parametrize("best", [1e-3, 0.1, 30.0])
def test_the_best_learning_rate_ends_up_inside_of_the_grid_wherever_it_is(size, best):
    known, _ = played(size, Fake(best_lr=dict.fromkeys(sweep.GEOMETRIES, best)), "movielens")
    for setting in size.settings:
        for geometry in sweep.GEOMETRIES:
            search = Search(setting, geometry, size)
            for fold in search.folds:
                grid = list(search.curves(known, fold))
                chosen = search.best(known, fold)
                assert grid[0] < chosen < grid[-1]
                assert abs(chosen / best - 1) < 10 ** (1 / size.grid) - 1


def test_the_steps_of_the_grid_are_at_most_an_eighth_of_a_decade():
    known, _ = played(FULL, what="movielens")
    grid = list(Search(DEFAULT, "row", FULL).curves(known, 0))
    steps = [high / low for low, high in itertools.pairwise(grid)]
    assert max(steps) <= 10 ** (1 / 8) * 1.0001
    assert len(grid) >= 9


def test_in_the_default_setting_the_whole_good_range_is_inside():
    known, _ = played(FULL, what="movielens")
    for geometry in sweep.GEOMETRIES:
        search = Search(DEFAULT, geometry, FULL)
        rmse = [
            statistics.fmean(search.curves(known, f)[lr][1][-1] for f in search.folds) for lr in search.curves(known, 0)
        ]
        assert min(rmse[0], rmse[-1]) > 1.01 * min(rmse)


def test_a_search_that_finds_nothing_gives_up():
    known, rounds = played(QUICK, Fake(best_lr=dict.fromkeys(sweep.GEOMETRIES, 1e30)), "movielens")
    assert rounds < 50
    assert known


def test_a_grid_where_everything_diverges_gives_up_too():
    _, rounds = played(QUICK, Fake(rmse=lambda _: float("inf")), "movielens")
    assert rounds < 50


def test_the_learning_rate_is_chosen_without_the_test_ratings():
    class Liar(Fake):
        """The test would choose another learning rate than the validation does."""

        def factorisation(self, config):
            result = super().factorisation(config)
            return factorisation.Result(config, tuple(reversed(result.test)), result.validation, result.train, 1.12, 0)

    known, _ = played(QUICK, Liar(), "movielens")
    honest, _ = played(QUICK, Fake(), "movielens")
    evidence, other = Evidence(known, QUICK), Evidence(honest, QUICK)
    assert [run.lr for run in evidence.factorised(DEFAULT, "row")] == [
        run.lr for run in other.factorised(DEFAULT, "row")
    ]


def test_every_setting_and_control_that_is_open_is_run():
    known, _ = played(FULL)
    mlps = {(c.setting, c.depth, c.lr, c.eps, c.optimizer, len(c.seeds)) for c in known if isinstance(c, mlp.Config)}
    for depth in (5, 10, 15, 22, 25):
        for lr in (0.01, 0.001):
            for optimizer in (*sweep.ALWAYS, "Row-wise, whole biases"):
                assert ("A", depth, lr, 1e-8, optimizer, 10) in mlps
    for eps in (1e-8, 1e-16):
        for optimizer in sweep.ALWAYS:
            assert any(cell[:5] == ("B", 25, 0.01, eps, optimizer) for cell in mlps)
    assert all(Evidence(known, FULL).has(experiment) for experiment in sweep.EXPERIMENTS)


def test_a_part_of_it_needs_only_its_own_cells():
    for what in sweep.EXPERIMENTS:
        known, _ = played(QUICK, what=what)
        other = [cell for name in sweep.EXPERIMENTS if name != what for cell in sweep.needed(name, QUICK, {})]
        assert not set(known) & set(other)

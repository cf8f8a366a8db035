"""Learning rates are chosen by cross-validation without the test fold, on grids that grow and are refined."""

import itertools
import math

import pytest

from reproduction.movielens import factorisation
from reproduction.movielens.evidence import Evidence
from reproduction.movielens.sweep import ALTERNATIVES, DEFAULT, FULL, GEOMETRIES, GRID, QUICK, Search, point_of
from reproduction.movielens.validation import Errors
from tests.reproduction.fakes import played, rounds_played
from tests.reproduction.movielens.fakes import Fake, frozen


@pytest.mark.parametrize("size", [FULL, QUICK], ids=["full", "quick"])
@pytest.mark.parametrize("best", [1e-3, 0.1, 30.0])
def test_the_best_learning_rate_ends_up_inside_of_a_fine_grid_wherever_it_is(size, best):
    fake = Fake(best_lr=dict.fromkeys(GEOMETRIES, best))
    known = played("movielens", size is QUICK, movielens=fake).known
    for setting, geometry in itertools.product(size.settings, GEOMETRIES):
        errors = Search(setting, size).cells(known)[1][geometry]
        for fold in range(size.folds):
            chosen = errors.best(fold)
            assert abs(GRID * math.log10(chosen / best)) <= size.finest / 2 + 1e-3
            points = {point_of(lr) - point_of(chosen) for lr in errors.lrs}
            assert {-4, 4, -2, 2, -size.finest, size.finest} <= points


def test_in_the_default_setting_good_rates_and_those_of_early_epochs_are_inside():
    class Early(Fake):
        """Early epochs want twice the learning rate."""

        def curve(self, config, run, lr, fold):
            last, early = (super(Early, self).curve(config, run, own, fold) for own in (lr, lr / 2))
            return [a if epoch == 30 else b for a, b, epoch in zip(last, early, config.measured, strict=True)]

    known = played("movielens", movielens=Early()).known
    for geometry in GEOMETRIES:
        errors = Search(DEFAULT, FULL).cells(known)[1][geometry]
        assert None not in errors.good_range()
        for fold, number in itertools.product(range(5), range(3)):
            assert errors.best(fold) < errors.best(fold, number) < errors.lrs[-1]


@pytest.mark.parametrize("fake", [Fake(best_lr=dict.fromkeys(GEOMETRIES, 1e30)), Fake(rmse=lambda *_: math.inf)])
def test_a_search_that_finds_nothing_gives_up(fake):
    results, rounds = rounds_played("movielens", is_quick=True, movielens=fake)
    assert rounds < 60
    assert results.known


def test_every_setting_has_five_folds_and_at_least_three_starts():
    evidence = played("movielens").evidence("movielens")
    assert set(FULL.settings) == set(ALTERNATIVES)
    for setting, geometry in itertools.product(FULL.settings, GEOMETRIES):
        folds = evidence.models(setting, geometry)
        assert len(folds) == factorisation.FOLDS
        assert min(map(len, folds)) >= 3


@pytest.mark.parametrize("setting", [DEFAULT, "full batch"])
def test_each_test_fold_is_validated_on_at_least_two_others_and_never_on_itself(setting):
    pairs = Search(setting, FULL).pairs
    for fold in range(5):
        inner = [other for pair in pairs if fold in pair for other in pair if other != fold]
        assert len(set(inner)) == len(inner) == (4 if setting == DEFAULT else 2)


class Liar(Fake):
    """On one fold, errors are those of another learning rate."""

    def __init__(self, fold, **says):
        super().__init__(**says)
        self.fold = fold

    def curve(self, config, run, lr, fold):
        return super().curve(config, run, 10 / lr if fold == self.fold else lr, fold)


@pytest.mark.parametrize("fold", range(3))
def test_a_fold_has_no_part_in_the_choice_of_its_own_learning_rate(fold):
    honest, lying = (
        Search(DEFAULT, QUICK).cells(played("movielens", is_quick=True, movielens=fake).known)[1]["row"]
        for fake in (Fake(), Liar(fold))
    )
    assert lying.best(fold) == honest.best(fold)
    assert [lying.best(other) for other in range(3)] != [honest.best(other) for other in range(3)]


def test_errors_are_pooled_over_the_folds_that_validate():
    run = factorisation.Run("row", (0, 1), (0.1,)), factorisation.Run("row", (1, 2), (0.1,))
    config = factorisation.Config(run)
    held_out = frozen([[[[3.0]], [[4.0]]], [[[6.0]], [[8.0]]]])  # by run, fold and learning rate
    result = factorisation.Result(config, held_out, (((0.5,),), ((0.6,),)), (1.1, 1.1), (4, 4))
    errors = Errors.of([result], "row")
    assert errors.validation(0.1, 1) == pytest.approx(math.sqrt((3**2 + 8**2) / 2))  # folds 0 and 2
    assert errors.test(0.1, 1) == pytest.approx((4 + 6) / 2)
    assert errors.validation(0.1, 0) == 4
    assert errors.train == {0.1: {(0, 1): 0.5, (1, 2): 0.6}}


def test_final_models_are_paired_by_fold_and_start_and_trained_on_all_but_the_fold():
    cells, errors = Search(DEFAULT, QUICK).cells(played("movielens", is_quick=True).known)
    runs = [run for cell in Search(DEFAULT, QUICK).final(errors) for run in cell.runs]
    by_geometry = {g: [(run.held_out, run.stream) for run in runs if run.geometry == g] for g in GEOMETRIES}
    assert by_geometry["row"] == by_geometry["entry"] == by_geometry["column"]
    assert {held_out for held_out, _ in by_geometry["row"]} == {(fold,) for fold in range(QUICK.folds)}
    assert len({stream for _, stream in by_geometry["row"]}) == QUICK.folds * QUICK.starts
    validated = {run.stream for cell in cells for run in cell.runs}
    assert not validated & {stream for _, stream in by_geometry["row"]}


def test_intervals_are_over_folds_and_starts():
    evidence: Evidence = played("movielens", movielens=Fake(scatter=0.01)).evidence("movielens")
    by = evidence.advantage(DEFAULT, "row", "entry")
    assert by.count == FULL.folds * FULL.starts
    assert by.low < by.mean < by.high

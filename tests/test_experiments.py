"""The experiments are pure functions of their configs; the command line prints what they give."""

import math
import runpy

import pytest

from matrix_adagrad import __version__
from matrix_adagrad.cli import main
from matrix_adagrad.experiments import mlp, motivating


@pytest.mark.parametrize("active", ["row", "column"])
@pytest.mark.parametrize(("m", "n", "K"), [(1, 1, 1), (3, 4, 5), (16, 9, 2), (5, 1, 7)])
def test_the_bounds_of_the_motivating_examples_have_the_papers_closed_form(m, n, K, active):
    result = motivating.run(motivating.Config(m, n, K, active))
    count, length = (m, n) if active == "row" else (n, m)
    radius = 0.5 / math.sqrt(length)
    assert result.bound == pytest.approx(2 * math.sqrt(2) * radius * count * math.sqrt(length * K), rel=1e-12)
    assert result.entry_bound == pytest.approx(2 * math.sqrt(2) * radius * m * n * math.sqrt(K), rel=1e-12)
    assert result.ratio == pytest.approx(math.sqrt(length), rel=1e-12)


def test_a_run_depends_on_its_config_alone():
    config = mlp.Config("row, sum", depth=3, epochs=2)
    assert mlp.run(config).loss == mlp.run(config).loss
    assert mlp.run(config).loss != mlp.run(mlp.Config("row, sum", depth=3, epochs=2, seed=1)).loss


@pytest.mark.parametrize("optimizer", mlp.OPTIMIZERS)
def test_a_shallow_network_beats_the_linear_fit(optimizer):
    result = mlp.run(mlp.Config(optimizer, depth=3, epochs=100))
    assert result.trained
    assert result.linear_loss < result.constant_loss


def test_unknown_optimizer():
    with pytest.raises(ValueError, match="optimizer must be one of .* got 'lion'"):
        mlp.run(mlp.Config("lion"))


def test_reproduce_prints_both_tables(capsys):
    assert main(["reproduce", "--seeds", "1", "--epochs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "Motivating examples" in printed
    assert [line.split()[0] for line in printed.splitlines()[-3:]] == ["5", "15", "25"]


def test_the_version_and_the_module(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"matrix-adagrad {__version__}"
    assert runpy.run_module("matrix_adagrad", run_name="not main")["main"] is main


def test_bad_arguments_say_what_is_wrong(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "--seeds", "0"])
    assert stopped.value.code == 2
    assert "must be at least 1, got 0" in capsys.readouterr().err

"""The motivating examples and regret runs; what the command line says of them."""

import json
import math
import re
import runpy

import pytest

from matrix_adagrad import __version__
from matrix_adagrad.cli import main
from matrix_adagrad.experiments import motivating, regret

STARTS = (("zero", 0), ("random", 0), ("random", 1))


@pytest.mark.parametrize("active", ["row", "column"])
@pytest.mark.parametrize(("m", "n", "K"), [(1, 1, 1), (3, 4, 5), (16, 9, 2), (5, 1, 7)])
def test_the_bounds_of_the_motivating_examples_have_the_papers_closed_form(m, n, K, active):
    result = motivating.run(motivating.Config(m, n, K, active))
    count, length = (m, n) if active == "row" else (n, m)
    radius = 0.5 / math.sqrt(length)
    assert result.bound == pytest.approx(2 * math.sqrt(2) * radius * count * math.sqrt(length * K), rel=1e-12)
    assert result.entry_bound == pytest.approx(2 * math.sqrt(2) * radius * m * n * math.sqrt(K), rel=1e-12)
    assert result.ratio == pytest.approx(math.sqrt(length), rel=1e-12)
    assert result.holds


def test_the_order_of_the_regrets_is_not_that_of_the_bounds():
    even, odd = (motivating.run(motivating.Config(m, n, 10)) for m, n in ((16, 9), (9, 16)))
    assert even.bound < even.entry_bound
    assert odd.bound < odd.entry_bound
    assert even.regret < even.entry_regret
    assert odd.regret > odd.entry_regret  # where each row's label alternates, entries are the better choice


def test_a_game_depends_on_its_start():
    zero, random, other = (motivating.run(motivating.Config(4, 3, 2, start=s, seed=k)) for s, k in STARTS)
    assert len({zero.regret, random.regret, other.regret}) == 3
    with pytest.raises(ValueError, match="start must be 'zero' or 'random', got 'one'"):
        motivating.run(motivating.Config(start="one"))


@pytest.mark.parametrize("game", regret.GAMES)
@pytest.mark.parametrize("learner", ["row", "full-column"])
def test_a_regret_run_from_the_command_line(game, learner, capsys, tmp_path):
    picture = tmp_path / "regret.png"
    size = ["--m", "5", "--n", "4", "--rounds", "30", "--learner", learner, "--game", game, "--exact"]
    assert main(["regret", *size, "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "30 rounds" in printed
    assert "FAILS" not in printed
    assert main(["regret", *size, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["game"] == game
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_the_curve_of_the_regret_and_of_its_bounds(tmp_path):
    assert main(["regret", "--m", "5", "--n", "4", "--rounds", "30", "--picture", str(tmp_path / "regret.svg")]) == 0
    drawn = (tmp_path / "regret.svg").read_text(encoding="utf-8")
    labels = re.findall(r"<!-- (.*?) -->", drawn)
    assert {"regret", "general bound (Cor. 1)", "√2 D Σ √V, row", "√2 D Σ √V, entry", "rounds"} <= set(labels)


def test_a_checkpoint_of_another_game_is_refused_on_the_command_line(capsys, tmp_path):
    file = str(tmp_path / "run.pt")
    assert main(["regret", "--m", "3", "--n", "2", "--rounds", "5", "--checkpoint", file]) == 0
    assert main(["regret", "--m", "4", "--n", "2", "--rounds", "5", "--checkpoint", file]) == 1
    assert "is of another run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--picture", "nowhere/x.png"], "x.png cannot be written: it is a folder, or its folder does not exist"),
        (["--picture", "."], ". cannot be written"),
        (["--picture", "x.txt"], "x.txt must end in .png, .svg or .pdf"),
        (["--checkpoint", "."], "the checkpoint . cannot be a file"),
        (["--game", "motivating-row", "--radius", "5"], "radius must be positive and less than"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_run(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["regret", "--m", "3", "--n", "2", "--rounds", "5", *arguments]) == 1
    printed = capsys.readouterr()
    assert words in printed.err
    assert not printed.out
    assert not list(tmp_path.iterdir())


def test_the_version_and_the_module(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"matrix-adagrad {__version__}"
    assert runpy.run_module("matrix_adagrad", run_name="not main")["main"] is main

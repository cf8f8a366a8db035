"""Games from the command line."""

import itertools
import json
import re

import pytest

from matrix_adagrad.cli import main
from matrix_adagrad.online import presets


@pytest.mark.parametrize(
    ("game", "learner"),
    [
        *itertools.product(presets.GAMES, ("row", "full-column")),
        *itertools.product(("linear", "completion"), presets.LEARNERS),
    ],
)
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


def test_the_picture_has_curves_of_the_regret_and_its_bounds(tmp_path):
    assert main(["regret", "--m", "5", "--n", "4", "--rounds", "30", "--picture", str(tmp_path / "regret.svg")]) == 0
    drawn = (tmp_path / "regret.svg").read_text(encoding="utf-8")
    labels = re.findall(r"<!-- (.*?) -->", drawn)
    assert {"regret", "general bound (Cor. 1)", "√2 D Σ √V, row", "√2 D Σ √V, entry", "rounds"} <= set(labels)


def test_a_checkpoint_of_another_game_is_refused_on_the_command_line(capsys, tmp_path):
    file = str(tmp_path / "run.pt")
    assert main(["regret", "--m", "3", "--n", "2", "--rounds", "5", "--checkpoint", file]) == 0
    assert main(["regret", "--m", "4", "--n", "2", "--rounds", "5", "--checkpoint", file]) == 1
    assert "belongs to another run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--picture", "nowhere/x.png"], "x.png cannot be written: it is a folder, or its folder does not exist"),
        (["--picture", "."], ". cannot be written"),
        (["--picture", "x.txt"], "--picture must end in .png, .svg or .pdf, got x.txt"),
        (["--checkpoint", "."], "checkpoint must be a file in an existing folder, got ."),
        (["--game", "motivating-row", "--radius", "5"], "radius must be positive and less than"),
    ],
)
def test_impossible_requests_are_refused_before_the_run(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["regret", "--m", "3", "--n", "2", "--rounds", "5", *arguments]) == 1
    printed = capsys.readouterr()
    assert words in printed.err
    assert not printed.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--radius", "-1"], "argument --radius: must be finite and greater than 0, got -1"),
        (["--radius", "inf"], "argument --radius: must be finite and greater than 0, got inf"),
        (["--delta", "0"], "argument --delta: must be finite and greater than 0, got 0"),
        (["--radius", "wide"], "argument --radius: must be a number, got 'wide'"),
        (["--rounds", "-1"], "argument --rounds: must be an integer ≥ 1, got -1"),
    ],
)
def test_wrong_arguments_are_command_line_errors(option, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["regret", *option])
    assert words in capsys.readouterr().err

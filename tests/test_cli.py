"""The commands: what they need is known before they start, and they speak alike."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from matrix_adagrad import cli
from matrix_adagrad.cli import advise, bench, main, regret, reproduce
from matrix_adagrad.experiments import plan
from tests.experiments.test_reproduce import TINY

TASK = """
import torch
from torch import nn

x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))

def task():
    made = lambda: nn.Linear(8, 4)
    return made, lambda model, rows: (model(x[rows]) - x[rows, :4]).square().mean(), list(torch.arange(64).split(16))
"""
COMMANDS = {
    "advise": ["advise", "mine.py:task", "--steps", "16", "--seeds", "2", "--family", "adagrad"],
    "bench": ["bench", "--quick", "--rounds", "2"],
    "regret": ["regret", "--m", "3", "--n", "2", "--rounds", "5"],
    "reproduce": ["reproduce", "examples", "--quick"],
}


@pytest.fixture(name="here", autouse=True)
def _here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(TASK, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def extras(name):
    """The packages of an extra, with those of the extras that it takes in."""
    table = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for package in table["optional-dependencies"][name]:
        inner = package.removeprefix(table["name"] + "[")
        yield from extras(inner.rstrip("]")) if inner != package else [package]


@pytest.mark.parametrize("output", [*advise.OUTPUTS, *bench.OUTPUTS, *reproduce.OUTPUTS, *regret.ASKED.values()])
def test_the_extra_that_an_output_names_brings_what_it_needs(output):
    assert set(output.modules) <= set(extras(output.extra))


@pytest.mark.parametrize("missing", ["jinja2", "plotly"])
def test_advice_without_what_its_page_needs_is_shown_and_kept_and_the_page_is_named_at_once(
    here, capsys, monkeypatch, missing
):
    monkeypatch.setitem(sys.modules, missing, None)
    for module in [name for name in sys.modules if name.startswith("matrix_adagrad.") and name.endswith(".page")]:
        monkeypatch.delitem(sys.modules, module)
    assert main(COMMANDS["advise"]) == cli.INCOMPLETE
    shown, said = capsys.readouterr()
    assert "Use “" in shown
    first, *_, last = said.splitlines()
    remedy = f"advice.html needs {missing}: pip install 'matrix-adagrad[advisor]'"
    assert first == f"matrix-adagrad advise: {remedy}; the rest is written"
    assert last == f"matrix-adagrad advise: {remedy}"
    assert sorted(file.name for file in (here / "advice").iterdir()) == ["advice.json", "plan.json"]


def test_what_an_option_asks_for_is_refused_before_anything_runs(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*COMMANDS["regret"], "--picture", "picture.png"]) == 1
    shown, said = capsys.readouterr()
    assert said == "matrix-adagrad regret: --picture needs matplotlib: pip install 'matrix-adagrad[experiments]'\n"
    assert not shown
    assert main(COMMANDS["regret"]) == 0
    assert not (here / "picture.png").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_a_flag_and_then_json_is_all_that_is_printed(command, capsys, monkeypatch):
    monkeypatch.setattr(bench.cases, "run", lambda *_, **__: bench.cases.Report({}, 1.0))
    monkeypatch.setattr(bench.report, "_draw", lambda *_: None)
    monkeypatch.setattr(plan, "QUICK", TINY)
    assert main([*COMMANDS[command], "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


@pytest.mark.parametrize("command", [*COMMANDS, "data"])
def test_json_means_the_same_in_every_command(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert " ".join(capsys.readouterr().out.split()).count("--json print JSON on stdout and nothing else") == 1

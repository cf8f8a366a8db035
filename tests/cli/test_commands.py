"""The commands: what they need is known before they start, and they speak alike."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import reproduction.__main__
from benchmarks.speed import __main__ as speed
from benchmarks.speed import cases, output
from matrix_adagrad import __version__, cli
from matrix_adagrad.cli import advise, main, regret
from reproduction.experiments import EXPERIMENTS
from tests.reproduction.test_reproduce import TINY

TASK = """
import torch
from torch import nn

x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))

def task():
    made = lambda: nn.Linear(8, 4)
    return made, lambda model, rows: (model(x[rows]) - x[rows, :4]).square().mean(), list(torch.arange(64).split(16))
"""
ARGUMENTS = {
    "advise": ["advise", "mine.py:task", "--steps", "16", "--seeds", "2", "--family", "adagrad"],
    "regret": ["regret", "--m", "3", "--n", "2", "--rounds", "5"],
}
COMMANDS = {
    **{name: (main, arguments) for name, arguments in ARGUMENTS.items()},
    "benchmarks.speed": (speed.main, ["--quick", "--rounds", "2"]),
    "reproduction": (reproduction.__main__.main, ["games", "--quick"]),
}
OUTPUTS = [*advise.OUTPUTS, *speed.OUTPUTS, *reproduction.__main__.OUTPUTS, *regret.REQUESTED.values()]


@pytest.fixture(name="here", autouse=True)
def _here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(TASK, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def extras(name):
    """The packages of an extra, with those of the extras that it takes in."""
    table = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for package in table["optional-dependencies"][name]:
        inner = package.removeprefix(table["name"] + "[")
        yield from extras(inner.rstrip("]")) if inner != package else [package]


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.name)
def test_the_extra_that_an_output_names_installs_what_it_needs(output):
    assert set(output.modules) <= set(extras(output.extra))


@pytest.mark.parametrize("missing", ["jinja2", "plotly"])
def test_without_the_packages_for_its_page_advice_is_shown_and_saved_and_the_page_is_named_at_once(
    here, capsys, monkeypatch, missing
):
    monkeypatch.setitem(sys.modules, missing, None)
    for module in [name for name in sys.modules if name.startswith("matrix_adagrad.") and name.endswith("_page")]:
        monkeypatch.delitem(sys.modules, module)
    assert main(ARGUMENTS["advise"]) == cli.INCOMPLETE
    shown, said = capsys.readouterr()
    assert "use “" in shown.lower()
    first, *_, last = said.splitlines()
    remedy = f"advice.html needs {missing}: pip install 'matrix-adagrad[advisor]'"
    assert first == f"matrix-adagrad advise: {remedy}; everything else is written"
    assert last == f"matrix-adagrad advise: {remedy}"
    assert sorted(file.name for file in (here / "advice").iterdir()) == ["advice.json", "plan.json"]


def test_an_option_whose_packages_are_missing_is_refused_before_anything_runs(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*ARGUMENTS["regret"], "--picture", "picture.png"]) == 1
    shown, said = capsys.readouterr()
    assert said == "matrix-adagrad regret: --picture needs matplotlib: pip install 'matrix-adagrad[cli]'\n"
    assert not shown
    assert main(ARGUMENTS["regret"]) == 0
    assert not (here / "picture.png").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_with_the_json_flag_only_json_is_printed(command, capsys, monkeypatch):
    monkeypatch.setattr(cases, "run", lambda *_, **__: cases.Measurements({}, 1.0))
    monkeypatch.setattr(output, "_draw", lambda *_: None)
    monkeypatch.setitem(EXPERIMENTS, "games", replace(EXPERIMENTS["games"], quick=TINY["games"]))
    run, arguments = COMMANDS[command]
    assert run([*arguments, "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


@pytest.mark.parametrize("command", [*COMMANDS, "data"])
def test_json_means_the_same_in_every_command(command, capsys):
    run, arguments = COMMANDS.get(command, (main, [command]))
    with pytest.raises(SystemExit):
        run([*arguments, "--help"])
    assert " ".join(capsys.readouterr().out.split()).count("--json print JSON on stdout and nothing else") == 1


def test_the_command_has_the_subcommands_that_users_need_and_no_others(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert re.findall(r"^    (\w+)  ", capsys.readouterr().out, re.MULTILINE) == ["advise", "regret", "data"]


@pytest.mark.separate_process
def test_a_closed_pipe_is_not_an_error():
    command = [sys.executable, "-m", "matrix_adagrad", "regret", "--m", "2", "--n", "2", "--rounds", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


def test_the_version_and_the_module(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"matrix-adagrad {__version__}"
    assert runpy.run_module("matrix_adagrad", run_name="not main")["main"] is main

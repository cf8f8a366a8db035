"""Files and pipes are UTF-8 whatever the locale, and no locale stops a command."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    file
    for folder in ("src", "tests", "docs", "benchmarks", "examples", "reproduction", ".ci", ".")
    for file in sorted((ROOT / folder).glob("*.py" if folder == "." else "**/*.py"))
]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
POSITIONS = {"read_text": 0, "write_text": 1}  # where the encoding is, if it has no keyword


def calls_without_encoding(tree):
    """What ruff's PLW1514 does not see: files whose type it does not know, and pipes."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "attr", None)
            keywords = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
            is_text = keywords.get("text") is True or keywords.get("universal_newlines") is True
            if name in POSITIONS:
                is_text = len(call.args) <= POSITIONS[name]
            if is_text and "encoding" not in keywords:
                yield call


def test_no_text_is_read_or_written_in_the_encoding_of_the_locale():
    found = {file: list(calls_without_encoding(ast.parse(file.read_bytes()))) for file in SOURCES}
    assert [f"{file}:{call.lineno}" for file, calls in found.items() for call in calls] == []


def command(*arguments, **how):
    return subprocess.run(
        [sys.executable, "-m", "matrix_adagrad", *map(str, arguments)],
        env=os.environ | ASCII,
        capture_output=True,
        encoding="utf-8",
        **how,
    )


@pytest.mark.separate_process
def test_a_terminal_without_our_letters_is_no_error():
    run = ("regret", "--rounds", 20, "--m", 4, "--n", 3)
    done = command(*run)
    assert (done.returncode, done.stderr) == (0, "")
    assert "adversarial on 4?3, learner row" in done.stdout
    assert json.loads(command(*run, "--json").stdout)["rounds"] == 20


@pytest.mark.separate_process
@pytest.mark.parametrize("name", ["advise", "regret", "data"])
def test_help_is_no_error_there_either(name):
    assert (done := command(name, "--help")).returncode == 0, done.stderr


@pytest.mark.separate_process
def test_an_explanation_can_be_printed_there_too():
    program = "from torch import nn; from matrix_adagrad import geometry_groups, matrix_optimizer; "
    program += "m = nn.Linear(4, 3); geometry_groups(m, explain=True); matrix_optimizer(m, explain=True)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | ASCII, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert "3 ? 4" in done.stdout

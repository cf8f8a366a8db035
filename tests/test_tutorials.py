"""What the tutorials print, where it is the same everywhere; tests/test_docs.py runs all of their code."""

import re

from tests.test_docs import ROOT


def test_the_tutorial_prints_the_table_of_its_model(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "tutorial-gpt.md").read_text(encoding="utf-8")
    *codes, printed = re.findall(r"^```\w+\n(.*?)^```$", page.partition("\n## Training")[0], re.MULTILINE | re.DOTALL)
    names = {"__name__": "docs"}
    for code in codes:
        exec(code, names)
    assert capsys.readouterr().out == printed

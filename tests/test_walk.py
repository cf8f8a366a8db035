"""The walk of a gradient in docs/inside.md is the way that a step takes."""

import re
import sys

import pytest
import torch

from matrix_adagrad import RowAdaGrad, native
from tests.test_docs import ROOT, SOURCE

PACKAGE = SOURCE / "matrix_adagrad"
HOP = re.compile(r"^\| (\d+) \| `([\w.]+)` \(`([\w./]+)`\)", re.MULTILINE)


def hops(heading):
    """The functions and files of a table on the page."""
    page = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
    rows = HOP.findall(page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])
    assert [int(number) for number, _, _ in rows] == [*range(1, len(rows) + 1)]
    return [(name, file) for _, name, file in rows]


def calls(function):
    """The functions of this package that run, in order, with their files. A class runs its constructor."""
    seen = []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/"):
            seen.append((code.co_qualname.removesuffix(".__init__"), code.co_filename[len(f"{PACKAGE}/") :]))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.skipif(bool(native.missing()), reason="the kernels were not built")
def test_steps_go_where_the_page_says():
    native.matrices.matrix_layout.cache_clear()
    layer = torch.nn.Linear(4, 3, bias=False)
    optimizer = RowAdaGrad(layer.parameters(), lr=0.1)
    for heading in ("The walk of a gradient", "The second step is shorter"):
        optimizer.zero_grad()
        layer(torch.randn(8, 4)).square().sum().backward()
        taken = iter(calls(optimizer.step))
        for hop in hops(heading):
            assert not hop[1].endswith(".py") or hop in taken, f"{heading}: {hop} does not come after those before it"


def body(name, file):
    """The C function of that name."""
    source = (PACKAGE / file).read_text(encoding="utf-8")
    found = re.search(rf"^[\w *]*\b(?:NAME\({name}\)|{name})\([^;]*?\n{{.*?^}}", source, re.MULTILINE | re.DOTALL)
    assert found, f"{file} has no {name}"
    return found[0].partition("\n{")[2]


def test_every_kernel_function_of_the_walk_is_called_by_one_before_it():
    functions = [hop for hop in hops("The walk of a gradient") if not hop[1].endswith(".py")]
    assert len(functions) == 9
    for number, (name, _) in enumerate(functions[1:], 1):
        assert any(re.search(rf"\b{name}\(", body(*caller)) for caller in functions[:number]), name


def test_what_the_page_names_exists():
    page = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w.]+)` \(`([\w./]+)`", page)
    assert len(named) > 25
    for name, file in named:
        source = (PACKAGE / file).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"(def|class|settings|int64_t|void) (NAME\()?{part}\b[(:)]", source), f"{file}: {part}"

"""Check an installed wheel in an otherwise empty venv: python smoke.py README.md kernels|pure."""

import importlib.util
import re
import sys
from pathlib import Path

import torch

import matrix_adagrad

readme, kind = sys.argv[1:]
folder = Path(matrix_adagrad.__file__).parent
assert "site-packages" in folder.parts, folder
for name in ("py.typed", *(f"pages/{file}" for file in ("template.html", "style.css", "heat.js", "page.js"))):
    assert (folder / name).exists(), name
assert not list(folder.glob("native/*.[ch]"))
# The reproduction, the benchmarks and the tests belong to the repository, not to the wheel.
for name in ("bench", "benchmarks", "experiments", "reproduction", "tests"):
    assert importlib.util.find_spec(f"matrix_adagrad.{name}") is None, name
    assert not (folder.parent / name).exists(), name
assert bool(matrix_adagrad.native.missing()) == (kind == "pure"), matrix_adagrad.native.missing()
for example in re.findall(r"^```python\n(.*?)^```$", Path(readme).read_text(encoding="utf-8"), re.M | re.S):
    names = {}
    exec(example, names)
    model, optimizer = names["model"], names["optimizer"]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.arange(8)).square().mean().backward()
    optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)), example
print(f"smoke: the README's examples took a step with matrix-adagrad {matrix_adagrad.__version__}, {kind}")

"""Check an installed wheel in an otherwise empty venv: python smoke.py README.md kernels|pure."""

import importlib.util
import re
import sys
from pathlib import Path

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
example = re.search(r"^```python\n(.*?)^```$", Path(readme).read_text(encoding="utf-8"), re.M | re.S)[1]
names = {}
exec(example, names)
assert names["optimizer"].state[names["model"].weight]["sum"].shape == (100_000, 1)
print(f"smoke: the README's example ran with matrix-adagrad {matrix_adagrad.__version__}, {kind}")

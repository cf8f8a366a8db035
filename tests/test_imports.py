"""What imports what: the product never its reproduction or its benchmarks, and inside of it in one direction."""

import ast
import graphlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
# A layer may import those before it, and what stands for itself; not those after it, nor its neighbours.
LAYERS = (
    ("geometry", "native"),
    ("domains", "bags"),
    ("optim", "online"),
    ("advisor", "checkpoints", "interop", "tables"),
    ("demos",),
    ("cli",),
)
FREE = ("version", "files", "text", "intervals", "optional", "terminal", "datasets", "pages", "torch_private")
BESIDE = {("interop", "advisor")}  # neighbours of a layer that import one another


def imported(file):
    """The modules that a file imports, anywhere in it; a name that is imported may be one."""
    for statement in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            assert not statement.level, f"{file} has a relative import"
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def part(module):
    """The module or package directly under matrix_adagrad, or None."""
    parts = module.split(".")
    known = {name for layer in LAYERS for name in layer} | set(FREE)
    return parts[1] if parts[0] == "matrix_adagrad" and len(parts) > 1 and parts[1] in known else None


def edges():
    """Pairs of parts of the package, the second of which the first imports."""
    for file in sorted((SOURCE / "matrix_adagrad").rglob("*.py")):
        inside = part(".".join(file.relative_to(SOURCE).with_suffix("").parts))
        for module in imported(file):
            if inside and (other := part(module)) and other != inside:
                yield inside, other


@pytest.mark.parametrize("outside", ["reproduction", "benchmarks", "tests", "examples", "docs"])
def test_the_product_imports_nothing_that_is_not_in_its_wheel(outside):
    for file in (SOURCE / "matrix_adagrad").rglob("*.py"):
        assert outside not in {module.partition(".")[0] for module in imported(file)}, file


def test_every_part_of_the_package_has_its_place():
    there = {path.stem for path in (SOURCE / "matrix_adagrad").iterdir() if path.suffix == ".py" or path.is_dir()}
    known = {name for layer in LAYERS for name in layer} | set(FREE)
    assert there - {"__pycache__", "__init__", "__main__", "py"} <= known


def test_imports_go_one_way():
    place = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    found = set(edges())
    assert {("domains", "geometry"), ("optim", "domains"), ("advisor", "optim"), ("cli", "advisor")} <= found
    for inside, other in sorted(found):
        if inside in FREE:
            assert other in FREE, f"{inside} stands for itself, and imports {other}"
        elif other not in FREE:
            assert place[other] < place[inside] or (inside, other) in BESIDE, f"{inside} imports {other}"


def test_no_module_of_the_optimizers_imports_one_that_imports_it():
    files = {".".join(file.relative_to(SOURCE).with_suffix("").parts): file for file in SOURCE.glob("*/optim/**/*.py")}
    needs = {
        module: {name.rpartition(".")[0] if name not in files else name for name in imported(file)} & {*files}
        for module, file in files.items()
    }
    assert "matrix_adagrad.optim.step.project" in needs["matrix_adagrad.optim.sharding"]
    graphlib.TopologicalSorter(needs).prepare()  # it refuses cycles


def test_the_wheel_holds_the_product_alone():
    """`.ci/smoke.py` looks at the wheel that was built."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert settings["packages"]["find"] == {"where": ["src"]}
    assert [path.name for path in SOURCE.iterdir() if path.suffix != ".egg-info"] == ["matrix_adagrad"]
    folders = {path.name for path in SOURCE.rglob("*") if path.is_dir()}
    assert not folders & {"bench", "benchmarks", "experiments", "reproduction", "tests"}


def test_no_module_starts_pip_but_the_one_that_fetches_data():
    started = [file.stem for file in (SOURCE / "matrix_adagrad").rglob("*.py") if "subprocess" in set(imported(file))]
    assert started == ["movielens"]

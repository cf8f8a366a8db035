"""The API reference has everything that is public, and nothing else; read, since some modules need other packages."""

import ast
import re
from functools import cache

from tests.test_docs import PAGES, ROOT, SOURCE, blocks

RELEASES, REFERENCE = ROOT / "docs" / "releases.md", ROOT / "docs" / "api.rst"
DIRECTIVE = re.compile(r"^\.\. (?:auto|py:)(?:class|function|data):: ([\w.]+)", re.MULTILINE)


def modules(introduction):
    """The modules that the bullet of docs/releases.md with these words names, with their paths."""
    text = " ".join(RELEASES.read_text(encoding="utf-8").split())
    (bullet,) = re.findall(rf"- {re.escape(introduction)}(.*?)(?:;|\. )", text)
    named = [name for name in re.findall(r"`([\w.]+)`", bullet) if name not in ("matrix_adagrad", "__all__")]
    assert named
    return ["matrix_adagrad." + name for name in named]


def promised():
    return ["matrix_adagrad", *modules("whatever `matrix_adagrad` and its modules")]


def helpers():
    return modules("helpers of the examples:")


@cache
def tree(module):
    folder = SOURCE.joinpath(*module.split("."))
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")) if file.exists() else None


def listed(module):
    """The module's ``__all__``."""
    (found,) = (
        statement.value
        for statement in tree(module).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
    )
    return ast.literal_eval(found)


def origin(path):
    """The path where a name is defined, from one that it can be imported from."""
    module, _, name = path.rpartition(".")
    assert tree(module), f"there is no module {module}"
    for statement in tree(module).body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if name == (alias.asname or alias.name) and statement.module.startswith("matrix_adagrad"):
                    return origin(f"{statement.module}.{alias.name}")
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement]
        if name in [getattr(target, "name", getattr(target, "id", None)) for target in targets]:
            return path
    raise AssertionError(f"{module} has no {name}")


def documented():
    """What the reference documents: where each name is defined, from the path on the page."""
    paths = DIRECTIVE.findall(REFERENCE.read_text(encoding="utf-8"))
    paths = [path if path.startswith("matrix_adagrad.") else f"matrix_adagrad.{path}" for path in paths]
    assert len(paths) == len(set(paths)), "the reference has a name twice"
    return {origin(path): path for path in paths}


def test_the_reference_has_every_public_name():
    shown = documented()
    public = {f"{module}.{name}" for module in [*promised(), *helpers()] for name in listed(module)}
    missing = sorted(path for path in public if origin(path) not in shown)
    assert not missing, f"docs/api.rst lacks {', '.join(missing)}"


def test_the_reference_gives_paths_that_stay():
    """Others may be shown too, such as the class of a handle that a function returns, but under their modules."""
    public = {origin(f"{module}.{name}"): f"{module}.{name}" for module in promised() for name in listed(module)}
    for defined, path in documented().items():
        module, _, name = path.rpartition(".")
        assert defined not in public or (module in promised() and name in listed(module)), f"{path} is an inner path"


def test_what_the_reference_shows_has_a_description():
    for path in documented():
        module, _, name = path.rpartition(".")
        found = [each for each in tree(module).body if getattr(each, "name", None) == name]  # overloads have none
        assert not found or any(map(ast.get_docstring, found)), path


def test_the_pages_and_examples_use_what_is_public():
    public = {f"{module}.{name}" for module in [*promised(), *helpers()] for name in listed(module)}
    examples = [file.read_text(encoding="utf-8") for file in (ROOT / "examples").glob("*.py")]
    used = set()
    for code in [*(code for page in PAGES for code in blocks(page, "python")), *examples]:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("matrix_adagrad"):
                used |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert "matrix_adagrad.RowAdaGrad" in used
    assert not {path for path in used - public if not (SOURCE / path.replace(".", "/")).is_dir()}

"""Every Python block of the README and of the documentation runs as printed."""

import ast
import json
import re
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from matrix_adagrad import EmbeddingBag, __version__
from reproduction.experiments import EXPERIMENTS
from reproduction.games.analysis import CONDITIONS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages whose code needs other packages: tests/integration/test_docs.py runs it.
ELSEWHERE = {"migrating-torchrec.md", "optax.md", "trainers.md"}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def run(page):
    names = {"__name__": "docs"}
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name)
def test_code_runs_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page)


needs_a_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="torch.compile needs a C++ compiler here"
)


@needs_a_compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # which the compiler looks at
def test_torch_still_overwrites_gradients_of_lookups_that_are_compiled():
    """If this fails, torch (2.13 when it was written) has mended it: remove the warning under "Compiling", and this."""
    (example,) = blocks(ROOT / "docs" / "optimizers.md", "py")  # not "python", since it needs a C++ compiler
    exec(example, {})


@needs_a_compiler
@pytest.mark.parametrize("cls", [nn.EmbeddingBag, EmbeddingBag], ids=lambda cls: cls.__module__)
def test_lookups_of_bags_can_be_compiled(cls):
    torch._dynamo.reset()
    users, items = (cls(10, 4, mode="sum", sparse=True) for _ in range(2))
    tower = nn.Linear(4, 4)
    who, what = torch.randint(10, (8, 1)), torch.randint(10, (8, 1))

    def score(who, what):
        return (tower(users(who)) * tower(items(what))).sum()

    gradients = []
    for run in (score, torch.compile(score)):
        run(who, what).backward()
        gradients.append([table.weight.grad.to_dense() for table in (users, items)])
        users.zero_grad()
        items.zero_grad()
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("page", "number"), [("README.md", 2), ("docs/whole-model.md", 0), ("docs/geometry.md", 2)])
def test_the_page_prints_what_its_example_prints(page, number, capsys):
    example, printed = blocks(ROOT / page, "python")[number], blocks(ROOT / page, "text")[0]
    exec(example, {})
    assert capsys.readouterr().out == printed


def test_the_page_has_the_claims_of_the_published_run():
    publish = runpy.run_path(str(ROOT / "docs" / "publish.py"))
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    published = json.loads((ROOT / "docs" / "results" / "claims.json").read_text(encoding="utf-8"))
    assert publish["with_claims"](page, published) == page
    assert [claim["id"] for claim in published["claims"]] == [
        claim.id for experiment in EXPERIMENTS.values() for claim in experiment.claims
    ]
    assert not published["quick"]


def figures(claim, circumstances):
    """What the published run found, in words, and the numbers in it."""
    published = json.loads((ROOT / "docs" / "results" / "claims.json").read_text(encoding="utf-8"))
    checks = next(each["figures"] for each in published["claims"] if each["id"] == claim)
    said = next(check["figures"] for check in checks if check["if"] == circumstances)
    return said, [float(number) for number in re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?", said)]


def says(page, sentence, *values):
    """Check that a page has the sentence, with these values, rounded, wherever it has #."""
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    found = re.search(re.escape(sentence).replace(r"\#", r"(\d+(?:\.\d+)?)"), text)
    assert found, f"{page} does not say: {sentence}"
    for number, value in zip(found.groups(), values, strict=True):
        unit = 10 ** -len(number.partition(".")[2])
        assert float(number) == pytest.approx(value, abs=0.51 * unit), sentence


def test_the_summary_of_movielens_agrees_with_the_published_figures():
    default = "the default setting"
    says(
        "reproduction.md",
        "Row-AdaGrad ends # [#, #] below AdaGrad, # % of the RMSE",
        *figures("rows-beat-entries", default)[1],
    )
    first, second, _ = figures("rows-lead-early", default)[1][::4]
    says("reproduction.md", "by # after the first epoch and # after the second", first, second)
    first, second, _ = figures("rows-lead-early", f"{default}, each learning rate chosen for that epoch")[1][::4]
    says("reproduction.md", "lead is #, # and nothing after 1, 2 and 5 epochs", first, second)


def test_the_summary_of_networks_and_of_structure_agrees_with_the_published_figures():
    ratios = []
    for depth in (5, 15, 25):
        said, _ = figures("larger-rates", f"setting A, {depth} layers")
        adam, row = (float(re.search(rf"{name} trains up to ([\d.]+)", said)[1]) for name in ("Adam", "Momentum"))
        ratios.append(row / adam)
    says("reproduction.md", "rows train is # to # times Adam's", min(ratios), max(ratios))
    excesses = [
        figures("alignment", f"{task}: loss, different {what}")[1][0]
        for task in ("training", "training, proportional solution")
        for what in ("frequency", "size")
    ]
    says("reproduction.md", "columns end # to # % above them in loss", min(excesses), max(excesses))


def test_the_counts_of_games_that_meet_a_condition_agree_with_the_published_figures():
    broken, bounds, hold, without, *_, regret, bound = figures("theorem-1", "as printed, without a condition")[1]
    met = [figures("theorem-1", name)[1][1] / 2 for name in CONDITIONS]
    sentence = "In the # games that `python -m reproduction games` plays with rows, the condition of §4.2 is met in #, "
    says("theory.md", f"{sentence}that of App. E in #, and the one for every row in #", bounds / 2, *met)
    says("theory.md", "Of the # bounds in the # games that meet none, # hold", without, without / 2, hold)
    says("reproduction.md", "δ = 10⁶, the regret is # and the bound #", regret, bound)
    assert broken == without - hold  # no game that meets a condition breaks the theorem


def measured(page, part, row, column):
    """A number from a table that a benchmark printed: of the first row in this part that begins with these words."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(part)[2]
    line = next(line for line in text.splitlines() if line.strip().startswith(row))
    return float(re.findall(r"(?<![\w.])[-+]?[\d,.]*\d(?![\w.])", line.strip()[len(row) :])[column].replace(",", ""))


def test_the_three_figures_of_the_first_pages_agree_with_what_was_measured():
    table = "1,000,000 × 64 table:"
    rows = ("RowAdaGrad ", "torch Adagrad, fused", "torch Adam, fused")
    states = [measured("benchmarks.md", table, row, -1) * 1_000_000 * 64 * 4 / 1e6 for row in rows]
    ratios = [measured("benchmarks.md", "8192 × 8192 matrix:", row, 1) for row in rows]
    gpt = [
        measured("whole-model.md", "<!-- begin: gpt-losses -->", row, 5)
        for row in ("| matrix_optimizer, at its defaults", "| AdamW", "| Muon + AdamW")
    ]
    says("../README.md", "1,000,000 × 64 table, float32 | # MB | # MB | # MB |", *states)
    says("../README.md", "relative to fused SGD (2 cores) | # | # | # |", *ratios)
    says("../README.md", "its defaults end at a held-out loss of #. AdamW, tuned, ends at #", *gpt[:2])
    says("../README.md", "Muon + AdamW, tuned, at # with", gpt[2])
    says("index.md", "**# MB** of state for a table of 1,000,000 × 64", states[0])
    says("index.md", "AdaGrad keeps # MB and Adam # MB", *states[1:])
    says("index.md", "**# ×** the time of fused SGD for a Row-AdaGrad step on an 8192 × 8192 matrix", ratios[0])
    says("index.md", "fused AdaGrad takes # × that time and its fused Adam # ×", *ratios[1:])
    says("index.md", "**#** is the held-out loss of a word-level GPT", gpt[0])
    says("index.md", "AdamW, tuned, ends at # with ten times the state", gpt[1])
    assert measured("whole-model.md", "<!-- begin: gpt-losses -->", "| matrix_optimizer, at its defaults", -1) == 10


def public_names():
    """What the modules of the package call public, with its path; read, since some modules need other packages."""
    for file in (SOURCE / "matrix_adagrad").rglob("*.py"):
        module = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
                yield from (f"{module}.{name}" for name in ast.literal_eval(statement.value))


def test_the_section_of_the_readme_that_first_names_something_says_where_it_is_imported_from():
    public, shown = set(public_names()), set()
    names = {path.rpartition(".")[2] for path in public} - {"matrix_adagrad"}
    for section in re.split(r"^## ", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE):
        paths = re.findall(r"matrix_adagrad(?:\.\w+)+", section)
        for module, imported in re.findall(r"from (matrix_adagrad[\w.]*) import ([\w, ]+)", section):
            of_module = {f"{module}.{name}" for name in imported.split(", ")}
            assert of_module <= public, f"{of_module - public} cannot be imported"
            paths += of_module
        shown |= {path.rpartition(".")[2] for path in public for whole in paths if f"{whole}.".startswith(f"{path}.")}
        prose = re.sub(r"^```.*?^```$", "", section, flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`([^`]+)`", prose):
            unexplained = set(re.findall(r"(?<![\w.\"-])[A-Za-z_]\w*(?![\w=])", code)) & names - shown
            assert not unexplained, f"{code}: where is {unexplained} imported from?"


def test_the_pictures_are_drawn_from_the_geometries_as_they_are():
    for name, draw in runpy.run_path(str(ROOT / "docs" / "pictures.py"))["PICTURES"].items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == draw()


def test_the_changelog_begins_with_the_version():
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1] == __version__


def test_the_citation_is_that_of_the_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_page_on_kernels_names_every_constant():
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    sources = sorted((SOURCE / "matrix_adagrad" / "native").glob("*.[ch]"))
    found = [
        re.findall(r"(?:^ +|enum { )([A-Z][A-Z\d_]+) = ", file.read_text(encoding="utf-8"), re.M) for file in sources
    ]
    constants = {constant for own in found for constant in own}
    assert {"L1_BYTES", "TILE_COPIES"} <= constants
    assert not {constant for constant in constants if f"`{constant}`" not in page}


def test_every_page_is_in_the_table_of_contents():
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert page.stem == "index" or f"\n{page.stem}\n" in contents

"""The advisor's page in a real browser, and its demos as a user starts them."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from matrix_adagrad.advisor import Plan, Task, advise
from matrix_adagrad.advisor.advice_page import document
from tests.integration.pages import drawn, fits, names

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it starts a browser and fetches MovieLens: make test-integrations", allow_module_level=True)

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def advice():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    task = Task(
        lambda: nn.ModuleDict({NASTY: nn.Linear(8, 100), "out": nn.Linear(100, 4)}),
        lambda model, rows: (model["out"](torch.tanh(model[NASTY](x[rows]))) - x[rows, :4]).square().mean(),
        lambda _: torch.randperm(64).split(16),
        name=NASTY,
    )
    return advise(task, steps=16, seeds=2)


def test_the_page_shows_the_plan_the_race_and_the_heat_maps(advice, show):
    shown = show(document(advice))
    finalists = {standing.name for standing in advice.race.finalists}
    everyone = {outcome.name for outcome in advice.race.outcomes}
    for name, expected in (("race-curves", finalists), ("race-rates", everyone), ("race-state", finalists)):
        shown.wait_for_selector(f"[data-leading={name}] .main-svg")
        assert set(names(drawn(shown, name))) == expected
    assert shown.locator("#standings tbody tr").count() == len(advice.race.standings) + 1  # and the start
    assert shown.locator("#standings").get_by_text("the start").count() == 1
    assert shown.locator("#standings").get_by_text("← the plan").count() == 1
    assert shown.locator("#choices tbody tr").count() == 4
    heat = drawn(shown, "squared-gradients")
    heat.get_by_role("radio", name="out.weight").check()
    rows, columns = heat.locator(".plot").evaluate("plot => plot.data.map(trace => trace.z.length)")
    assert (rows, columns) == (4, 34)  # 100 columns, three together
    assert advice.plan.verdict in shown.locator(".summary").text_content()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_it_fits_every_screen(advice, show, width, scheme):
    shown = show(document(advice), width=width, color_scheme=scheme)
    drawn(shown, "squared-gradients")
    assert fits(shown)


@pytest.mark.parametrize("demo", ["movielens", "mlp", "lm"])
def test_the_demos_run(demo, tmp_path):
    command = [sys.executable, "-W", "error", "-m", "matrix_adagrad", "advise", "--demo", demo, "--family", "adagrad"]
    command += ["--steps", "16", "--seeds", "2", "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "steps: " in done.stderr
    assert json.loads(done.stdout)["plan"] == Plan.load(tmp_path / "plan.json").to_dict()
    assert (tmp_path / "advice.html").stat().st_size > 10_000

"""The whole way, as a user goes it: MovieLens is fetched, the quick run runs, and its report is opened."""

import json
import os
import subprocess

import pytest

from tests.reproduction.processes import COMMAND, ENVIRONMENT

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it fetches MovieLens and starts a browser: make test-integrations", allow_module_level=True)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduce")
    command = [*COMMAND, "--quick", "--out", str(out)]
    first = subprocess.run(command, env=ENVIRONMENT, capture_output=True, encoding="utf-8")
    assert first.returncode == 0, first.stderr
    assert "\033" not in first.stdout + first.stderr  # colours and bars are for terminals
    written = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    second = subprocess.run(command, env=ENVIRONMENT, capture_output=True, encoding="utf-8")
    assert "cells to run, 0 already stored" not in second.stdout
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == written
    return out


def test_every_claim_that_the_quick_run_can_judge_is_judged(out):
    claims = json.loads((out / "claims.json").read_text(encoding="utf-8"))
    verdicts = {claim["id"]: claim["verdict"] for claim in claims["claims"]}
    assert claims["quick"]
    assert verdicts["theorem-1"].startswith("holds only if: §4.2's condition is met; or App. E's is; or δ ≤ ")
    assert verdicts["tighter-if-row-sparse"] == "holds only if: Frobenius ball; or row balls"
    assert verdicts["storage"] == verdicts["memory"] == verdicts["transposition"] == "holds"
    assert verdicts["entries-fail-at-25"] == "holds"
    assert [name for name, verdict in verdicts.items() if verdict == "not run"] == ["entries-fail-at-22"]


def test_the_report_draws_every_figure_and_its_controls_work(out, browser):
    complaints = []
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        shown = context.new_page()
        shown.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.goto((out / "report.html").as_uri())
        figures = shown.locator("figure.chart, .chart").evaluate_all("charts => charts.map(chart => chart.id)")
        assert {"movielens", "movielens-lr", "mlp-depth", "mlp-a-0.01", "mlp-a-0.001"} <= set(figures)
        for name in filter(None, figures):
            shown.locator(f"[id='{name}']").scroll_into_view_if_needed()
            shown.wait_for_selector(f"[id='{name}'] .main-svg")
            assert (out / "figures" / f"{name}.png").exists()
            assert (out / "figures" / f"{name}.svg").exists()
        chart = shown.locator("[id='mlp-a-0.01']")
        chart.get_by_role("radio", name="15 layers").check()
        chart.get_by_role("button", name="Adam", exact=True).click()
        seen = chart.locator(".plot").evaluate("plot => plot.data.map(trace => trace.name).filter(Boolean)")
        assert "Adam" not in seen
        assert "Row-wise Momentum" in seen
        assert shown.locator(".claims tbody tr").count() == len(
            json.loads((out / "claims.json").read_text(encoding="utf-8"))["claims"]
        )
        assert shown.get_by_text("Quick run: fewer seeds and a coarser grid.").is_visible()
    assert not complaints

"""The benchmark runs, says what is missing, and writes what it found; its figures are for `make bench`."""

import json

import pytest
import torch

from benchmarks.measure import Times, peak_extra_resident_bytes
from benchmarks.speed.__main__ import main
from benchmarks.speed.cases import READING, Case, Measurement, _bars_of
from benchmarks.speed.peers import DENSE, Gap
from benchmarks.speed.tables import zipf


@pytest.mark.filterwarnings("ignore")  # of peers
def test_a_quick_run_prints_tables_and_bars_and_writes_its_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(DENSE, "a peer that is not there", DENSE["RowAdaGrad"].__class__(_missing, 3))
    assert main(["--quick", "--rounds", "2", "--out", str(tmp_path / "new" / "folder")]) == 0
    printed = capsys.readouterr().out
    assert "QUICK" in printed
    assert "The bars" in printed
    assert "gap  some-package: it is not installed" in printed
    report = json.loads((tmp_path / "new" / "folder" / "bench.json").read_text(encoding="utf-8"))
    assert report["machine"]["torch"] == torch.__version__
    assert {row["name"] for row in report["cases"][0]["rows"]} == {*DENSE, READING}
    assert all(row["gap"] or row["median"] > 0 for case in report["cases"] for row in case["rows"])
    assert len(report["bars"]) >= 20
    assert all(list(points.values()) for points in report["sizes"].values())


def _missing(_):
    raise Gap("some-package: it is not installed")


def test_a_ratio_is_of_medians_with_the_quartiles_of_single_rounds():
    mine, theirs = Times((1.0, 2.0, 9.0)), Times((1.0, 1.0, 1.0))
    ratio, low, high = mine.ratio_to(theirs)
    assert ratio == 2.0
    assert low < ratio < high


@pytest.mark.parametrize(("sign", "limit", "met"), [("≤", 2.0, True), ("<", 2.0, False), ("≥", 2.1, False)])
def test_a_bar_is_met_missed_or_a_gap(sign, limit, met):
    case = Case(
        "case", "b", 0, [Measurement("a", median=2.0), Measurement("b", median=1.0), Measurement("c", gap="not here")]
    )
    (bar,) = _bars_of("work", [case], "a", "b", sign, limit)
    assert (bar.measured, bar.met) == (2.0, met)
    (bar,) = _bars_of("work", [case], "a", "c", sign, limit)
    assert (bar.measured, bar.met) == (None, None)


def test_zipf_draws_rows_of_the_table_with_its_frequencies():
    rows = zipf(1.2, 10_000, 500, 200)
    assert 0 <= rows.min() <= rows.max() < 10_000
    counts = rows.flatten().bincount().sort(descending=True).values.double()
    weights = torch.arange(1, 10_001, dtype=torch.float64).pow(-1.2)
    expected = (weights / weights.sum() * rows.numel())[:5]
    assert ((counts[:5] - expected).abs() < 5 * expected.sqrt()).all()


def test_memory_outside_torch_is_measured_too():
    held = []
    extra = peak_extra_resident_bytes(lambda: held.append(b"x" * (8 << 20)))
    assert extra is None or 7 << 20 < extra < 32 << 20

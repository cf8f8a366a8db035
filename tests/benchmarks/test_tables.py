"""The benchmark of tables times steps, profiles them, and shares the machine; its figures are for the page."""

import time

import pytest
import torch

from benchmarks.speed.tables import FBGEMM, Shape
from benchmarks.tables import __main__ as command
from benchmarks.tables import profiled, shared
from matrix_adagrad import native

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")

SMALL = (Shape(2, 100, 4, 3, 2), Shape(1, 100, 8, 3, 2, 1.2))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(command, "SHAPES", SMALL)


def cells(printed, title="2 × 100 × 4, batch 3 × 2, uniform"):
    (row,) = [line for line in printed.splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.filterwarnings("ignore")  # of peers
def test_tables_are_timed_in_several_runs_with_a_ratio_of_each(capsys):
    assert command.main(["--runs", "2", "--rounds", "2"]) == 0
    torch_over_ours = cells(capsys.readouterr().out)[-3]
    assert len(torch_over_ours.split(",")) == 2
    assert all(float(ratio) > 0 for ratio in torch_over_ours.split(","))


@pytest.mark.filterwarnings("ignore")  # of peers
def test_a_profile_is_written_to_the_page_with_parts_that_add_up(tmp_path, monkeypatch, capsys):
    page = tmp_path / "recommenders.md"
    page.write_text("<!-- begin: tables-profile -->\n<!-- end: tables-profile -->\n", encoding="utf-8")
    monkeypatch.setattr(command, "DOCS", tmp_path)
    kernels = [native.load().matrix_adagrad_sum_bags, native.load().matrix_adagrad_bags_step]
    assert command.main(["--profile", "--rounds", "3", "--write"]) == 0
    found = dict(zip(profiled.HEAD, cells(page.read_text(encoding="utf-8")), strict=True))
    whole, *parts = (float(found[name]) for name in ("step, ms", "forward", "backward", "Python and autograd"))
    assert whole > 0
    assert sum(parts) == pytest.approx(whole, abs=0.02)
    assert kernels == [native.load().matrix_adagrad_sum_bags, native.load().matrix_adagrad_bags_step]
    assert cells(capsys.readouterr().out) == list(found.values())


def test_the_least_traffic_counts_each_touched_row_once():
    ids = torch.tensor([1, 2, 2, 2, 5, 5] + [7] * 6)
    row, line, sums = 16, 64, 2 * 3 * 4 * 4
    read = 2 * 8 * 12 + 12 * row
    assert profiled._moved(SMALL[0], ids) == read + 2 * sums + 4 * 2 * (row + line)


@pytest.mark.filterwarnings("ignore")  # of peers
def test_a_shared_machine_is_compared_to_the_same_steps_alone(capsys, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert command.main(["--shared", "--rounds", "2"]) == 0
    printed = capsys.readouterr().out
    alone, busy, ratio = map(float, cells(printed)[1:4])
    assert ratio == pytest.approx(busy / alone, rel=0.5)
    assert len(cells(printed)) == len(shared.HEAD)
    assert "Next to 1 busy processes on 1 cores" in printed


def test_a_contestant_that_is_not_there_has_no_figures(monkeypatch):
    def missing(*_):
        raise shared.Gap("not installed")

    monkeypatch.setitem(shared.CONTESTANTS, FBGEMM, missing)
    assert shared.slowdowns(SMALL[0], 2, 1)[4:] == ["–", "–", "–"]


def test_busy_processes_compute_until_the_end_of_the_block():
    with shared.busy_processes(2) as processes:
        assert [process.is_alive() for process in processes] == [True, True]
        time.sleep(0.1)
        assert [process.is_alive() for process in processes] == [True, True]
    assert [process.is_alive() for process in processes] == [False, False]


def test_a_page_without_a_place_for_the_table_is_found_out_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "DOCS", tmp_path)
    monkeypatch.setattr(command, "step_of_tables", lambda *_: pytest.fail("this is work"))
    (tmp_path / "recommenders.md").write_text("a page", encoding="utf-8")
    with pytest.raises(SystemExit, match="the page has no block for tables-shared"):
        command.main(["--shared", "--write"])

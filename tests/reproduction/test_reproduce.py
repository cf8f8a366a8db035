"""`python -m reproduction`: the same bytes however often it is broken off, and words for everything that goes "
"wrong."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest

from matrix_adagrad import cli, terminal
from matrix_adagrad.files import write
from reproduction import cells, progress, runner
from reproduction.__main__ import WHAT, main
from reproduction.experiments import EXPERIMENTS, Results, judge
from reproduction.games import sweep as games
from reproduction.movielens import factorisation
from reproduction.movielens import sweep as movielens
from reproduction.networks import mlp
from reproduction.networks import sweep as networks
from reproduction.structure import sweep as structure
from tests.reproduction import fakes
from tests.reproduction.movielens.fakes import ratings
from tests.reproduction.processes import ENVIRONMENT

TINY = {
    "games": games.Size(((3, 2, 2), (2, 3, 2)), 5, ((2, 3),), 5),
    "structure": replace(structure.QUICK, rounds=3, seeds=2, tuning=1, shapes=((3, 2),), repeats=0),
    "movielens": movielens.Size(2, 2, 0, False, 2, (movielens.DEFAULT,)),
    "networks": networks.Size(2, 2, (2, 3), (), ("A",), rungs={3: range(3)}),
}
CLAIMS = [claim for experiment in EXPERIMENTS.values() for claim in experiment.claims]
# The same in a process of its own.
TINY_GAMES = f"""
from dataclasses import replace
from reproduction.experiments import EXPERIMENTS
from reproduction.games.sweep import Size
EXPERIMENTS["games"] = replace(EXPERIMENTS["games"], quick={TINY["games"]})
"""


@pytest.fixture(name="tiny")
def _tiny(monkeypatch):
    """A reproduction that takes seconds, on ratings that are drawn."""
    make_tiny(monkeypatch)


@pytest.fixture(name="whole_run", scope="module")
def _whole_run(tmp_path_factory):
    """The folder of a tiny reproduction that nothing broke off: to be read and copied only."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_tiny(monkeypatch)
        assert run(folder) == 0
    return folder


def make_tiny(monkeypatch):
    drawn = ratings()
    for name, size in TINY.items():
        monkeypatch.setitem(EXPERIMENTS, name, replace(EXPERIMENTS[name], quick=size))
    monkeypatch.setattr(mlp, "SETTINGS", {"A": replace(mlp.SETTINGS["A"], steps=20)})
    monkeypatch.setattr(factorisation, "_ratings", lambda _: drawn)
    monkeypatch.setattr(runner, "movielens", lambda _: drawn)


def results(folder):
    """What a run leaves behind, but for the cells."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and "cells" not in file.parts]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def run(folder, *options, what="all"):
    return main([what, "--quick", "--workers", "1", "--out", str(folder), *options])


@pytest.mark.usefixtures("tiny")
def test_a_run_leaves_claims_figures_data_and_a_page_and_a_second_one_the_same(tmp_path, capsys):
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert f"report: {tmp_path / 'report.html'}" in printed
    assert "QUICK RUN" in printed
    first = results(tmp_path)
    assert {"claims.json", "report.html", "figures/movielens.png", "figures/movielens.svg", "data/games.csv"} <= set(
        first
    )
    assert b"QUICK RUN" in first["figures/movielens.svg"]
    assert run(tmp_path) == 0
    assert "0 cells to run" in capsys.readouterr().out
    assert results(tmp_path) == first
    assert run(tmp_path, "--fresh") == 0
    assert ", 0 already stored" in capsys.readouterr().out
    assert results(tmp_path) == first


@pytest.mark.usefixtures("tiny")
def test_files_of_others_are_left_alone(tmp_path):
    others = [tmp_path / name for name in ("data/u.data", "figures/thesis.png", "cells/mine.json", "cells/a-b.json")]
    for file in others:
        write(file, "mine")
    assert run(tmp_path, "--fresh", what="games") == 0
    assert run(tmp_path, "--fresh", what="games") == 0
    assert {file.read_text(encoding="utf-8") for file in others} == {"mine"}


@pytest.mark.usefixtures("tiny")
def test_half_of_another_experiment_is_left_out_of_the_report(whole_run, tmp_path, capsys):
    shutil.copytree(whole_run, tmp_path, dirs_exist_ok=True)
    for file in list(tmp_path.glob("cells/mlp-*.json"))[1:]:
        file.unlink()
    for file in list(tmp_path.glob("cells/factorisation-*.json"))[:1]:
        file.unlink()
    capsys.readouterr()
    assert run(tmp_path, "--json", what="games") == 0
    verdicts = {claim["id"]: claim["verdict"] for claim in json.loads(capsys.readouterr().out)["claims"]}
    assert verdicts["storage"] == verdicts["rows-train-at-25"] == "not run"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ["section-networks" in page, "section-movielens" in page, "section-games" in page] == [False, False, True]


@pytest.mark.usefixtures("tiny")
def test_a_run_that_is_broken_off_anywhere_goes_on_and_ends_with_the_same_bytes(
    whole_run, tmp_path, capsys, monkeypatch
):
    compute, done = cells.run, []

    def interrupted(cell, **how):
        done.append(cell)
        if len(done) % 7 == 0:
            raise KeyboardInterrupt
        return compute(cell, **how)

    monkeypatch.setattr(cells, "run", interrupted)
    codes = []
    while not codes or codes[-1]:
        codes.append(run(tmp_path / "broken"))
        assert len(codes) < 30
    assert set(codes[:-1]) == {130}
    assert "the same command resumes" in capsys.readouterr().err
    assert results(tmp_path / "broken") == results(whole_run)


@pytest.mark.usefixtures("tiny")
def test_a_part_keeps_what_the_others_found(whole_run, tmp_path, capsys):
    shutil.copytree(whole_run, tmp_path, dirs_exist_ok=True)
    first = results(tmp_path)
    assert run(tmp_path, what="games") == 0
    assert results(tmp_path) == first
    capsys.readouterr()
    assert run(tmp_path / "alone", "--json", what="games") == 0
    printed = json.loads(capsys.readouterr().out)
    found = {claim["id"]: claim["verdict"] for claim in printed["claims"]}
    assert found["degeneration"] == "holds"
    assert found["rows-beat-entries"] == "not run"
    assert printed["quick"] is True
    assert "section-movielens" not in (tmp_path / "alone" / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("tiny")
def test_without_the_extras_there_are_claims_and_data_and_a_word_on_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert run(tmp_path, what="games") == cli.INCOMPLETE
    shown, said = capsys.readouterr()
    assert "claims: " in shown
    assert said.splitlines()[-2:] == [
        "reproduction: figures/ needs matplotlib: pip install 'matrix-adagrad[reproduction]'",
        "reproduction: report.html needs plotly: pip install 'matrix-adagrad[reproduction]'",
    ]
    assert {file.partition("/")[0] for file in results(tmp_path)} == {"claims.json", "data"}


@pytest.mark.usefixtures("tiny")
def test_a_folder_that_cannot_be_written_is_named_before_anything_runs(tmp_path, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert run(tmp_path / "file" / "results") == 1
    assert capsys.readouterr().err == f"reproduction: Not a directory: {tmp_path / 'file' / 'results' / 'cells'}\n"


@pytest.mark.usefixtures("tiny")
def test_a_quick_run_does_not_overwrite_a_full_one(tmp_path, capsys):
    write(tmp_path / "claims.json", '{"quick": false}')
    assert run(tmp_path, what="games") == 1
    assert "has the results of a full run, and this is a quick run: give another --out" in capsys.readouterr().err
    assert set(results(tmp_path)) == {"claims.json"}


@pytest.mark.usefixtures("tiny")
def test_a_full_disk_ends_the_run_and_loses_nothing(tmp_path, capsys, monkeypatch):
    replace, count = os.replace, []

    def full(*paths):
        count.append(paths)
        if len(count) > 5:
            raise OSError(errno.ENOSPC, "No space left on device", str(paths[1]))
        replace(*paths)

    monkeypatch.setattr(os, "replace", full)
    assert run(tmp_path, what="games") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.part"))
    monkeypatch.setattr(os, "replace", replace)
    assert run(tmp_path, what="games") == 0
    assert "4 already stored" in capsys.readouterr().out


def test_data_that_cannot_be_had_are_named_before_anything_runs(tmp_path, capsys):
    nowhere = str(tmp_path / "nowhere")
    assert run(tmp_path / "out", "--data", nowhere, what="movielens") == 1
    assert nowhere in capsys.readouterr().err
    altered = tmp_path / "u.data"
    altered.write_text("1\t1\t5\t1\n", encoding="utf-8")
    assert run(tmp_path / "out", "--data", str(altered), what="movielens") == 1
    assert "is not MovieLens 100K: it has 1 ratings instead of 100,000" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--workers", "0"], "must be an integer ≥ 1, got 0"), (["everything"], "invalid choice: 'everything'")],
)
def test_wrong_arguments_say_what_is_wrong(options, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(options)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("tiny")
@pytest.mark.separate_process
def test_a_run_that_is_killed_goes_on(tmp_path):
    """The real program, with two workers; it ends with the bytes of a run in this process."""
    program = textwrap.dedent("""
        import sys
        from reproduction.__main__ import main
        if __name__ == "__main__":
            sys.exit(main(["games", "--quick", "--workers", "2", "--out", sys.argv[1]]))
    """)
    file = tmp_path / "program.py"
    file.write_text(TINY_GAMES + program, encoding="utf-8")

    def start(out):
        command = [sys.executable, file, tmp_path / out]
        return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    assert run(tmp_path / "whole", what="games") == 0
    with start("killed") as process:
        until = time.monotonic() + 60
        while len(list((tmp_path / "killed").glob("cells/*.json"))) < 12 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    with start("killed") as process:
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b", 0 already stored" not in printed
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


@pytest.mark.usefixtures("tiny")
@pytest.mark.separate_process
def test_a_locale_without_our_letters_changes_no_byte_and_protects_a_full_run_too(tmp_path):
    def run_in_ascii(out):
        program = TINY_GAMES + (
            "import sys; from reproduction.__main__ import main;"
            "sys.exit(main(['games', '--quick', '--json', '--workers', '1', '--out', sys.argv[1]]))"
        )
        environment = {**ENVIRONMENT, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        command = [sys.executable, "-c", program, str(out)]
        return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")

    assert run(tmp_path / "here", what="games") == 0
    done = run_in_ascii(tmp_path / "there")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["claims"]) == len(CLAIMS)
    assert results(tmp_path / "there") == results(tmp_path / "here")
    full = write(tmp_path / "full" / "claims.json", '{"quick": false, "claims": "√"}')
    refused = run_in_ascii(full.parent)
    assert (refused.returncode, results(full.parent)) == (1, {"claims.json": full.read_bytes()})
    assert "has the results of a full run, and this is a quick run: give another --out" in refused.stderr


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("damaged", [b"", b"{", b"\xff", b"[]", b"{}"])
def test_results_of_a_run_that_cannot_be_told_are_not_overwritten(tmp_path, capsys, damaged):
    write(tmp_path / "claims.json", damaged)
    assert run(tmp_path, what="games") == 1
    assert "claims.json cannot be read" in (said := capsys.readouterr().err)
    assert "give another --out, or delete it" in said
    assert results(tmp_path) == {"claims.json": damaged}


# ------------------------------------------------------------------------------------------------------------ printing


def test_the_table_for_a_terminal_fits_it_and_has_every_claim():
    verdicts = judge(fakes.played())
    printed = runner.table(verdicts, width=80)
    assert max(map(len, printed.splitlines())) <= 80
    assert sum(line.startswith(("holds", "only if", "does not", "undecided")) for line in printed.splitlines()) == len(
        CLAIMS
    )
    counted = progress.tally(verdicts)
    assert counted.startswith(f"{len(CLAIMS)} claims: ")


def test_colours_are_for_terminals_whose_users_want_them(monkeypatch):
    class Stream:
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.painter(Stream())("x", "red") == "\033[31mx\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.painter(Stream())("x", "red") == "x"
    assert terminal.painter(sys.stdout)("x", "red") == "x"


def test_a_watch_counts_cells_and_knows_the_best_rmse(monkeypatch):
    shown = []

    class Bar:
        disable, total, n = False, 0, 0

        def set_postfix_str(self, text):
            shown.append(text)

        def close(self):
            shown.append("closed")

    monkeypatch.setattr(terminal, "progress_bar", Bar)
    watch = progress.TerminalProgress(print)
    wanted = Results({}, is_quick=True).needed("movielens")
    watch.add([], wanted)
    for cell in wanted:
        watch.done(fakes.made_up(cell))
    watch.close()
    assert shown[0] == f"0 of {len(wanted)} cells"
    assert shown[-2].startswith(f"{len(wanted)} of {len(wanted)} cells, MovieLens: best RMSE 0.9")
    assert shown[-1] == "closed"
    assert watch.bar.n == pytest.approx(watch.bar.total)


def test_every_experiment_can_be_run_alone():
    assert list(WHAT) == ["all", *EXPERIMENTS]
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment.claims

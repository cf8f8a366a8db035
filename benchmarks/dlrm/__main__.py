"""``python -m benchmarks.dlrm``: 12 minutes on two cores; with ``--quick``, a few minutes to see that it works.

Steps are timed first. From that follows how many steps each training run can have for all runs to end in time; the
number is the same for all contestants, and is printed. A learning rate is tuned once for each algorithm, with as many
steps: AdaGrad by row is the same in our tables, FBGEMM's and TorchRec's, so that they have one rate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from benchmarks.dlrm.peers import OURS, PEERS, SHARDED, TORCHREC, TUNED_AS, gap
from benchmarks.dlrm.processes import PROCESSES, alone, together
from benchmarks.dlrm.training import FULL, QUICK, Result, Run, Setting, drawing_time, speeds, train, tune
from benchmarks.markdown import DOCS, markdown_table, update_page, with_blocks
from benchmarks.measure import Times
from matrix_adagrad.cli.arguments import add_threads, positive, write_error
from matrix_adagrad.cli.command import run_command, say
from matrix_adagrad.files import write
from matrix_adagrad.intervals import interval
from matrix_adagrad.text import json_text

__all__ = ["main"]

TUNING = 1000  # a seed that no other run has
START_SECONDS = 10  # of a process, until its imports are done and its tables made
FEWEST_STEPS = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dlrm",
        description="A DLRM on synthetic clicks: speed, AUC and memory, with the tables of each contestant.",
    )
    parser.add_argument("--seeds", type=positive, default=3, help="paired seeds, at least 2 (default: 3)")
    parser.add_argument("--minutes", type=positive, default=12, help="how long all may take (default: 12)")
    parser.add_argument(
        "--steps", type=positive, help=f"training steps, at least 10 (default: what fits, at most {FULL.steps})"
    )
    parser.add_argument("--rounds", type=positive, default=30, help="interleaved rounds, at least 2 (default: 30)")
    add_threads(parser)
    parser.add_argument("--quick", action="store_true", help="a tiny model, to check that it works")
    parser.add_argument("--out", type=Path, default=Path("results"), help="the folder for dlrm.json (default: results)")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/recommenders.md")
    parser.set_defaults(run=run, command="benchmarks.dlrm")
    return run_command(parser, arguments)


def run(options: argparse.Namespace) -> int:
    """Time, tune, train, and print and save the tables."""
    begin = time.monotonic()
    if problem := write_error(options.out):
        say(options, problem)
        return 1
    page = DOCS / "recommenders.md"
    if options.write:  # before the work: does the page have a place for the tables?
        with_blocks(page.read_text(encoding="utf-8"), {"dlrm": str})
    setting = QUICK if options.quick else FULL
    if options.steps:
        setting = replace(setting, steps=max(10, options.steps))
    seeds, rounds = range(2 if options.quick else max(2, options.seeds)), 5 if options.quick else max(2, options.rounds)
    gaps = {name: reason for name in {**PEERS, **SHARDED} if (reason := gap(name))}
    for name, reason in gaps.items():
        print(f"gap: {name}: {reason}")
    names = [name for name in PEERS if name not in gaps]
    times = alone(speeds, setting, dict.fromkeys(names, setting.rates[0]), rounds, options.threads)
    if not (options.steps or options.quick):
        seconds = {name: found.median for name, found in times.items()}
        left = 60 * options.minutes - (time.monotonic() - begin)
        setting = replace(
            setting,
            steps=_affordable(left, setting, seconds, alone(drawing_time, setting, options.threads), len(seeds)),
        )
    print(f"{setting.steps} steps of {setting.batch} examples in each training run", flush=True)
    blank = Run("", 0.0, TUNING, setting, options.threads)
    tuned = {name: alone(tune, replace(blank, contestant=name)) for name in PEERS if name in map(TUNED_AS.get, names)}
    lrs = {name: max(tuned[own], key=tuned[own].__getitem__) for name, own in TUNED_AS.items() if own in tuned}
    results: dict[str, list[Result]] = {name: [] for name in names}
    for seed in seeds:
        for name in names[seed % len(names) :] + names[: seed % len(names)]:  # so that none is always the first
            results[name].append(alone(train, replace(blank, contestant=name, lr=lrs[name], seed=seed)))
            _show(name, lrs[name], results[name][-1])
    each = max(1, options.threads // PROCESSES)  # threads of each of several processes
    sharded: dict[str, list[list[Result]]] = {name: [] for name in SHARDED if name not in gaps}
    for seed in seeds:
        for name in list(sharded)[:: 1 - 2 * (seed % 2)]:
            sharded[name].append(together(Run(name, lrs[name], seed, setting, each)))
            _show(f"{PROCESSES} processes, {name}", lrs[name], sharded[name][-1][0])
    made = _single_table(lrs, results, times, setting)
    made += f"\n\n{PROCESSES} processes:\n\n{_sharded_table(sharded)}"
    made += f"\n\n{setting.steps} steps of {setting.batch} examples. "
    made += f"{options.threads} threads, or {each} in each of {PROCESSES} processes; torch {torch.__version__}."
    print(f"\n{made}")
    saved = {
        "setting": asdict(setting),
        "threads": options.threads,
        "tuning": tuned,
        "runs": {name: [asdict(found) for found in by_seed] for name, by_seed in results.items()},
        "seconds": {name: found.seconds for name, found in times.items()},
        "sharded": {name: [[asdict(rank) for rank in ranks] for ranks in by_seed] for name, by_seed in sharded.items()},
    }
    print(f"\nwritten: {write(options.out / 'dlrm.json', json_text(saved))}")
    if options.write:
        update_page(page, {"dlrm": lambda: made})
    return 0


def _affordable(left: float, setting: Setting, seconds: dict[str, float], drawing: float, seeds: int) -> int:
    """The training steps that each run can have, given the seconds left, those of a step, and those to draw a batch."""
    whole = {name: own + drawing for name, own in seconds.items()}
    sharded = PROCESSES * whole.get(TORCHREC, 0.0)  # in each of several processes, with a part of the threads
    tuned = {TUNED_AS[name] for name in whole}
    of_step = setting.most_rates * sum(whole[name] for name in tuned)
    of_step += seeds * (sum(whole.values()) + len(SHARDED) * sharded)
    starts = len(tuned) + seeds * (len(whole) + (len(SHARDED) if sharded else 0))
    steps = int((left - START_SECONDS * starts) / of_step) - setting.held_out // setting.batch
    return min(max(FEWEST_STEPS, steps), setting.steps)


def _show(name: str, lr: float, found: Result) -> None:
    print(f"{name}, rate {lr:g}: AUC {found.auc:.4f} of {found.ceiling:.4f}", flush=True)


def _single_table(
    lrs: dict[str, float], results: dict[str, list[Result]], times: dict[str, Times], setting: Setting
) -> str:
    head = ["tables", "rate", "samples per second", f"time over {OURS}", "AUC", f"minus that of {OURS}"]
    head += ["peak memory, MiB", "without imports"]
    rows = []
    for name, found in results.items():
        ratio, low, high = times[name].ratio_to(times[OURS])
        differences = [a.auc - b.auc for a, b in zip(found, results[OURS], strict=True)]
        rows.append(
            [
                *(name, f"{lrs[name]:g}", f"{setting.batch / times[name].median:,.0f}"),
                "1" if name == OURS else f"{ratio:.2f} ({low:.2f}–{high:.2f})",
                f"{statistics.fmean(one.auc for one in found):.4f}",
                "–" if name == OURS else str(interval(differences)),
                *(_mebibytes([getattr(one, part) for one in found]) for part in ("peak_bytes", "grown_bytes")),
            ]
        )
    ceiling = statistics.fmean(one.ceiling for one in results[OURS])
    return markdown_table(head, rows) + f"\n\nThe highest possible AUC is {ceiling:.4f}."


def _sharded_table(sharded: dict[str, list[list[Result]]]) -> str:
    head = ["tables", "samples per second", "AUC", "peak memory of a process, MiB", "without imports"]
    rows = []
    for name, by_seed in sharded.items():
        first, ranks = [ranks[0] for ranks in by_seed], [rank for ranks in by_seed for rank in ranks]
        rows.append(
            [
                *(name, f"{statistics.median(one.samples_per_second for one in first):,.0f}"),
                f"{statistics.fmean(one.auc for one in first):.4f}",
                *(_mebibytes([getattr(one, part) for one in ranks]) for part in ("peak_bytes", "grown_bytes")),
            ]
        )
    return markdown_table(head, rows)


def _mebibytes(sizes: Sequence[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    return f"{statistics.median(known) / 2**20:,.0f}" if known else "–"


if __name__ == "__main__":
    sys.exit(main())

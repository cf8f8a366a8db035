"""Is the advisor's advice any good? Compares its plans with full-length runs of all candidates.

    python -m benchmarks.advice                  the test tasks, in about 12 minutes on 2 idle cores
    python -m benchmarks.advice --development    the tasks that were looked at while the rules were made
    python -m benchmarks.advice --write          write the stored results into docs/advisor.md

Each task has a length. The advisor races at this length, and once more at a quarter of it, from where it extrapolates.
Then every candidate is tuned at full length on other seeds. The best of them and the plan, with the plan's learning
rate, train on seeds that nothing has used before: the plan's loss above the best one's is what the advice costs.
A task's result is stored as soon as it is there; those that are stored are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from benchmarks import advice_tasks, advice_test_networks, advice_test_tables
from matrix_adagrad.advisor import Advice, Plan, Race, Task, advise
from matrix_adagrad.advisor.candidates import Candidate
from matrix_adagrad.advisor.training import start_score, train
from matrix_adagrad.advisor.tuning import Tuning
from matrix_adagrad.files import write
from matrix_adagrad.version import __version__

TEST = {**advice_test_tables.TASKS, **advice_test_networks.TASKS}
DEVELOPMENT = advice_tasks.TASKS
SHORTER = 4  # the second race has this part of the steps
SEEDS = 5  # runs of each finalist in the race
CLOSE, FURTHER = 6, 4  # the best so many candidates at full length are told apart on further seeds
OTHER, JUDGES = 100, range(200, 208)  # seeds that the advisor has not used: the first to tune with, and the judges
OUT = Path("results/advice")


def try_task(name: str) -> dict[str, Any]:
    """The advice on a task, and the full-length runs that judge it."""
    torch.set_num_threads(1)
    make, steps = (TEST | DEVELOPMENT)[name]
    started, task = time.process_time(), make()
    advice = advise(task, steps=steps, seeds=SEEDS)
    advised = time.process_time() - started
    short = advise(task, steps=steps // SHORTER, length=steps, seeds=SEEDS - 2)
    truth = full_length(task, steps, advice)
    best = min(truth, key=lambda found: found["score"])
    candidate = advice.race[best["candidate"]].outcome.candidate
    return {
        "task": name,
        "steps": steps,
        "advised_seconds": advised,
        "starts": [start_score(task, task.start(seed), seed, steps) for seed in JUDGES],
        "best": {"candidate": candidate.name, "lr": best["lr"], "scores": _judged(task, steps, candidate, best["lr"])},
        "advice": _advice(task, steps, advice),
        "short": _advice(task, steps, short),
        "truth": truth,
        "seconds": time.process_time() - started,
    }


def full_length(task: Task, steps: int, advice: Advice) -> list[dict[str, Any]]:
    """Every candidate at full length, with its own learning rate, on seeds that the advisor has not used.

    Tuning starts where the candidate's short runs point to, and goes on at full length until the best rate has worse
    neighbours. The best few candidates run on further seeds.
    """
    race = Race(task, steps=steps, seeds=FURTHER, first_seed=OTHER)
    found: list[dict[str, Any]] = []
    for outcome in advice.race.outcomes:
        shorter = {at: rung for at, rung in outcome.rungs.items() if at <= steps // 4}
        tuning = Tuning(outcome.candidate, {at: dict(rung) for at, rung in shorter.items()})
        race.tune(tuning, steps)
        found.append({"candidate": outcome.name, "lr": tuning.best_lr(steps), "tuned": tuning.score(steps)})
    for row in sorted(found, key=lambda row: row["tuned"])[:CLOSE]:
        row["scores"] = [run.score for run in race.runs(advice.race[row["candidate"]].outcome.candidate, row["lr"])]
    return [row | {"score": statistics.fmean(row.get("scores", [math.inf]))} for row in found]


def _advice(task: Task, steps: int, advice: Advice) -> dict[str, Any]:
    """What was advised, and how it ends at full length."""
    chosen = advice.race.chosen
    return {
        "chosen": chosen.name if chosen else None,
        "lr": advice.plan.lr if advice.plan else None,
        "settled": advice.is_settled,
        "verdict": advice.verdict,
        "race": advice.race.to_dict(),
        "scores": _plan_scores(task, steps, advice.plan) if advice.plan else None,
    }


def _plan_scores(task: Task, steps: int, plan: Plan) -> list[float]:
    return _judged(
        task, steps, Candidate("plan", lambda model, lr: plan.optimizer(model, lr=lr), (plan.lr, 2 * plan.lr)), plan.lr
    )


def _judged(task: Task, steps: int, candidate: Candidate, lr: float) -> list[float]:
    """The scores of full-length runs on the seeds that judge."""
    scores = []
    for seed in JUDGES:
        model = task.start(seed)
        scores.append(train(task, model, candidate.make(model, lr), seed, steps).score)
    return scores


def main() -> None:
    """Run the missing tasks, and print the tables."""
    from benchmarks import advice_tables

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"some of {', '.join(TEST | DEVELOPMENT)} (default: the test tasks)")
    parser.add_argument("--development", action="store_true", help="run the tasks that the rules were made with")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--out", type=Path, default=OUT, help=f"the folder of the results (default: {OUT})")
    parser.add_argument(
        "--write", action="store_true", help="run nothing; write the stored results into docs/advisor.md"
    )
    options = parser.parse_args()
    known = TEST | DEVELOPMENT
    unknown = [name for name in options.tasks if name not in known]
    if unknown:
        parser.error(f"no such task: {', '.join(unknown)}; choose from {', '.join(known)}")
    if not options.write:
        wanted = options.tasks or list(DEVELOPMENT if options.development else TEST)
        run([name for name in wanted if not stored(options.out, name).exists()], options.workers, options.out)
    tests, others = (
        [_read(options.out, name) for name in names if stored(options.out, name).exists()]
        for names in (TEST, DEVELOPMENT)
    )
    print(advice_tables.text(tests, others))
    if options.write:
        advice_tables.publish(tests, others)


def stored(out: Path, name: str) -> Path:
    """The file with a task's result."""
    return out / f"{name}.json"


def _read(out: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stored(out, name).read_text(encoding="utf-8"))
    return found


def run(names: Sequence[str], workers: int, out: Path) -> None:
    """Run tasks in parallel, and store each result as soon as it is ready."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(try_task, name) for name in names]):
            if future.exception() is not None:  # the other tasks go on
                traceback.print_exception(future.exception())
                continue
            result = future.result() | {"version": __version__, "torch": torch.__version__}
            write(stored(out, result["task"]), json.dumps(result, indent=1) + "\n")
            print(f"{result['task']}: {result['seconds']:.0f} s of CPU", flush=True)


if __name__ == "__main__":
    main()

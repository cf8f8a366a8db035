"""Is the advisor's advice any good? Compares its choice after short runs with full-length runs of all candidates.

    python -m benchmarks.advice            all tasks, in about 40 minutes; results are stored in results/advice/
    python -m benchmarks.advice --write    write the stored results into docs/advisor.md

On each task, the advisor gets runs of 200 steps. Then all its candidates, and outside optimizers, train for four times
as many steps on other seeds, each with its own learning rate, tuned the same way. The advice was right if the chosen
candidate is level with the best candidate at full length.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adam, Muon, Optimizer

from benchmarks.advice_tasks import TASKS
from matrix_adagrad.advisor import Candidate, ParameterSummary, Race, advise, lrs_around
from matrix_adagrad.files import write
from matrix_adagrad.optim import geometry_groups
from matrix_adagrad.version import __version__

SHORT, LONGER, SEEDS = 200, 4, 5  # steps of the advisor's runs, factor for full-length runs, seeds
FAMILIES = ("adagrad", "momentum")  # matrix_optimizer has its own trial, benchmarks/muon.py
FEWER = {"gpt": 100}  # its steps take ten times as long
OTHER = 100  # the first seed that the advisor has not used
OUT = Path("results/advice")
SLOW = ("gpt", "mlp", "digits-cnn", "skip-gram")  # these start first, so that no core idles at the end


class MuonWithAdam(Optimizer):
    """Muon for hidden matrices and Adam for the rest, as one optimizer with one learning rate."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        kinds: dict[bool, list[Tensor]] = {True: [], False: []}
        for group in geometry_groups(model):
            for _, param in group["params"]:
                kinds[group["name"] == "matrix" and param.dim() == 2].append(param)
        if not kinds[True]:
            raise ValueError("no hidden matrices")
        muon = Muon(kinds[True], lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        self.parts = [muon, Adam(kinds[False], lr=lr)]
        super().__init__(kinds[True] + kinds[False], {"lr": lr})

    def step(self, closure: Any = None) -> Any:  # noqa: ARG002
        """One step of both."""
        for part in self.parts:
            part.step()
            self.state.update(part.state)


def references() -> list[Candidate]:
    """Outside optimizers. SGD's learning rate depends on the units of the loss, so its rates are spaced wider."""
    optimizers: dict[str, tuple[Callable[[nn.Module, float], Optimizer], tuple[float, ...]]] = {
        "Adam": (lambda model, lr: Adam(model.parameters(), lr), lrs_around(0.01)),
        "SGD": (lambda model, lr: SGD(model.parameters(), lr, momentum=0.9), lrs_around(0.3, step=10**0.5)),
        "Adafactor": (lambda model, lr: Adafactor(model.parameters(), lr), lrs_around(0.01)),
        "Muon": (MuonWithAdam, lrs_around(0.01)),
    }
    return [Candidate(name, make, lrs) for name, (make, lrs) in optimizers.items()]


def try_task(name: str) -> dict[str, Any]:
    """The advice on a task, and the full-length runs that judge it."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    task = TASKS[name]()
    steps = FEWER.get(name, SHORT)
    advice = advise(task, families=FAMILIES, steps=steps, seeds=SEEDS)
    advised = time.perf_counter() - start
    candidates = [outcome.candidate for outcome in advice.race.outcomes]
    race = Race(task, steps=LONGER * steps, seeds=SEEDS, first_seed=OTHER)
    outcomes = [race.train(candidate) for candidate in candidates]
    full = race.result(outcomes)
    chosen = advice.race.chosen.outcome
    as_planned = [run.score for run in race.runs(chosen.candidate, chosen.lr)]
    outside: dict[str, list[float] | str] = {}
    for reference in references():
        try:
            outside[reference.name] = [run.score for run in race.train(reference).runs]
        except ValueError as error:
            outside[reference.name] = str(error)
    return {
        "task": name,
        "advised_seconds": advised,
        "seconds": time.perf_counter() - start,
        "chosen": chosen.name,
        "advice": advice.race.to_dict(),
        "full": full.to_dict(),
        "as_planned": as_planned,
        "outside": outside,
        "plan": advice.plan.to_dict(),
        "predictions": predictions(advice.probe.parameters),
        "parameters": {parameter.name: parameter.scalars() for parameter in advice.probe},
    }


# ------------------------------------------------------------------------------ what the probe alone would have chosen


def predictions(parameters: Sequence[ParameterSummary]) -> dict[str, str]:
    """For each statistic of the probe, the geometry that it would choose for the whole model."""
    matrices = [parameter for parameter in parameters if parameter.is_matrix]

    def total(value: Callable[[ParameterSummary], float]) -> float:
        return sum(map(value, matrices))

    def mean(value: Callable[[ParameterSummary], float]) -> float:
        """Weighted by squared gradients, so a layer without gradients does not count."""
        weights = [matrix.gradient_norm["whole"] for matrix in matrices]
        return statistics.fmean(map(value, matrices), weights if sum(weights) else None)

    def agreement(name: str) -> float:
        return mean(lambda matrix: matrix.agreement[name])

    enough = [name for name in ("row", "column") if agreement(name) >= 0.9]
    return {
        "smallest bound": min(
            ("row", "column", "entry", "whole"), key=lambda name: total(lambda matrix: matrix.bound[name])
        ),
        "smallest bound, rows or columns": min(
            ("row", "column"), key=lambda name: total(lambda matrix: matrix.bound[name])
        ),
        "larger agreement": max(("row", "column"), key=agreement),
        "agreement of 0.9, else entry": max(enough, key=agreement) if enough else "entry",
        "lower participation": (
            "row"
            if mean(lambda matrix: matrix.rows.participation) < mean(lambda matrix: matrix.columns.participation)
            else "column"
        ),
        "more inactive": "row"
        if mean(lambda matrix: matrix.rows.inactive) >= mean(lambda matrix: matrix.columns.inactive)
        else "column",
    } | {f"always {name}": name for name in ("entry", "row", "column", "whole")}


# ------------------------------------------------------------------------------------------------------------- command


def main() -> None:
    """Run the missing tasks, and print the tables."""
    from benchmarks import advice_tables

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"some of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--write", action="store_true", help="run nothing; write the stored results into docs/advisor.md"
    )
    options = parser.parse_args()
    unknown = [name for name in options.tasks if name not in TASKS]
    if unknown:
        parser.error(f"no such task: {', '.join(unknown)}; choose from {', '.join(TASKS)}")
    if not options.write:
        wanted = options.tasks or sorted(
            TASKS, key=lambda name: (name not in SLOW, SLOW.index(name) if name in SLOW else 0)
        )
        run([name for name in wanted if not stored(name).exists()], options.workers)
    found = [json.loads(stored(name).read_text(encoding="utf-8")) for name in TASKS if stored(name).exists()]
    print(advice_tables.text(found))
    if options.write:
        advice_tables.publish(found)


def stored(name: str) -> Path:
    """The file with a task's result."""
    return OUT / f"{name}.json"


def run(names: Sequence[str], workers: int) -> None:
    """Run tasks in parallel, and store each result as soon as it is ready."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(try_task, name) for name in names]):
            result = future.result() | {"version": __version__, "torch": torch.__version__}
            write(stored(result["task"]), json.dumps(result, indent=1) + "\n")
            print(f"{result['task']}: {result['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()

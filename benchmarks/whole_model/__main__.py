"""Which optimizer for a whole model? Losses, state and time, of candidates that are tuned alike.

    python -m benchmarks.whole_model [--settings …] [--candidates …] [--workers N] [--only-tables] [--write]
    python -m benchmarks.whole_model --time
    python -m benchmarks.whole_model --state

A word-level GPT and a recommender are trained on data that never repeats. A candidate has one rate for hidden matrices
and one for everything else. Both are tuned on a seed of their own, with equally many runs for all candidates. At the
best rates, and at the defaults of `matrix_optimizer`, follow fresh seeds, with the same start and the same batches for
all. There is no weight decay. Runs are kept in results/whole_model/; only those that are missing are run. ``--write``
puts the tables into docs/whole-model.md. ``--time`` measures steps, interleaved; nothing else should run then.
``--state`` counts the bytes of state for the shapes of Llama 3 8B.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from benchmarks.markdown import DOCS, update_page
from benchmarks.whole_model.candidates import CANDIDATES, RECIPE, default_rates
from benchmarks.whole_model.settings import SETTINGS
from benchmarks.whole_model.tables import llama_table, losses_table, time_table, tuning_table
from benchmarks.whole_model.trial import Runs

PAGE = DOCS / "whole-model.md"


def run_all(settings: list[str], candidates: list[str], workers: int) -> None:
    """Make every run that is missing. Each candidate is tuned, one run after another, and then takes its seeds."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as processes, ThreadPoolExecutor(workers) as threads:
        runs = Runs(processes)

        def tune_and_run(setting: str, candidate: str) -> None:
            runs.on_seeds(setting, candidate, runs.tuned(setting, candidate)[0].rates)

        def run_defaults(setting: str) -> None:
            runs.on_seeds(setting, RECIPE, default_rates())

        tasks = [threads.submit(tune_and_run, setting, name) for setting in settings for name in candidates]
        tasks += [threads.submit(run_defaults, setting) for setting in settings]
        for task in tasks:
            task.result()


def main() -> None:
    """Run what is missing, show the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--candidates", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one thread")
    parser.add_argument("--only-tables", action="store_true", help="run nothing: all runs must be there")
    parser.add_argument("--time", action="store_true", help="measure the time of a step")
    parser.add_argument("--state", action="store_true", help="count the state for the shapes of Llama 3 8B")
    parser.add_argument("--write", action="store_true", help=f"put the tables into docs/{PAGE.name}")
    options = parser.parse_args()
    if options.time:
        blocks = {"time": time_table()}
    elif options.state:
        blocks = {"llama": llama_table()}
    else:
        if not options.only_tables:
            run_all(options.settings, options.candidates, options.workers)
        runs = Runs(None)
        blocks = {f"{name}-losses": losses_table(name, options.candidates, runs) for name in options.settings}
        blocks |= {f"{name}-tuning": tuning_table(name, options.candidates, runs) for name in options.settings}
        blocks["llama"] = llama_table()
    print("\n\n".join(blocks.values()))
    if options.write:
        update_page(PAGE, {name: functools.partial(str, made) for name, made in blocks.items()})


if __name__ == "__main__":
    main()

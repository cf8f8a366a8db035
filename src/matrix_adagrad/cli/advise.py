"""``matrix-adagrad advise``."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from matrix_adagrad import terminal
from matrix_adagrad.advisor import Advice, Task
from matrix_adagrad.advisor import advise as advice_on
from matrix_adagrad.advisor.candidates import FAMILIES
from matrix_adagrad.advisor.errors import RefusedError
from matrix_adagrad.advisor.race import ALLOWED_SEEDS, ALLOWED_STEPS, SEEDS, STEPS
from matrix_adagrad.advisor.task import as_task
from matrix_adagrad.cli.arguments import INCOMPLETE, add_json, listed, positive, unwritable
from matrix_adagrad.experiments import tasks
from matrix_adagrad.files import write
from matrix_adagrad.outputs import Output

__all__ = ["DEMOS", "OUTPUTS", "add"]

PAGE = Output("advice.html", ("jinja2", "plotly"), "advisor")
OUTPUTS = (PAGE,)


@dataclass(frozen=True)
class Demo:
    """A built-in task, what it is, and how long its runs are."""

    task: Callable[[], Task]
    meaning: str
    steps: int = STEPS
    seeds: int = SEEDS


DEMOS = {
    "movielens": Demo(tasks.movielens, "matrix factorisation of MovieLens 100K, which is fetched if need be"),
    "mlp": Demo(tasks.mlp, "the paper's stacked MLP with 15 layers"),
    "lm": Demo(tasks.lm, "a small GPT on the characters of texts that ship with Python", steps=64, seeds=3),
}


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "advise",
        help="measure a model of yours, race the geometries on it, and write a plan",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The function takes no arguments and returns a matrix_adagrad.advisor.Task, or the tuple\n"
        "(make_model, loss, batches): a function that makes the model, one from the model and a batch to the\n"
        "loss, and an iterable of batches or a function from a seed to one; a fourth part are batches that\n"
        "are held out.\n\ndemos:\n" + listed({name: demo.meaning for name, demo in DEMOS.items()}) + "\n\nexamples:\n"
        "  matrix-adagrad advise --demo movielens\n"
        "  matrix-adagrad advise my_package.training:task --steps 500\n"
        "  matrix-adagrad advise train.py:task --family adagrad\n"
        "\nIt writes plan.json, advice.json (all numbers) and advice.html (a page to look at).\n\n"
        "exit code: 0 if there is a plan, 1 if there is none, 2 if the command line is wrong,\n"
        f"{INCOMPLETE} if there is a plan, and the page lacks packages, 130 after Ctrl-C",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "function", nargs="?", type=_target, metavar="MODULE:FUNCTION", help="what makes the task; or FILE.py:FUNCTION"
    )
    what.add_argument("--demo", choices=DEMOS, metavar="NAME", help=f"a built-in task: {', '.join(DEMOS)}")
    parser.add_argument("--steps", type=_in(ALLOWED_STEPS), help=f"of a run, 16 or more (default: {STEPS}; lm: 64)")
    parser.add_argument(
        "--seeds", type=_in(ALLOWED_SEEDS), help=f"runs of a candidate, 2 to 15 (default: {SEEDS}; lm: 3)"
    )
    parser.add_argument("--family", choices=FAMILIES, help="AdaGrad alone, or momentum alone (default: both)")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="threads (default: torch's)")
    parser.add_argument("--out", type=Path, default=Path("advice"), help="where everything goes (default: advice)")
    add_json(parser)
    parser.set_defaults(run=run, outputs=OUTPUTS)


def run(options: argparse.Namespace) -> int:
    """Make the task, get advice on it, show it, and write it down."""
    torch.set_num_threads(options.threads)
    demo = DEMOS[options.demo] if options.demo else None
    steps = options.steps or (demo.steps if demo else STEPS)
    seeds = options.seeds or (demo.seeds if demo else SEEDS)
    families = [options.family] if options.family else list(FAMILIES)
    try:
        if problem := unwritable(options.out):
            raise RefusedError(problem)
        task = _demo(demo) if demo else _task(options.function)
        with contextlib.closing(terminal.Steps(sys.stderr)) as watch:
            advice = advice_on(task, families=families, steps=steps, seeds=seeds, progress=watch)
        try:
            written = save(advice, options.out)
        finally:  # whatever is wrong with the files: the race was long
            print(advice.to_json() if options.json else f"{advice}\n", end="", flush=True)
    except RefusedError as error:  # others are of the user's own code: a traceback says where
        print(f"matrix-adagrad advise: {error}", file=sys.stderr)
        return 1
    if not options.json:
        print("\nwritten: " + ", ".join(map(str, written)))
    return 0


def _demo(demo: Demo) -> Task:
    try:
        return demo.task()
    except OSError as error:  # the data cannot be had
        raise RefusedError(str(error)) from None


def save(advice: Advice, out: Path) -> list[Path]:
    """Write the plan, all numbers, and the page if its libraries are there."""
    try:
        written = [advice.plan.save(out / "plan.json"), write(out / "advice.json", advice.to_json())]
    except OSError as error:
        raise RefusedError(f"{out} cannot be written: {error.strerror}; the plan was\n{advice.plan}") from None
    if PAGE.missing:
        (out / PAGE.name).unlink(missing_ok=True)  # of another run
        return written
    from matrix_adagrad.advisor import page

    return [*written, write(out / PAGE.name, page.render(advice))]


def _in(allowed: range) -> Callable[[str], int]:
    def read(text: str) -> int:
        if positive(text) not in allowed:
            raise argparse.ArgumentTypeError(f"must be from {allowed[0]} to {allowed[-1]:,}, got {text}")
        return int(text)

    return read


def _target(text: str) -> str:
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not MODULE:FUNCTION, for example my_package.training:task or train.py:task"
        )
    return text


def _task(target: str) -> Task:
    """The task that the user's own function makes."""
    where, _, name = target.rpartition(":")
    module = _module(where)
    function = getattr(module, name, None)
    if not callable(function):
        there = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise RefusedError(f"{where} has no function {name!r}; it has {there or 'none'}")
    return as_task(function(), f"{name} must return", name)


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        sys.path.insert(0, "")  # as python -m does
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{where}.".startswith(f"{error.name}."):
                raise  # something that it imports is missing
            raise RefusedError(f"no module {where!r}: is it installed, or in this folder?") from None
    file = Path(where)
    if not file.is_file():
        raise RefusedError(f"no file {where}")
    sys.path.insert(0, str(file.parent.resolve()))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module

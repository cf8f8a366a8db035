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
from matrix_adagrad.advisor.candidates import FAMILIES, RACED
from matrix_adagrad.advisor.errors import AdvisorError, AdvisorValueError
from matrix_adagrad.advisor.race import ALLOWED_SEEDS, ALLOWED_STEPS, SEEDS, STEPS
from matrix_adagrad.advisor.task import as_task, check_call
from matrix_adagrad.cli.arguments import add_json, add_threads, definitions, positive, write_error
from matrix_adagrad.cli.command import INCOMPLETE, say
from matrix_adagrad.demos import tasks
from matrix_adagrad.files import write
from matrix_adagrad.optional import OptionalOutput

__all__ = ["DEMOS", "OUTPUTS", "add"]

PAGE = OptionalOutput("advice.html", ("jinja2", "plotly"), "advisor")
OUTPUTS = (PAGE,)


@dataclass(frozen=True)
class Demo:
    """A built-in task, its description, and the defaults of its race."""

    task: Callable[[], Task]
    meaning: str
    steps: int = STEPS
    seeds: int = SEEDS


DEMOS = {
    "movielens": Demo(tasks.movielens, "matrix factorization of MovieLens 100K, which is downloaded if needed"),
    "mlp": Demo(tasks.mlp, "the paper's MLP with 15 layers"),
    "lm": Demo(tasks.lm, "a small character-level GPT, on text that ships with Python", steps=64, seeds=3),
}


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "advise",
        help="find the geometry that works best for your model, and write a plan",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The function takes no argument and returns a matrix_adagrad.advisor.Task, or the tuple\n"
        "(make_model, loss, batches): make_model() returns the model, loss(model, batch) the loss, and batches\n"
        "is an iterable of batches or a function of the seed that returns one. Held-out batches may follow as\n"
        "a fourth element.\n\ndemos:\n"
        + definitions({name: demo.meaning for name, demo in DEMOS.items()})
        + "\n\nexamples:\n"
        "  matrix-adagrad advise --demo movielens\n"
        "  matrix-adagrad advise my_package.training:task --steps 500\n"
        "  matrix-adagrad advise train.py:task --family adagrad\n"
        "\nWrites plan.json, advice.json (all numbers) and advice.html (the same as a page). If nothing was\n"
        "learned, there is no plan.json.\n\n"
        "exit code: 0 if there is a plan, 1 if there is none, 2 if the command line or the task is wrong,\n"
        f"{INCOMPLETE} if there is a plan, but packages for the page are missing, 130 after Ctrl-C",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "function",
        nargs="?",
        type=_target,
        metavar="MODULE:FUNCTION",
        help="returns the task; or FILE.py:FUNCTION",
    )
    what.add_argument("--demo", choices=DEMOS, metavar="NAME", help=f"a built-in task: {', '.join(DEMOS)}")
    parser.add_argument(
        "--steps", type=_in(ALLOWED_STEPS), help=f"steps of the longest runs, 16 or more (default: {STEPS}; lm: 64)"
    )
    parser.add_argument(
        "--length",
        type=positive,
        help="steps of your training run, if they are too many to race: the learning rate is extrapolated",
    )
    parser.add_argument(
        "--seeds", type=_in(ALLOWED_SEEDS), help=f"runs of each candidate, 2 to 15 (default: {SEEDS}; lm: 3)"
    )
    parser.add_argument("--family", choices=FAMILIES, help="try this update rule only (default: all)")
    add_threads(parser)
    parser.add_argument("--out", type=Path, default=Path("advice"), help="the folder to write to (default: advice)")
    add_json(parser)
    parser.set_defaults(run=run, command="matrix-adagrad advise", outputs=OUTPUTS)


def run(options: argparse.Namespace) -> int:
    """Make the task, get advice on it, print it, and save it."""
    torch.set_num_threads(options.threads)
    demo = DEMOS[options.demo] if options.demo else None
    steps = options.steps or (demo.steps if demo else STEPS)
    seeds = options.seeds or (demo.seeds if demo else SEEDS)
    families = [options.family] if options.family else list(RACED)
    try:
        if problem := write_error(options.out):
            raise AdvisorError(problem)
        task = _demo(demo) if demo else _task(options.function)
        with contextlib.closing(terminal.StepProgress(sys.stderr)) as progress:
            advice = advice_on(
                task, families=families, steps=steps, length=options.length, seeds=seeds, progress=progress
            )
        try:
            written = save(advice, options.out)
        finally:  # the race was long: show its result even if it cannot be saved
            print(advice.to_json() if options.json else f"{advice}\n", end="", flush=True)
    except AdvisorError as error:  # errors of the user's own code keep their traceback
        say(options, str(error))
        return 2 if isinstance(error, TypeError | ValueError) else 1
    if not options.json:
        print("\nwritten: " + ", ".join(map(str, written)))
    return 0 if advice.plan else 1


def _demo(demo: Demo) -> Task:
    try:
        return demo.task()
    except OSError as error:  # the data cannot be read or downloaded
        raise AdvisorError(str(error)) from None


def save(advice: Advice, out: Path) -> list[Path]:
    """Write the plan if there is one, all numbers, and the page if its packages are installed."""
    plan = out / "plan.json"
    try:
        written = [advice.plan.save(plan)] if advice.plan else []
        if not advice.plan:
            plan.unlink(missing_ok=True)  # an earlier run's
        written.append(write(out / "advice.json", advice.to_json()))
    except OSError as error:
        raise AdvisorError(f"{out} cannot be written: {error.strerror}; the plan is\n{advice.plan}") from None
    if PAGE.missing:
        (out / PAGE.name).unlink(missing_ok=True)  # an earlier run's
        return written
    from matrix_adagrad.advisor import advice_page

    return [*written, write(out / PAGE.name, advice_page.render(advice))]


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
    """The task that the user's function returns."""
    where, _, name = target.rpartition(":")
    module = _module(where)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise AdvisorValueError(f"{where} has no function {name!r}; it has {', '.join(functions) or 'none'}")
    check_call(name, function)
    return as_task(function(), f"{name} must return", name)


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        sys.path.insert(0, "")  # as python -m does
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{where}.".startswith(f"{error.name}."):
                raise  # an import inside it failed
            raise AdvisorValueError(f"no module {where!r}: is it installed, or in this folder?") from None
    file = Path(where)
    if not file.is_file():
        raise AdvisorValueError(f"no file {where}")
    sys.path.insert(0, str(file.parent.resolve()))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module

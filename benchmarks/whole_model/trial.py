"""Training runs: each is kept in a file of its own, tuned by equal rules, and paired by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.whole_model.candidates import CANDIDATES, Rates
from benchmarks.whole_model.settings import SETTINGS
from matrix_adagrad import state_bytes
from matrix_adagrad.files import write
from matrix_adagrad.text import json_text

__all__ = ["Result", "Run", "Runs", "train"]

RESULTS = Path("results/whole_model")


@dataclass(frozen=True)
class Run:
    """One training run."""

    setting: str
    candidate: str
    rates: Rates
    seed: int

    @property
    def file(self) -> Path:
        """Where its result is kept."""
        name = "".join(letter if letter.isalnum() else "-" for letter in self.candidate)
        return RESULTS / self.setting / f"{name}_{self.rates.hidden:g}_{self.rates.rest:g}_{self.seed}.json"


@dataclass(frozen=True)
class Result:
    """What came of it."""

    losses: list[float]  # after each quarter of the run
    state_bytes: int
    steps: int


def train(run: Run) -> Result:
    """Train with a warm-up over the first tenth of the steps, and a cosine down to 0 after it. No weight decay."""
    torch.set_num_threads(1)
    setting = SETTINGS[run.setting]
    torch.manual_seed(run.seed)
    model = setting.make_model()
    optimizer = CANDIDATES[run.candidate].make(model, run.rates)
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = OneCycleLR(optimizer, rates, total_steps=setting.steps, pct_start=0.1, cycle_momentum=False)
    losses = []
    for step, batch in enumerate(setting.batches(run.seed), 1):
        optimizer.zero_grad()
        setting.loss(model, batch).backward()
        optimizer.step()
        schedule.step()
        if step in setting.judged:
            losses.append(setting.judge(model, run.seed))
    return Result(losses, state_bytes(optimizer), setting.steps)


class Runs:
    """The results that are on disk. Others are computed when they are asked for, if there is someone to do it."""

    def __init__(self, executor: Executor | None) -> None:
        self.executor = executor

    def __call__(self, run: Run) -> Result:
        saved = json.loads(run.file.read_text(encoding="utf-8")) if run.file.exists() else {}
        if saved.get("steps") != SETTINGS[run.setting].steps:
            if self.executor is None:
                raise SystemExit(f"there is no {run.file}: run without --only-tables")
            saved = asdict(self.executor.submit(train, run).result())
            run.file.parent.mkdir(parents=True, exist_ok=True)
            write(run.file, json_text(saved))
            print(run.file.stem, *(f"{loss:.4f}" for loss in saved["losses"]), flush=True)
        finite = (math.inf if loss is None or not math.isfinite(loss) else loss for loss in saved["losses"])
        return Result(list(finite), saved["state_bytes"], saved["steps"])

    def loss(self, run: Run) -> float:
        """The loss at the end of a run."""
        return self(run).losses[-1]

    def tuned(self, setting: str, candidate: str) -> list[Run]:
        """The tuning runs, from the best to the worst.

        Each doubles or halves one rate of the best so far; once that is no help, changes get smaller.
        """
        own = SETTINGS[setting]
        tried, factor = [Run(setting, candidate, CANDIDATES[candidate].start, own.tuning_seed)], 2.0
        while len(tried) < own.tuning_runs:
            untried = [run for run in neighbours(tried[0], factor) if not any(are_alike(run, other) for other in tried)]
            if untried:
                tried = sorted([*tried, untried[0]], key=self.loss)
            else:
                factor = math.sqrt(factor)
        return tried

    def on_seeds(self, setting: str, candidate: str, rates: Rates) -> list[Result]:
        """The results at these rates, for every seed that is not used in tuning."""
        return [self(Run(setting, candidate, rates, seed)) for seed in SETTINGS[setting].seeds]


def are_alike(run: Run, other: Run) -> bool:
    """Whether two runs have the same rates, but for rounding."""
    return all(math.isclose(a, b, rel_tol=0.01) for a, b in zip(run.rates, other.rates, strict=True))


def neighbours(run: Run, factor: float) -> Iterator[Run]:
    """The runs in which one rate is that many times higher or lower."""
    for name in ("rest", "hidden"):
        for change in (factor, 1 / factor):
            rate = float(f"{getattr(run.rates, name) * change:.3g}")
            yield replace(run, rates=run.rates._replace(**{name: rate}))

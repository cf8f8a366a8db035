"""What the other half of a Muon run may be: AdamW, one scale a row with momentum, or one scale a row without.

    python -m benchmarks.muon [--write] [--only-tables]

A small GPT reads words of Python's standard library, no window twice; whole files are held out. Its hidden matrices
have `torch.optim.Muon`, except with AdamW alone; tables and head have AdamW, `MatrixMomentum` or `MatrixAdaGrad` by
row; vectors have the same rule by entry. `matrix_optimizer` has Muon in float32, factored scales without momentum on
tables and head, and Adam on vectors. Tuning takes equally many runs for all, on one seed: each doubles or halves a rate
of the best so far, and once that is no help, changes it by less. At the best rates, and at the defaults of the recipes,
follow fresh seeds, with the same start and the same batches for all. No weight decay. The runs are kept in
results/muon/runs.json; only those that are missing are run. ``--write`` puts the tables into docs/muon.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.library_text import batches, library
from benchmarks.markdown import DOCS, markdown_table, update_page
from matrix_adagrad import CombinedOptimizer, geometry_groups, matrix_optimizer, muon_with_rows
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows
from matrix_adagrad.files import write
from matrix_adagrad.intervals import interval
from matrix_adagrad.text import json_text

RESULTS = Path("results/muon/runs.json")
CONTEXT, WIDTH, HEADS, LAYERS, BATCH, WORDS = 64, 64, 4, 2, 8, 2000
JUDGED = (200, 500, 1000)  # the steps after which a run is judged on held-out text; the last one ends it
STEPS = JUDGED[-1]
HELD_OUT = 512  # windows
TUNING_RUNS, TUNING_SEED, SEEDS = 8, 100, range(5)
text = functools.partial(library, WORDS)
# Where tuning starts: Muon's rate and the other. Those with rows start at their defaults.
STARTS = {
    "AdamW alone": (0.0, 0.004),
    "Muon + AdamW": (0.01, 0.03),
    "Muon + rows, momentum": (0.01, 0.03),
    "Muon + rows, AdaGrad": (0.01, 0.3),
    "matrix_optimizer, factored": (0.006, 0.018),
}


@dataclass(frozen=True)
class Trial:
    """One training run; its Muon rate is 0 if it has none."""

    method: str
    muon_lr: float
    lr: float
    seed: int
    steps: int


@dataclass
class TrialResult:
    """What came of it."""

    losses: list[float]  # after each of the steps of `JUDGED`
    bytes: dict[str, int]  # of state, by kind of parameter
    seconds: float  # of the processor


def make(method: str, model: nn.Module, muon_lr: float, lr: float) -> Optimizer:
    """The optimizer of a candidate."""
    if method == "AdamW alone":
        return AdamW(geometry_groups(model), lr=lr, weight_decay=0.0)
    if method == "Muon + AdamW":
        groups = geometry_groups(model)
        hidden, rest = (
            [group for group in groups if (group["name"] == "matrix") is is_muon] for is_muon in (True, False)
        )
        return CombinedOptimizer([Muon(hidden, lr=muon_lr, weight_decay=0.0), AdamW(rest, lr=lr, weight_decay=0.0)])
    if method == "matrix_optimizer, factored":
        return matrix_optimizer(model, lr=muon_lr, tables_lr=lr)
    rows = "adagrad" if method.endswith("AdaGrad") else "momentum"
    return muon_with_rows(model, lr=muon_lr, rows_lr=lr, rows=rows)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------- training runs


def held_out_loss(model: nn.Module, held_out: Tensor) -> float:
    """The mean loss on windows spread evenly over the held-out text."""
    starts = torch.linspace(0, len(held_out) - CONTEXT - 1, HELD_OUT).long()
    with torch.no_grad():
        losses = [next_character_loss(model, windows(held_out, part, CONTEXT)).item() for part in starts.split(64)]
    loss = statistics.fmean(losses)
    return loss if math.isfinite(loss) else math.inf


def train(run: Trial) -> TrialResult:
    """Train with a warm-up over the first tenth of the steps, and a cosine after it."""
    began = time.process_time()
    torch.manual_seed(run.seed)
    model = GPT(text().vocabulary, context=CONTEXT, width=WIDTH, heads=HEADS, layers=LAYERS)
    optimizer = make(run.method, model, run.muon_lr, run.lr)
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = OneCycleLR(optimizer, rates, total_steps=run.steps, pct_start=0.1, cycle_momentum=False)
    losses = []
    for step, batch in enumerate(batches(text().training, run.seed, steps=run.steps, batch=BATCH, context=CONTEXT), 1):
        optimizer.zero_grad()
        next_character_loss(model, batch).backward()
        optimizer.step()
        schedule.step()
        if step in JUDGED:
            losses.append(held_out_loss(model, text().held_out))
    return TrialResult(losses, state_bytes(optimizer), time.process_time() - began)


class Runs:
    """The runs that there are, in a file; others are made when they are asked for."""

    def __init__(self, may_run: bool) -> None:
        self.may_run = may_run
        saved = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
        saved = [entry for entry in saved if entry["run"].get("steps") == STEPS]  # there may be those of another trial
        self.done = {Trial(**entry["run"]): TrialResult(**entry["outcome"]) for entry in saved}

    def __call__(self, run: Trial) -> TrialResult:
        if run not in self.done:
            if not self.may_run:
                raise SystemExit(f"{RESULTS} has no {run}: run without --only-tables")
            self.done[run] = train(run)
            print(f"{run.method:<28}{run.muon_lr:<8g}{run.lr:<8g}seed {run.seed:<5}", end="")
            print(*(f"{loss:.4f}" for loss in self.done[run].losses), f"{self.done[run].seconds:.0f} s", flush=True)
            kept = [{"run": asdict(trial), "outcome": asdict(outcome)} for trial, outcome in self.done.items()]
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            write(RESULTS, json_text(kept))
        result = self.done[run]
        return replace(result, losses=[math.inf if loss is None else loss for loss in result.losses])

    def loss(self, run: Trial) -> float:
        """The loss at the end of a run."""
        return self(run).losses[-1]


def neighbours(run: Trial, factor: float) -> Iterator[Trial]:
    """The runs in which one rate is that many times higher or lower."""
    for change in (factor, 1 / factor):
        yield replace(run, lr=_three_digits(run.lr * change))
    for change in (factor, 1 / factor) if run.muon_lr else ():
        yield replace(run, muon_lr=_three_digits(run.muon_lr * change))


def _three_digits(rate: float) -> float:
    return float(f"{rate:.3g}")


def tuned(method: str, runs: Runs) -> tuple[list[Trial], bool]:
    """The tuning runs from the best to the worst, and whether doubling and halving had come to an end."""
    tried, factor = [Trial(method, *STARTS[method], TUNING_SEED, STEPS)], 2.0
    while len(tried) < TUNING_RUNS:
        untried = [run for run in neighbours(tried[0], factor) if run not in tried]
        if untried:
            tried = sorted([*tried, untried[0]], key=runs.loss)
        else:
            factor = math.sqrt(factor)
    return tried, factor < 2 or all(run in tried for run in neighbours(tried[0], factor))


def default_rates() -> dict[str, Trial]:
    """The recipes as they are without a word on rates."""
    recipes: dict[str, Callable[[nn.Module], CombinedOptimizer]] = {
        "Muon + rows, momentum": muon_with_rows,
        "matrix_optimizer, factored": matrix_optimizer,
    }
    trials = {}
    for method, recipe in recipes.items():
        hidden, tables, *_ = recipe(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))).optimizers
        muon_lr, lr = (_three_digits(part.param_groups[0]["lr"]) for part in (hidden, tables))
        trials[f"{method.partition(',')[0]}, at its defaults"] = Trial(method, muon_lr, lr, TUNING_SEED, STEPS)
    return trials


# ---------------------------------------------------------------------------------------------------------------- bytes


def state_bytes(optimizer: Optimizer) -> dict[str, int]:
    """Bytes of state by kind of parameter: "table", "head", "matrix", "vector"."""
    total: Counter[str] = Counter()
    for group in optimizer.param_groups:
        for param in group["params"]:
            values = optimizer.state[param].values()
            total[group["name"]] += sum(value.nbytes for value in values if isinstance(value, Tensor) and value.dim())
    return dict(total)


def llama(vocabulary: int = 128_256, width: int = 4096, layers: int = 32, mlp: int = 14_336) -> nn.Module:
    """The shapes of Llama 3 8B: 8 heads of 128 for keys and values, untied head; on the meta device, without memory."""

    def layer() -> nn.Module:
        shapes = {"q": (width, width), "k": (1024, width), "v": (1024, width), "o": (width, width)}
        shapes |= {"gate": (mlp, width), "up": (mlp, width), "down": (width, mlp)}
        linear = {name: nn.Linear(n, m, bias=False) for name, (m, n) in shapes.items()}
        return nn.ModuleDict({**linear, "norm1": nn.RMSNorm(width), "norm2": nn.RMSNorm(width)})

    with torch.device("meta"):
        parts: dict[str, nn.Module] = {"tokens": nn.Embedding(vocabulary, width)}
        parts["layers"] = nn.ModuleList([layer() for _ in range(layers)])
        parts |= {"norm": nn.RMSNorm(width), "lm_head": nn.Linear(width, vocabulary, bias=False)}
        return nn.ModuleDict(parts)


def llama_bytes(method: str) -> dict[str, int]:
    """What the optimizers themselves make for these shapes, without memory."""
    optimizer = make(method, llama(), 0.02, 1e-3)
    if not isinstance(optimizer, CombinedOptimizer):
        optimizer = CombinedOptimizer([optimizer])
    optimizer.init_state()
    return state_bytes(optimizer)


# --------------------------------------------------------------------------------------------------------------- tables


def losses_table(runs: Runs) -> str:
    """The rates, the losses on the way, and the paired differences at the end."""
    best = {method: tuned(method, runs)[0][0] for method in STARTS} | default_rates()
    losses = {name: [runs(replace(run, seed=seed)).losses for seed in SEEDS] for name, run in best.items()}
    last = {name: [by_step[-1] for by_step in by_seed] for name, by_seed in losses.items()}

    def minus(name: str, other: str) -> str:
        return "–" if name == other else str(interval([a - b for a, b in zip(last[name], last[other], strict=True)]))

    def cells() -> Iterator[list[str]]:
        for name, run in best.items():
            yield [
                name,
                f"{run.muon_lr:g}" if run.muon_lr else "–",
                f"{run.lr:g}",
                *(f"{statistics.fmean(by_seed):.4f}" for by_seed in zip(*losses[name], strict=True)),
                minus(name, "AdamW alone"),
                minus(name, "Muon + AdamW"),
            ]

    head = ["", "Muon's rate", "the other rate", *(f"loss at {step:,} steps" for step in JUDGED)]
    seconds = sum(result.seconds for result in runs.done.values())
    note = (
        f"{text().vocabulary:,} words and characters; {STEPS:,} steps of {BATCH} × {CONTEXT} of them, "
        f"{STEPS * BATCH * CONTEXT:,} of {len(text().training):,}, none twice; {TUNING_RUNS} tuning runs "
        f"and {len(SEEDS)} seeds each; {len(runs.done)} runs in {seconds / 60:.0f} minutes of one thread, "
        f"torch {torch.__version__}."
    )
    return markdown_table([*head, "minus AdamW alone", "minus Muon + AdamW"], cells()) + f"\n\n{note}"


def tuning_table(runs: Runs) -> str:
    """All tuning runs of each candidate."""

    def cells() -> Iterator[list[str]]:
        for method in STARTS:
            tried, enclosed = tuned(method, runs)
            rates = (f"{run.muon_lr:g}, {run.lr:g}" if run.muon_lr else f"{run.lr:g}" for run in tried)
            shown = "; ".join(f"{rate}: {runs.loss(run):.3f}" for rate, run in zip(rates, tried, strict=True))
            yield [method, shown, "yes" if enclosed else "no"]

    return markdown_table(["", "rates: held-out loss, best first", "doubling and halving: no better"], cells())


def bytes_table(by_method: dict[str, dict[str, int]], unit: float, word: str) -> str:
    """Bytes of state by kind, and as a share of the two numbers an entry that AdamW keeps."""

    def cells() -> Iterator[list[str]]:
        whole = sum(by_method["AdamW alone"].values())
        for method, own in by_method.items():
            parts = [own["table"] + own["head"], own["matrix"], own["vector"], sum(own.values())]
            shares = f"{sum(own.values()) / whole:.0%}"
            yield [method, *(f"{part / unit:,.3f}" if part < unit else f"{part / unit:,.2f}" for part in parts), shares]

    return markdown_table(
        ["", f"tables and head, {word}", "hidden matrices", "vectors", "all", "of AdamW alone"], cells()
    )


def main() -> None:
    """Run what is missing, show the tables, and perhaps write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/muon.md")
    parser.add_argument("--only-tables", action="store_true", help="run nothing: all runs must be there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(may_run=not options.only_tables)
    measured = {method: runs(tuned(method, runs)[0][0]).bytes for method in STARTS}
    blocks = {
        "losses": losses_table(runs),
        "tuning": tuning_table(runs),
        "bytes": bytes_table(measured, 1e6, "MB"),
        "llama": bytes_table({method: llama_bytes(method) for method in STARTS}, 1e9, "GB"),
    }
    print("\n\n".join(blocks.values()))
    if options.write:
        update_page(DOCS / "muon.md", {name: functools.partial(str, made) for name, made in blocks.items()})


if __name__ == "__main__":
    main()

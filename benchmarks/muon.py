"""What the other half of a Muon run may be: AdamW, one scale a row with momentum, or one scale a row without.

    python -m benchmarks.muon [--write] [--only-tables]

A small GPT reads words of the help texts that ship with Python. Its hidden matrices have `torch.optim.Muon` in every
candidate; tables and head have AdamW, `MatrixMomentum` by row, or `MatrixAdaGrad` by row; vectors have the same rule by
entry. Each candidate has a grid of Muon's rate × its own, of equal size, on a seed of its own; should the best be at an
edge, the grid grows by a rate there, by the same rule for all. At the best rates follow fresh seeds: for each, the same
start and the same batches for all. No weight decay. AdamW alone is tuned over its one rate. The runs are kept in
results/muon/runs.json, and only those that are missing are run. ``--write`` puts the tables into docs/muon.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from benchmarks.markdown import DOCS, markdown_table, update_page
from matrix_adagrad import CombinedOptimizer, geometry_groups, muon_with_rows
from matrix_adagrad.datasets.python_text import help_texts
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows
from matrix_adagrad.files import write
from matrix_adagrad.intervals import interval
from matrix_adagrad.text import json_text

RESULTS = Path("results/muon/runs.json")
CONTEXT, WIDTH, HEADS, LAYERS, BATCH, STEPS, WORDS = 64, 64, 4, 2, 8, 200, 2000
TUNING_SEED, SEEDS = 100, range(6)
# Muon's rates and those of the other half, around the best of a few runs ahead.
MUON_RATES = (0.005, 0.01, 0.02)
RATES = {
    "Muon + AdamW": (0.032, 0.064, 0.128, 0.256),
    "Muon + rows, momentum": (0.032, 0.064, 0.128, 0.256),
    "Muon + rows, AdaGrad": (0.08, 0.16, 0.32, 0.64),
    "AdamW alone": (0.002, 0.004, 0.008, 0.016),
}
GROWTH = 2  # rates that a grid may grow by, in all


@dataclass(frozen=True)
class Trial:
    """One training run; its Muon rate is 0 if it has none."""

    method: str
    muon_lr: float
    lr: float
    seed: int


@dataclass
class TrialResult:
    """What came of it."""

    loss: float
    bytes: dict[str, int]  # of state, by kind of parameter
    seconds: float


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
    rows = "adagrad" if method.endswith("AdaGrad") else "momentum"
    return muon_with_rows(model, lr=muon_lr, rows_lr=lr, rows=rows)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------- training runs


@functools.cache
def words() -> Tensor:
    """The help texts as numbers: one for each of the most frequent words and signs, other words by character."""
    pieces = re.findall(r" ?\w+|\W", help_texts())
    kept = {piece for piece, _ in Counter(pieces).most_common(WORDS)}
    tokens = list(itertools.chain.from_iterable([piece] if piece in kept else piece for piece in pieces))
    numbers = {token: number for number, token in enumerate(sorted(set(tokens)))}
    return torch.tensor([numbers[token] for token in tokens])


def train(run: Trial) -> TrialResult:
    """Train on the first nine tenths of the text; the loss is that on the last one."""
    began = time.perf_counter()
    torch.manual_seed(run.seed)
    text, held_out = words().tensor_split([len(words()) * 9 // 10])
    model = GPT(int(words().max()) + 1, context=CONTEXT, width=WIDTH, heads=HEADS, layers=LAYERS)
    optimizer = make(run.method, model, run.muon_lr, run.lr)
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=STEPS, cycle_momentum=False)
    for _ in range(STEPS):
        optimizer.zero_grad()
        next_character_loss(model, batch(text)).backward()
        optimizer.step()
        schedule.step()
    torch.manual_seed(0)
    with torch.no_grad():
        losses = [next_character_loss(model, batch(held_out)).item() for _ in range(40)]
    loss = statistics.fmean(losses)
    return TrialResult(loss if math.isfinite(loss) else math.inf, state_bytes(optimizer), time.perf_counter() - began)


def batch(text: Tensor) -> Tensor:
    """Some windows of the text."""
    return windows(text, torch.randint(len(text) - CONTEXT - 1, (BATCH,)), CONTEXT)


class Runs:
    """The runs that there are, in a file; others are made when they are asked for."""

    def __init__(self, may_run: bool) -> None:
        self.may_run = may_run
        saved = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
        self.done = {Trial(**entry["run"]): TrialResult(**entry["outcome"]) for entry in saved}

    def __call__(self, run: Trial) -> TrialResult:
        if run not in self.done:
            if not self.may_run:
                raise SystemExit(f"{RESULTS} has no {run}: run without --only-tables")
            self.done[run] = train(run)
            print(f"{run.method:<24}{run.muon_lr:<8g}{run.lr:<8g}seed {run.seed:<5}", end="")
            print(f"{self.done[run].loss:.4f}  {self.done[run].seconds:.0f} s", flush=True)
            kept = [{"run": asdict(trial), "outcome": asdict(outcome)} for trial, outcome in self.done.items()]
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            write(RESULTS, json_text(kept))
        loss = self.done[run].loss
        return (
            self.done[run] if loss is not None else TrialResult(math.inf, self.done[run].bytes, self.done[run].seconds)
        )


def tuned(method: str, runs: Runs) -> tuple[Trial, int, bool]:
    """The best run of the grid, the size of the grid, and whether the best lies inside of it."""
    ours, muons = list(RATES[method]), [0.0] if method == "AdamW alone" else list(MUON_RATES)
    for grown in range(GROWTH + 1):
        grid = [Trial(method, muon, lr, TUNING_SEED) for muon in muons for lr in ours]
        best = min(grid, key=lambda run: runs(run).loss)
        edges = [
            (rates, rate) for rates, rate in ((muons, best.muon_lr), (ours, best.lr)) if rate in (rates[0], rates[-1])
        ]
        edges = [(rates, rate) for rates, rate in edges if rate]
        if not edges or grown == GROWTH:
            break
        for rates, rate in edges:
            rates.append(2 * rate) if rate == rates[-1] else rates.insert(0, rate / 2)
    return best, len(grid), not edges


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
    """The best rates, the losses at them, and the paired differences to Muon + AdamW."""
    best = {method: tuned(method, runs) for method in RATES}
    losses = {
        method: [runs(Trial(method, run.muon_lr, run.lr, seed)).loss for seed in SEEDS]
        for method, (run, _, _) in best.items()
    }
    base = losses["Muon + AdamW"]
    rows = []
    for method, (run, size, inside) in best.items():
        differences = [mine - other for mine, other in zip(losses[method], base, strict=True)]
        rows.append(
            [
                method,
                f"{run.muon_lr:g}" if run.muon_lr else "–",
                f"{run.lr:g}",
                f"{size}{'' if inside else ', best at an edge'}",
                f"{statistics.fmean(losses[method]):.4f}",
                "–" if losses[method] is base else str(interval(differences)),
                "–" if losses[method] is base else ", ".join(f"{difference:+.3f}" for difference in differences),
            ]
        )
    head = ["", "Muon's rate", "the other rate", "runs of the grid", "held-out loss", "minus Muon + AdamW", "by seed"]
    tokens, seconds = int(words().max()) + 1, sum(outcome.seconds for outcome in runs.done.values())
    note = (
        f"{tokens:,} tokens, {STEPS} steps of {BATCH} × {CONTEXT} tokens, {len(SEEDS)} seeds; {len(runs.done)} runs in "
    )
    return (
        markdown_table(head, rows)
        + f"\n\n{note}{seconds / 60:.0f} minutes on one thread of a shared machine, torch {torch.__version__}."
    )


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
    losses = losses_table(runs)
    measured = {
        method: runs(Trial(method, best.muon_lr, best.lr, SEEDS[0])).bytes
        for method, (best, _, _) in ((method, tuned(method, runs)) for method in RATES)
    }
    blocks = {
        "losses": losses,
        "bytes": bytes_table(measured, 1e6, "MB"),
        "llama": bytes_table({method: llama_bytes(method) for method in RATES}, 1e9, "GB"),
    }
    print("\n\n".join(blocks.values()))
    if options.write:
        update_page(DOCS / "muon.md", {name: functools.partial(str, made) for name, made in blocks.items()})


if __name__ == "__main__":
    main()

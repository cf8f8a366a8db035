"""The tables: losses with paired intervals, tuning runs, time of a step, and state at the size of Llama 3 8B."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.markdown import markdown_table
from benchmarks.whole_model.candidates import ADAMW, CANDIDATES, MUON_ADAMW, RECIPE, Rates, default_rates
from benchmarks.whole_model.settings import SETTINGS
from benchmarks.whole_model.trial import Runs
from matrix_adagrad import CombinedOptimizer
from matrix_adagrad.intervals import interval

__all__ = ["llama_table", "losses_table", "time_table", "tuning_table"]


def losses_table(setting: str, candidates: Sequence[str], runs: Runs) -> str:
    """The rates, the losses at each quarter, the paired differences at the end, and the bytes of state."""
    own = SETTINGS[setting]
    chosen: dict[str, tuple[str, Rates]] = {name: (name, runs.tuned(setting, name)[0].rates) for name in candidates} | {
        f"{RECIPE}, at its defaults": (RECIPE, default_rates())
    }
    results = {name: runs.on_seeds(setting, candidate, rates) for name, (candidate, rates) in chosen.items()}
    last = {name: [result.losses[-1] for result in by_seed] for name, by_seed in results.items()}

    def minus(name: str, other: str) -> str:
        return "–" if name == other else str(interval([a - b for a, b in zip(last[name], last[other], strict=True)]))

    def cells() -> Iterator[list[str]]:
        for name, by_seed in results.items():
            quarters = zip(*(result.losses for result in by_seed), strict=True)
            rates, size = chosen[name][1], by_seed[0].state_bytes / results[ADAMW][0].state_bytes
            means = [f"{statistics.fmean(losses):.4f}" for losses in quarters]
            compared = [minus(name, ADAMW), minus(name, MUON_ADAMW)]
            yield [name, f"{rates.hidden:g}, {rates.rest:g}", *means, *compared, f"{size:.0%}"]

    head = ["", "rates: hidden, rest", *(f"{own.loss_name}, {step:,} steps" for step in own.judged)]
    budget = f"{own.tuning_runs} tuning runs and {len(own.seeds)} seeds each, torch {torch.__version__}"
    table = markdown_table([*head, f"minus {ADAMW}", f"minus {MUON_ADAMW}", f"state, of {ADAMW}'s"], cells())
    return f"{table}\n\n{own.describe()}. {budget}."


def tuning_table(setting: str, candidates: Sequence[str], runs: Runs) -> str:
    """All tuning runs of each candidate."""

    def cells() -> Iterator[list[str]]:
        for name in candidates:
            tried = runs.tuned(setting, name)
            yield [
                name,
                "; ".join(f"{run.rates.hidden:g}, {run.rates.rest:g}: {runs.loss(run):.3f}" for run in tried),
            ]

    return markdown_table(["", "rates, hidden and rest: loss, from best to worst"], cells())


def time_table(rounds: int = 40) -> str:
    """The time of `optimizer.step` for the GPT, on two threads, as a ratio of medians. Candidates take turns."""
    setting = SETTINGS["gpt"]
    torch.set_num_threads(2)
    (batch, *_) = setting.held_out(0)
    trained = []
    for candidate in CANDIDATES.values():
        model = setting.make_model()
        setting.loss(model, batch[:4]).backward()  # optimizers never write to a gradient: one serves all steps
        trained.append((model, candidate.make(model, Rates(1e-6, 1e-6))))
    seconds: list[list[float]] = [[] for _ in trained]
    for _ in range(rounds + 1):
        for (_, optimizer), times in zip(trained, seconds, strict=True):
            began = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - began)
    medians = dict(zip(CANDIDATES, (statistics.median(times[1:]) for times in seconds), strict=True))
    rows = ([name, f"{1e3 * median:.2f}", f"{median / medians[ADAMW]:.2f}"] for name, median in medians.items())
    return markdown_table(["", "ms per step", f"of {ADAMW}"], rows)


# ---------------------------------------------------------------------------------------------------------------- bytes


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


def bytes_by_kind(optimizer: Optimizer) -> Counter[str]:
    """Bytes of state by kind of parameter: "table", "head", "matrix", "vector"."""
    total: Counter[str] = Counter()
    for group in optimizer.param_groups:
        for param in group["params"]:
            values = optimizer.state[param].values()
            total[group["name"]] += sum(value.nbytes for value in values if isinstance(value, Tensor))
    return total


def llama_table() -> str:
    """What the optimizers themselves keep for the shapes of Llama 3 8B, by kind. No memory is needed."""

    def cells() -> Iterator[list[str]]:
        whole = 0
        for name in (ADAMW, "Adam-mini, by row", MUON_ADAMW, "Muon + rows without momentum", RECIPE):
            optimizer = CANDIDATES[name].make(llama(), Rates(1e-3, 1e-3))
            if not isinstance(optimizer, CombinedOptimizer):
                optimizer = CombinedOptimizer([optimizer])
            optimizer.init_state()
            own = bytes_by_kind(optimizer)
            whole = whole or own.total()
            sizes = [own["table"] + own["head"], own["matrix"], own["vector"], own.total()]
            yield [name, *(f"{size / 1e9:,.3f}" for size in sizes), f"{own.total() / whole:.0%}"]

    return markdown_table(["", "tables and head, GB", "hidden matrices", "vectors", "all", f"of {ADAMW}"], cells())

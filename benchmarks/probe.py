"""What the advisor's probe costs: the time of training with it over the time without it, and its memory.

    python -m benchmarks.probe [--write]

Stretches of the same training loop alternate with and without the probe. The result is the mean ratio of neighbouring
stretches, with its standard error: most stretches have at most one observation, so a median would miss them. The
probe's own clock says how long observations took. ``--write`` puts the table into docs/advisor.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.markdown import DOCS, markdown_table, update_page
from matrix_adagrad import MatrixAdaGrad, RowAdaGrad, RowMomentum
from matrix_adagrad.advisor import Probe
from matrix_adagrad.demos.gpt import GPT

SECONDS = 0.5  # of a stretch
Loop = tuple[nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]


def small_layers() -> Loop:
    """40 layers of 64 × 64, batches of 32: little to compute, much to observe."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(40)))
    x = torch.randn(32, 64)
    return model, MatrixAdaGrad(model.parameters(), lr=1e-3, geometry="row"), lambda: model(x).square().mean()


def wide_layer() -> Loop:
    """A 4096 × 4096 layer, batches of 16."""
    model = nn.Linear(4096, 4096)
    x = torch.randn(16, 4096)
    return model, RowAdaGrad(model.parameters(), lr=1e-3), lambda: model(x).square().mean()


def gpt() -> Loop:
    """The small GPT of the character model, 6 windows of 64 characters."""
    model = GPT(96, context=64)
    x = torch.randint(96, (6, 64))
    return model, RowMomentum(model.parameters(), lr=1e-3), lambda: model(x).square().mean()


def sparse_table() -> Loop:
    """A 1,000,000 × 64 table with sparse gradients, 4096 indices per step."""
    model = nn.Embedding(1_000_000, 64, sparse=True)
    x = torch.randint(1_000_000, (4096,))
    return model, RowAdaGrad(model.parameters(), lr=1e-3), lambda: model(x).square().mean()


def dense_table() -> Loop:
    """A 100,000 × 64 table with dense gradients, 4096 indices per step."""
    model = nn.Embedding(100_000, 64)
    x = torch.randint(100_000, (4096,))
    return model, RowAdaGrad(model.parameters(), lr=1e-3), lambda: model(x).square().mean()


CASES = (small_layers, wide_layer, gpt, sparse_table, dense_table)


def measure(case: Callable[[], Loop], rounds: int) -> list[str]:
    """A row of the table."""
    torch.manual_seed(0)
    model, optimizer, loss = case()

    def loop(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        return (time.perf_counter() - start) / steps

    loop(3)
    steps = max(3, round(SECONDS / loop(5)))
    probe = Probe(model, optimizer)
    plain, watched = [], []
    for _ in range(rounds):
        plain.append(loop(steps))
        with probe:
            watched.append(loop(steps))
    ratios = [b / a for a, b in zip(plain, watched, strict=True)]
    error = statistics.stdev(ratios) / math.sqrt(rounds)
    first = probe.report().parameters[0]
    numbers = sum(param.nbytes for param in model.parameters())
    return [
        (case.__doc__ or "").rstrip("."),
        f"{1e3 * statistics.median(plain):.2f} ms",
        f"{statistics.fmean(ratios):.3f} ± {error:.3f}",
        f"{probe.seconds / (steps * sum(watched)):.1%}",
        f"1 in {first.steps / first.observed:.0f}",
        f"{probe.nbytes / 1e6:.2f} MB",
        f"{probe.nbytes / numbers:.1%}",
    ]


def main() -> None:
    """Measure, print, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="stretches with and without (default: 30)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/advisor.md")
    parser.add_argument("--threads", type=int, default=1, help="(default: 1; with more, tiny models are noisy)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    head = [
        "model",
        "step without the probe",
        "ratio with it",
        "its own time",
        "steps observed",
        "its memory",
        "relative to the parameters",
    ]
    made = markdown_table(head, [measure(case, options.rounds) for case in CASES])
    made += f"\n\n{options.threads} thread{'s' * (options.threads > 1)}, torch {torch.__version__}."
    print(made)
    if options.write:
        update_page(DOCS / "advisor.md", {"probe": lambda: made})


if __name__ == "__main__":
    main()

"""The memory of training with steps in the backward pass, compared with the ordinary loop.

    python -m benchmarks.in_backward [--write]

Measures, from the allocator's own events, the peak memory of tensors in an iteration (forward pass, backward pass,
step), beyond parameters and state. Also measures the time of iterations, interleaved, as a ratio of medians.
``--write`` puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.markdown import DOCS, markdown_table, update_page
from benchmarks.measure import peak_extra_bytes, time_interleaved
from matrix_adagrad import RowAdaGrad, RowMomentum, step_in_backward
from matrix_adagrad.demos.gpt import GPT

Task = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def layers() -> Task:
    """24 layers of 1024 × 1024, batches of 16."""
    x = torch.randn(16, 1024)
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(24))), lambda model: model(x).square().mean()


def gpt() -> Task:
    """A GPT of 8 layers of width 384, 4 windows of 64 tokens, 8,000 tokens."""
    x = torch.randint(8000, (4, 64))
    model = GPT(8000, context=64, width=384, heads=6, layers=8)
    return model, lambda model: nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "`RowAdaGrad`": lambda model: RowAdaGrad(model.parameters(), lr=1e-4),
    "`RowMomentum`": lambda model: RowMomentum(model.parameters(), lr=1e-4),
    "`torch.optim.Adam`, fused": lambda model: torch.optim.Adam(model.parameters(), lr=1e-4, fused=True),
}


def _iterate(model: nn.Module, loss: Callable[[nn.Module], Tensor], optimizer: Optimizer) -> None:
    loss(model).backward()
    optimizer.step()
    optimizer.zero_grad()


def measure(task: Callable[[], Task], rounds: int) -> list[list[str]]:
    """The rows of the table: both loops for each optimizer."""
    iterations, held, peaks = {}, {}, {}
    for name, make in OPTIMIZERS.items():
        for in_backward in (False, True):
            torch.manual_seed(0)
            model, loss = task()
            optimizer = make(model)
            if in_backward:
                step_in_backward(optimizer)
            key, iterate = (name, in_backward), functools.partial(_iterate, model, loss, optimizer)
            iterate()
            iterations[key] = iterate
            state = sum(x.nbytes for values in optimizer.state.values() for x in values.values())
            held[key] = sum(param.nbytes for param in model.parameters()), state
            peaks[key] = peak_extra_bytes(iterate)[0]
    times = time_interleaved({f"{name} {during}": call for (name, during), call in iterations.items()}, rounds)
    rows = []
    for name, during in iterations:
        parameters, state = held[name, during]
        peak = peaks[name, during]
        ratio, low, high = times[f"{name} {during}"].ratio_to(times[f"{name} False"])
        rows.append(
            [
                (task.__doc__ or "").rstrip("."),
                name,
                "in the backward pass" if during else "ordinary",
                *(f"{size / 2**20:.1f}" for size in (parameters, state, peak, parameters + state + peak)),
                f"{ratio:.2f} ({low:.2f}–{high:.2f})" if during else "1",
            ]
        )
    return rows


def main() -> None:
    """Measure, print, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    head = ["model", "optimizer", "loop", "parameters, MiB", "state", "peak of an iteration", "in all", "time"]
    made = markdown_table(head, [row for task in (layers, gpt) for row in measure(task, options.rounds)])
    made += f"\n\n{torch.get_num_threads()} threads, torch {torch.__version__}."
    print(made)
    if options.write:
        update_page(DOCS / "benchmarks.md", {"in-backward": lambda: made})


if __name__ == "__main__":
    main()

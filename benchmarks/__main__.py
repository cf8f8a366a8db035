"""One step of each optimizer next to torch.optim's: time, peak extra memory, state.

Run with ``make bench``. Ratios are of medians of interleaved rounds; in brackets the quartiles of rounds' ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

from benchmarks.measure import peak_extra_bytes, time_interleaved
from matrix_adagrad import ColumnAdaGrad, ColumnMomentum, MatrixAdaGrad, RowAdaGrad, RowMomentum

Make = Callable[[list[Parameter]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "torch SGD, fused": lambda params: SGD(params, lr=1e-3, fused=True),
    "torch SGD, foreach": lambda params: SGD(params, lr=1e-3, foreach=True),
    "torch Adagrad, fused": lambda params: Adagrad(params, fused=True),
    "torch Adagrad, foreach": lambda params: Adagrad(params, foreach=True),
    "torch Adam, fused": lambda params: Adam(params, fused=True),
    "torch Adam, foreach": lambda params: Adam(params, foreach=True),
    "RowAdaGrad, reference": lambda params: RowAdaGrad(params, foreach=False),
    "RowAdaGrad, foreach": lambda params: RowAdaGrad(params, foreach=True),
    "ColumnAdaGrad, foreach": lambda params: ColumnAdaGrad(params, foreach=True),
    "MatrixAdaGrad entry, foreach": lambda params: MatrixAdaGrad(params, geometry="entry", foreach=True),
    "RowMomentum, foreach": lambda params: RowMomentum(params, foreach=True),
    "ColumnMomentum, foreach": lambda params: ColumnMomentum(params, foreach=True),
}
SPARSE: dict[str, Make] = {
    "torch Adagrad, sparse": Adagrad,
    "torch SparseAdam": SparseAdam,
    "RowAdaGrad, sparse": RowAdaGrad,
    "ColumnAdaGrad, sparse": ColumnAdaGrad,
    "RowMomentum, sparse": RowMomentum,
}
MODELS: dict[str, list[tuple[int, ...]]] = {
    "one 4096 × 4096 matrix": [(4096, 4096)],
    "one 1,000,000 × 64 table": [(1_000_000, 64)],
    "100 matrices of 256 × 256 and 100 vectors": [(256, 256)] * 100 + [(256,)] * 100,
}


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default: 15)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads (default: torch's)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # said aloud, or torch's Adagrad warns
    print(f"torch {torch.__version__}, {options.threads} threads, {options.rounds} rounds, float32\n")
    for title, shapes in MODELS.items():
        params = [Parameter(torch.randn(shape)) for shape in shapes]
        for param in params:
            param.grad = torch.randn_like(param)
        _compare(title, params, OPTIMIZERS, "torch SGD, fused", options.rounds)
    table = Parameter(torch.randn(1_000_000, 64))
    index = torch.randint(len(table), (1, 4096 * 20))
    table.grad = torch.sparse_coo_tensor(index, torch.randn(index.shape[1], 64), table.shape, check_invariants=True)
    _compare("one 1,000,000 × 64 table, 81,920 random rows", [table], SPARSE, "torch Adagrad, sparse", options.rounds)


def _compare(title: str, params: list[Parameter], makes: dict[str, Make], baseline: str, rounds: int) -> None:
    size = sum(param.numel() * param.element_size() for param in params)
    optimizers = {name: make(params) for name, make in makes.items()}
    times = time_interleaved({name: optimizer.step for name, optimizer in optimizers.items()}, rounds)
    print(f"{title}: {size / 2**20:.1f} MiB of parameters")
    over = "× " + baseline.removeprefix("torch ")
    print(f"  {'':<30}{'ms':>9}{over:>22}{'peak extra':>13}{'state':>11}   (× the parameters)")
    for name, optimizer in optimizers.items():
        ratio, low, high = times[name].ratio_to(times[baseline])
        peak, _ = peak_extra_bytes(optimizer.step)
        spread = f"{ratio:.2f} ({low:.2f}–{high:.2f})"
        state = _state_bytes(optimizer)
        print(f"  {name:<30}{times[name].median * 1e3:>9.2f}{spread:>22}{peak / size:>13.3f}{state / size:>11.4f}")
    print()


def _state_bytes(optimizer: Optimizer) -> int:
    values = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor))


if __name__ == "__main__":
    main()

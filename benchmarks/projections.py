"""What a domain adds to a step: interleaved measurements, as ratios of medians to the unconstrained step.

python -m benchmarks.projections
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import Parameter

from matrix_adagrad import MatrixAdaGrad
from matrix_adagrad.domains import Domain, FrobeniusBall, NonNegative, RowBalls, RowSimplex, WholeSpace
from matrix_adagrad.online import MirrorDescent

ROUNDS = {"learner": 2000, "optimizer": 7}


def main() -> None:
    """Print both tables."""
    print(
        "MirrorDescent on 64×64 in float64, one thread, on the surface of the set: step over the unconstrained step\n"
    )
    torch.set_num_threads(1)
    sets: dict[str, Domain] = {
        "FrobeniusBall": FrobeniusBall(1.0),
        "RowBalls": RowBalls(1.0),
        "RowSimplex": RowSimplex(),
    }
    _header(sets)
    for geometry in ("row", "column", "entry"):
        grads = [torch.randn(64, 64, dtype=torch.float64) for _ in range(50)]
        steps = {name: _learner(geometry, domain, grads) for name, domain in {"": WholeSpace(), **sets}.items()}
        _print(geometry, _interleaved(steps, ROUNDS["learner"]))

    torch.set_num_threads(2)
    print("\nMatrixAdaGrad in float32, 2 threads, dense gradients: step over the unconstrained step\n")
    both: dict[str, Domain] = {**sets, "NonNegative": NonNegative()}
    _header(both)
    for shape in ((4096, 4096), (500_000, 64)):
        for geometry in ("row", "column", "entry"):
            domains: dict[str, Domain | None] = {"": None, **both}
            steps = {name: _optimizer(shape, geometry, domain) for name, domain in domains.items()}
            _print(f"{geometry}, {shape[0]}×{shape[1]}", _interleaved(steps, ROUNDS["optimizer"]))


def _learner(geometry: str, domain: Domain, grads: list[torch.Tensor]) -> Callable[[], object]:
    learner = MirrorDescent(domain.project(torch.zeros(64, 64, dtype=torch.float64)), geometry, domain, 1.0)
    return lambda: learner.update(grads[learner.rounds % len(grads)])


def _optimizer(shape: tuple[int, int], geometry: str, domain: Domain | None) -> Callable[[], object]:
    param = Parameter(torch.rand(shape) / shape[1])
    param.grad = torch.randn(shape)
    return MatrixAdaGrad([param], lr=1e-3, geometry=geometry, domain=domain, project_start=True).step


def _interleaved(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + rounds // 10 + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number > rounds // 10 + 1:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def _header(domains: dict[str, Domain]) -> None:
    print(f"{'geometry':<22}{'unconstrained':>16}" + "".join(f"{name:>16}" for name in domains))


def _print(name: str, times: dict[str, float]) -> None:
    base = times.pop("")
    print(f"{name:<22}{base * 1e6:>13.1f} µs" + "".join(f"{taken / base:>15.2f}×" for taken in times.values()))


if __name__ == "__main__":
    main()

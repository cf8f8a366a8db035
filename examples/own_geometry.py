"""A custom geometry: one scale per sensor, shared by all lags and all forecasts.

Forecasts are linear in the last hours of several sensors. Some sensors report all the time, others hardly ever. The
weight has one row per forecast and one column per sensor and lag; the columns of a sensor are 8 apart.
"""

from dataclasses import dataclass

import torch
from torch import nn

from matrix_adagrad import Geometry, MatrixAdaGrad, Partition
from matrix_adagrad.domains import FrobeniusBall
from matrix_adagrad.geometry import as_geometry
from matrix_adagrad.online import MirrorDescent, RegretMeter, Solution


@dataclass(frozen=True)
class Sensor(Partition):
    """All entries of a matrix that belong to one sensor share a scale; sensors alternate along ``axis``."""

    sensors: int
    axis: int = 1

    def cut(self, shape):  # split the axis of lags and sensors in two: (m, lags, sensors), or (lags, sensors, n)
        if len(shape) != 2:
            return tuple(shape)
        lags, rest = divmod(shape[self.axis], self.sensors)
        if rest:
            raise ValueError(f"{self!r} cannot cut {shape[self.axis]} entries into lags of {self.sensors} sensors")
        return (*shape[: self.axis], lags, self.sensors, *shape[self.axis + 1 :])

    def dims(self, shape):  # all dimensions except the sensors lie inside a block
        return () if len(shape) != 2 else (0, 1) if self.axis == 1 else (0, 2)

    @property
    def transpose(self):
        return Sensor(self.sensors, 1 - self.axis)


torch.set_num_threads(1)  # on such small matrices, threads would only wait for each other
torch.manual_seed(0)
SENSORS, LAGS, FORECASTS, STEPS, BATCH = 8, 12, 4, 200, 16
often = torch.logspace(0, -2.5, SENSORS)  # the share of hours in which each sensor reports: from all to 1 in 316
truth = torch.randn(FORECASTS, LAGS * SENSORS) / LAGS**0.5
reports = torch.randn(STEPS, BATCH, LAGS, SENSORS) * (torch.rand(STEPS, BATCH, LAGS, SENSORS) < often)
batches = [(x, x @ truth.T + 0.1 * torch.randn(BATCH, FORECASTS)) for x in reports.flatten(2)]


def train(geometry: Geometry, lr: float) -> tuple[float, int]:
    """Return how far the final weight is from the truth, and how many numbers of state the optimizer keeps."""
    weight = nn.Parameter(torch.zeros_like(truth))
    optimizer = MatrixAdaGrad([weight], lr, geometry=geometry, reduction="mean")
    for x, y in batches:
        optimizer.zero_grad()
        (x @ weight.T - y).square().mean().backward()
        optimizer.step()
    return ((weight.detach() - truth).norm() / truth.norm()).item(), optimizer.state[weight]["sum"].numel()


geometries = (Sensor(SENSORS), *map(as_geometry, ("row", "column", "entry")))
ends = {geometry: min(train(geometry, lr) for lr in (0.1, 0.3, 1.0)) for geometry in geometries}  # the best rate

# It works in the theory, too: mirror descent, and the bound √2 D Σ_b √V_b in each geometry, for the same gradients.
learner = MirrorDescent(torch.zeros_like(truth), Sensor(SENSORS), FrobeniusBall(truth.norm().item()))
meter, total = RegretMeter(learner, bounds_for=geometries), torch.zeros_like(truth)
for x, y in batches:
    grad = 2 * (x @ learner.x.T - y).T @ x / y.numel()
    total += grad
    meter.record(float((grad * learner.x).sum()), grad)  # linearized: the regret of the squared loss is at most this
best = learner.domain.argmin(total)
regret = meter.regret(Solution(best, float((total * best).sum()), gap=0.0))

print("one scale per               numbers of state   distance to the truth   bound on the regret")
for geometry, (distance, numbers) in ends.items():
    print(f"{geometry!s:<26}{numbers:>18}{distance:>24.3f}{regret.geometry_bounds[str(geometry)]:>22.1f}")
print(f"Regret of mirror descent by sensor: {regret.regret:.1f}. A low bound does not imply a short distance: see row.")
assert regret.holds
assert ends[geometries[0]] == min(ends.values())

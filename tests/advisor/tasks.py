"""Small tasks with a known answer."""

import torch
from torch import nn

from matrix_adagrad.advisor import Task


def regression(scales, rows=6, columns=5, noise=0.0):
    """Least squares with inputs of different scales: squared gradients differ by column."""
    scales = torch.tensor(scales)

    def batches(seed):
        random = torch.Generator().manual_seed(1000 + seed)
        planted = torch.randn(columns, rows, generator=torch.Generator().manual_seed(99)) / scales[:, None]
        while True:
            x = torch.randn(16, columns, generator=random) * scales
            yield x, x @ planted + noise * torch.randn(16, rows, generator=random)

    return Task(
        lambda: nn.Linear(columns, rows, bias=False),
        lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        batches,
        name="regression",
    )


EVEN = regression([1.0] * 5)
BY_COLUMN = regression([0.01, 0.03, 0.1, 0.3, 1.0])

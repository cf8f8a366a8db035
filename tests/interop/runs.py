"""Runs of two optimizers on the same gradients, whose rows and columns differ by orders of magnitude."""

import torch
from torch.nn import Parameter


def matrix(rows, width, seed):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=random)
    return x * torch.logspace(-3, 3, rows)[:, None] * torch.logspace(1, -1, width)


def parameters(shapes):
    random = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(shape, generator=random)) for shape in shapes]


def give_gradients(params, step, but=None):
    """Their gradients of this step; the parameter with the number ``but`` has none."""
    for i, param in enumerate(params):
        grad = matrix(len(param), param[0].numel(), 100 * step + i).view_as(param)
        param.grad = None if i == but else grad.to(param.dtype)


def run(optimizer, params, steps, but=None):
    for step in steps:
        give_gradients(params, step, but)
        optimizer.step()


def assert_same_parameters(ours, theirs):
    for param, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-6, atol=1e-6)


def assert_bit_equal_states(optimizer, other, params):
    for param in params:
        assert set(optimizer.state[param]) == set(other.state[param])
        for key, value in optimizer.state[param].items():
            assert torch.equal(value, other.state[param][key]), key


def options_of(optimizer, names):
    """The options of these names in each group, with the numbers of parameters and their names."""
    return [
        [len(group["params"]), group.get("param_names"), *(group[name] for name in names)]
        for group in optimizer.param_groups
    ]

"""Optimizers of several kinds as one, for the tests of `CombinedOptimizer`."""

import torch
from torch.optim import SGD, AdamW, Muon

from matrix_adagrad import CombinedOptimizer, RowMomentum
from tests.optim.training import make_params, train

SHAPES = ((6, 4), (4, 6), (5, 3), (7,), (3, 3))


def parts_of(params):
    """Of each kind: torch's and ours, with one group and with two, some of them with weight decay."""
    return [
        Muon(params[:1], lr=0.02, weight_decay=0.1),
        RowMomentum([{"params": [("w", params[1])]}, {"params": [("bias", params[3])], "lr": 0.03}], lr=0.1),
        AdamW(params[2:3], lr=0.01),
        SGD(params[4:], lr=0.1, momentum=0.9, weight_decay=0.1),
    ]


def made(dtype=torch.float64):
    params = make_params(dtype, SHAPES)
    return params, CombinedOptimizer(parts_of(params))


def trained(steps=3):
    return train(lambda params: CombinedOptimizer(parts_of(params)), make_params(shapes=SHAPES), steps)


def assert_same_saved(saved, expected):
    torch.testing.assert_close(saved["state"], expected["state"], rtol=0, atol=0)
    assert saved["param_groups"] == expected["param_groups"]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.own = torch.nn.ParameterList(make_params(torch.float32, SHAPES))

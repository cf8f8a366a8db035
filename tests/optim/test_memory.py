"""State is O(m) or O(n), as the paper says; what a step needs besides is gone when it ends."""

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import Adagrad, Adam

from benchmarks.measure import peak_extra_bytes
from matrix_adagrad import MatrixAdaGrad, MatrixMomentum
from tests.optim.table import TABLE, settings

every_entrant = pytest.mark.parametrize("entrant", TABLE, ids=str)
M, N = 512, 256


def numbers(optimizer, *keys):
    """How many float32s the optimizer keeps."""
    values = [state[key] for state in optimizer.state.values() for key in keys]
    return sum(value.numel() * value.element_size() for value in values) // 4


def stepped(make, *shapes, dtype=torch.float32):
    params = [Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes or [(M, N)]]
    optimizer = make(params)
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer.step()
    return optimizer


def test_state_of_a_model_next_to_torch_adagrad_and_adam():
    model = nn.Sequential(nn.Embedding(10_000, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    entries = sum(p.numel() for p in model.parameters())
    vectors = 128 + 10
    expected = {"row": 10_000 + 128 + 10 + vectors, "column": 64 + 64 + 128 + vectors, "entry": entries, "whole": 5}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for geometry, scales in expected.items():
        adagrad = MatrixAdaGrad(model.parameters(), geometry=geometry)
        adagrad.step()
        assert numbers(adagrad, "sum") == scales
        momentum = MatrixMomentum(model.parameters(), geometry=geometry)
        momentum.step()
        assert numbers(momentum, "exp_avg", "exp_avg_sq") == entries + scales
    torch_adagrad, torch_adam = Adagrad(model.parameters()), Adam(model.parameters())
    torch_adam.step()
    assert numbers(torch_adagrad, "sum") == entries
    assert numbers(torch_adam, "exp_avg", "exp_avg_sq") == 2 * entries
    assert expected["row"] * 50 < entries


@every_entrant
@pytest.mark.parametrize("foreach", [False, True])
def test_nothing_that_a_step_made_outlives_it(entrant, foreach):
    for options in settings(entrant):
        optimizer = stepped(lambda p, options=options: entrant(p, foreach=foreach, **options), (64, 32), (32,))
        _, left = peak_extra_bytes(optimizer.step)
        assert left == 0


@every_entrant
def test_making_state_needs_no_full_size_temporary(entrant):
    params = [Parameter(torch.randn(M, N))]
    optimizer = entrant(params)
    peak, left = peak_extra_bytes(optimizer.init_state)
    assert peak == left == sum(value.numel() * 4 for value in optimizer.state[params[0]].values())


@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
@pytest.mark.parametrize("geometry", ["row", "column", "whole"])
@pytest.mark.parametrize(
    ("dtype", "options", "copies"),
    [
        (torch.float32, {}, 0),
        (torch.float32, {"weight_decay": 0.1, "decoupled_weight_decay": True}, 0),
        (torch.float32, {"weight_decay": 0.1}, 1),
        (torch.float32, {"maximize": True}, 1),
        (torch.float32, {"maximize": True, "weight_decay": 0.1}, 1),
        (torch.bfloat16, {}, 2),
        (torch.float16, {}, 2),
        (torch.bfloat16, {"weight_decay": 0.1}, 2),
        (torch.bfloat16, {"stochastic_rounding": True}, 3),
        (torch.float16, {"stochastic_rounding": True}, 3),
    ],
)
def test_the_foreach_path_holds_at_most_this_many_wide_copies_of_one_tensor(cls, geometry, dtype, options, copies):
    """As the documentation states: of the largest tensor, not of all of them, and one small piece."""
    m, n = 2048, 1024
    optimizer = stepped(lambda p: cls(p, geometry=geometry, foreach=True, **options), *[(m, n)] * 3, dtype=dtype)
    peak, _ = peak_extra_bytes(optimizer.step)
    piece = 2**20
    assert peak <= copies * m * n * 4 + piece + 3 * 4 * (m + n) * 4


@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
def test_the_foreach_path_holds_two_lists_of_the_statistics_in_the_entry_geometry(cls):
    """The squares, and then the scales next to one tensor's temporaries."""
    optimizer = stepped(lambda p: cls(p, geometry="entry", foreach=True), *[(M, N)] * 5)
    peak, _ = peak_extra_bytes(optimizer.step)
    assert peak <= 2 * 5 * M * N * 4

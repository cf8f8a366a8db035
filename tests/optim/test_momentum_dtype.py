"""With momentum_dtype=torch.bfloat16, the average of gradients takes half the memory and is rounded without bias."""

import io

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad import (
    Blocks,
    Column,
    ColumnMomentum,
    Entry,
    Factored,
    MatrixMomentum,
    Row,
    RowMomentum,
    Spectral,
    SteepestDescent,
    Whole,
    native,
    state_bytes,
)

BF16 = torch.bfloat16
CLASSES = (MatrixMomentum, RowMomentum, ColumnMomentum, SteepestDescent)
every_class = pytest.mark.parametrize("cls", CLASSES)
DESCENTS = [SteepestDescent, {"geometry": Row()}], [SteepestDescent, {"geometry": Spectral(), "nesterov": True}]
AVERAGES = [
    *([MatrixMomentum, {"geometry": own}] for own in (Row(), Column(), Entry(), Whole(), Blocks(rows=2), Factored())),
    *([MatrixMomentum, {"foreach": backend, "weight_decay": 0.1}] for backend in (True, False)),
]


def trained(cls, x=None, steps=5, **options):
    x = Parameter(torch.ones(6, 4)) if x is None else x
    optimizer = cls([x], **{"lr": 0.1, "momentum_dtype": BF16, **options})
    for t in range(steps):
        step(optimizer, x, t)
    return x, optimizer


def step(optimizer, x, t=0):
    x.grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(t)).to(x)
    optimizer.step()


def average_of(optimizer, x):
    return optimizer.state[x][optimizer.AVERAGE]


# ----------------------------------------------------------------------------------------------------------- its size


@every_class
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16], ids=str)
def test_the_average_takes_two_bytes_an_entry_instead_of_four(cls, dtype):
    sizes = {}
    for own in (None, BF16):
        x, optimizer = trained(cls, Parameter(torch.ones(64, 32, dtype=dtype)), momentum_dtype=own)
        sizes[own] = state_bytes(optimizer)
        assert average_of(optimizer, x).dtype is (own or torch.float32)
        assert all(v.dtype is torch.float32 for key, v in optimizer.state[x].items() if key != optimizer.AVERAGE)
    assert sizes[None] - sizes[BF16] == 2 * 64 * 32


def test_without_momentum_there_is_no_average_to_narrow():
    x, optimizer = trained(MatrixMomentum, betas=(0.0, 0.9))
    assert "exp_avg" not in optimizer.state[x]


# ------------------------------------------------------------------------------------------------------- its rounding


@every_class
def test_it_is_rounded_without_bias_to_one_of_its_neighbours(cls):
    x = Parameter(torch.ones(500, 400))
    optimizer = cls([x], momentum_dtype=BF16)
    x.grad = torch.full_like(x, 10 * (1 + 0.3 * 2**-7))  # a tenth of it is 0.3 units above 1
    optimizer.step()
    ups = (average_of(optimizer, x).float() - 1) * 2**7
    assert set(ups.unique().tolist()) == {0.0, 1.0}
    assert abs(ups.mean() - 0.3) < 5 * (0.3 * 0.7 / ups.numel()) ** 0.5


@every_class
def test_it_follows_gradients_where_rounding_to_nearest_would_stall(cls):
    beta, target, steps = 0.99, 1.25, 200
    x = Parameter(torch.ones(100, 100))
    betas = {"momentum": beta} if cls is SteepestDescent else {"betas": (beta, 0.9)}
    optimizer = cls([x], lr=0.0, momentum_dtype=BF16, **betas)
    optimizer.init_state()
    average_of(optimizer, x).fill_(1)
    nearest = torch.ones((), dtype=BF16)
    for _ in range(steps):
        x.grad = torch.full_like(x, target)
        optimizer.step()
        nearest = nearest.float().lerp(torch.tensor(target), 1 - beta).to(BF16)
    exact = target - (target - 1) * beta**steps
    assert nearest == 1  # a hundredth of the gap is less than half a unit
    assert abs(average_of(optimizer, x).float().mean() - exact) < 1e-3


def test_a_parameter_and_its_average_draw_different_numbers():
    x = Parameter(torch.ones(200, 200, dtype=BF16))
    x.grad = torch.full_like(x, -10 * (1 + 2**-6))
    optimizer = SteepestDescent(
        [x], lr=2**-8, geometry="entry", scale=None, momentum=0.95, momentum_dtype=BF16, stochastic_rounding=True
    )
    optimizer.step()
    assert x.unique().numel() == average_of(optimizer, x).unique().numel() == 2
    coins = torch.stack([(x > 1).flatten(), (average_of(optimizer, x) > average_of(optimizer, x).mean()).flatten()])
    assert abs(torch.corrcoef(coins.float())[0, 1]) < 5 / coins[0].numel() ** 0.5


def test_two_parameters_and_two_steps_draw_different_numbers():
    params = [Parameter(torch.ones(200, 200)) for _ in range(2)]
    optimizer, drawn = MatrixMomentum(params, lr=0.0, momentum_dtype=BF16), []
    optimizer.init_state()
    for _ in range(2):
        for param in params:
            param.grad = torch.full_like(param, 1 + 2**-4)
            average_of(optimizer, param).fill_(1)  # and 0.8 units
        optimizer.step()
        drawn += [average_of(optimizer, param) > 1 for param in params]
    drawn = torch.stack([own.flatten() for own in drawn]).float()
    assert (torch.corrcoef(drawn) - torch.eye(4)).abs().max() < 0.03


# --------------------------------------------------------------------------------------------------------- every step


@pytest.mark.parametrize(("cls", "options"), [*DESCENTS, *AVERAGES], ids=str)
def test_runs_stay_near_those_with_a_wide_average(cls, options):
    torch.manual_seed(0)
    (narrow, optimizer), (wide, _) = (trained(cls, momentum_dtype=own, **options) for own in (BF16, None))
    assert average_of(optimizer, narrow).dtype is BF16
    moved = (wide - 1).norm()
    assert 0 < (narrow - wide).norm() < 0.03 * moved


def test_steps_go_along_the_average_that_is_kept():
    x, optimizer = trained(SteepestDescent, scale=None)
    before = x.detach().clone()
    step(optimizer, x, 7)
    torch.testing.assert_close(x.detach(), before - 0.1 * Row().steepest(average_of(optimizer, x).float()))


@pytest.mark.parametrize("cls", [MatrixMomentum, SteepestDescent])
def test_sparse_gradients_round_the_rows_that_they_touch(cls):
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = cls(table.parameters(), momentum_dtype=BF16)
    table(torch.tensor([3, 5, 3])).sum().backward()
    optimizer.step()
    average = average_of(optimizer, table.weight)
    assert average.dtype is BF16
    torch.testing.assert_close(average[[3, 5]].float(), torch.tensor([[0.2], [0.1]]).expand(2, 4), rtol=2**-7, atol=0)
    assert (average[[0, 1, 2, 4, 6, 7, 8, 9]] == 0).all()


def test_a_compiled_step_rounds_too():
    torch._dynamo.reset()
    x = Parameter(torch.ones(6, 4))
    optimizer = RowMomentum([x], lr=torch.tensor(0.1), momentum_dtype=BF16)
    compiled = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        x.grad = torch.ones_like(x)
        compiled()
    torch.testing.assert_close(average_of(optimizer, x).float(), torch.full((6, 4), 0.19), rtol=2**-6, atol=0)


@pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")
@every_class
def test_the_kernels_say_that_they_do_not_cover_it(cls):
    with pytest.raises(RuntimeError, match="an average in torch.bfloat16 is for torch's operators.*leave fused=None"):
        trained(cls, fused=True)


# ------------------------------------------------------------------------------------------------------- saved states


@every_class
def test_a_saved_run_goes_on_with_the_same_bits(cls):
    x, optimizer = trained(cls)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    y = Parameter(x.detach().clone())
    other = cls([y], momentum_dtype=BF16)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert average_of(other, y).dtype is BF16
    for own, param in ((optimizer, x), (other, y)):
        torch.manual_seed(0)
        step(own, param)
    assert torch.equal(x, y)
    assert torch.equal(average_of(optimizer, x), average_of(other, y))


@every_class
@pytest.mark.parametrize(("saved", "own"), [(None, BF16), (BF16, None)], ids=str)
def test_a_state_is_converted_to_the_dtype_that_was_asked_for(cls, saved, own):
    x, optimizer = trained(cls, momentum_dtype=saved)
    other = cls([x], momentum_dtype=own)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["momentum_dtype"] is own
    assert torch.equal(average_of(other, x), average_of(optimizer, x).to(own or torch.float32))
    step(other, x)


@every_class
def test_the_option_can_be_edited_between_steps(cls):
    x, optimizer = trained(cls)
    for dtype in (None, BF16):
        optimizer.param_groups[0]["momentum_dtype"] = dtype
        step(optimizer, x)
        assert average_of(optimizer, x).dtype is (dtype or torch.float32)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"momentum_dtype": torch.float16}, "momentum_dtype must be None or torch.bfloat16, got torch.float16"),
        ({"differentiable": True}, "momentum_dtype=torch.bfloat16 cannot be differentiated through"),
        ({"x": Parameter(torch.ones(2, 2, dtype=torch.cfloat))}, "parameter 0 has dtype.*leave momentum_dtype=None"),
    ],
    ids=["float16", "differentiable", "complex"],
)
def test_what_is_not_possible_is_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        trained(MatrixMomentum, **options)

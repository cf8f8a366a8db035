"""Tensors of every dtype, layout and size; numbers that are zero, huge, tiny or not numbers at all."""

import pytest
import torch
from torch.nn import Parameter

from matrix_adagrad import MatrixAdaGrad, MatrixMomentum, RowAdaGrad, RowMomentum
from matrix_adagrad.geometry import Blocks, Row, as_geometry
from tests.optim.table import BACKENDS, CLASSES, TABLE, settings
from tests.optim.training import assert_bitwise, assert_same, make_grads, make_params, train

every_class = pytest.mark.parametrize("entrant", CLASSES, ids=str)
every_entrant = pytest.mark.parametrize("entrant", TABLE, ids=str)
every_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


@every_entrant
@every_backend
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_state_is_float32_or_wider_and_the_step_is_that_of_float64_rounded_once(entrant, backend, dtype):
    params, optimizer = train(lambda p: entrant(p, lr=0.1, **backend), make_params(dtype), steps=1)
    wide = torch.promote_types(dtype, torch.float32)
    for param in params:
        assert param.dtype is dtype
        assert optimizer.state[param][entrant.statistic].dtype is wide.to_real()
        if "exp_avg" in optimizer.state[param]:
            assert optimizer.state[param]["exp_avg"].dtype is wide
    exact = [Parameter(p.detach().to(torch.promote_types(dtype, torch.float64))) for p in make_params(dtype)]
    reference = entrant(exact, lr=0.1, foreach=False)
    for param, grad in zip(exact, make_grads(make_params(dtype), 0), strict=True):
        param.grad = grad.to(param.dtype)
    reference.step()
    assert_same(params, [p.detach().to(dtype) for p in exact])


@every_backend
def test_bfloat16_sums_do_not_stall(backend):
    x = Parameter(torch.zeros(1, 2, dtype=torch.bfloat16))
    optimizer = RowAdaGrad([x], **backend)
    for _ in range(600):
        x.grad = torch.ones_like(x)
        optimizer.step()
    assert optimizer.state[x]["sum"].item() == pytest.approx(1200, rel=1e-6)  # in bfloat16 it would stop at 256


@pytest.mark.parametrize("cls", [RowAdaGrad, RowMomentum])
def test_a_complex_row_is_the_row_of_its_real_and_imaginary_parts(cls):
    z = make_params(torch.complex128, [(5, 3)])[0]
    pairs = Parameter(torch.view_as_real(z.detach()).clone())
    for backend in BACKENDS.values():
        ours, theirs = cls([z], lr=0.1, **backend), cls([pairs], lr=0.1, **backend)
        for t in range(3):
            z.grad = make_grads([z], t)[0]
            pairs.grad = torch.view_as_real(z.grad)
            ours.step()
            theirs.step()
        assert_same([torch.view_as_real(z.detach())], [pairs], rtol=1e-12, atol=1e-14)


@every_entrant
def test_complex_steps_do_not_depend_on_the_phase(entrant):
    phase = torch.polar(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64))
    plain, turned = make_params(torch.complex128), make_params(torch.complex128)
    for param in turned:
        param.data *= phase
    ours, theirs = entrant(plain, lr=0.1), entrant(turned, lr=0.1)
    for t in range(3):
        for param, twin, grad in zip(plain, turned, make_grads(plain, t), strict=True):
            param.grad, twin.grad = grad, grad * phase
        ours.step()
        theirs.step()
    assert_same([p.detach() * phase for p in plain], turned, rtol=1e-12, atol=1e-13)


def transposed(x):
    return x.t().contiguous().t() if x.dim() == 2 else x


def strided(x):
    return torch.stack([x, x], -1)[..., 0]


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


@every_entrant
@every_backend
@pytest.mark.parametrize("layout", [transposed, strided, channels_last])
def test_memory_layout_of_parameters_and_gradients_changes_nothing(entrant, backend, layout):
    for options in settings(entrant):
        results = []
        for arrange in (torch.clone, layout):
            params = [Parameter(arrange(p.detach())) for p in make_params()]
            optimizer = entrant(params, **backend, **options)
            for t in range(3):
                for param, grad in zip(params, make_grads(params, t), strict=True):
                    param.grad = arrange(grad)
                optimizer.step()
            results.append(params)
        # Where the kernels leave a layout to torch's operators, a captured count or rate is computed with in float32.
        in_float32 = "capturable" in options or "lr" in options
        assert_same(*results, rtol=1e-6 if in_float32 else 1e-11, atol=1e-9 if in_float32 else 1e-12)


@every_entrant
@every_backend
def test_an_expanded_gradient_is_like_its_copy(entrant, backend):
    for options in settings(entrant):
        results = []
        for arrange in (torch.clone, torch.Tensor.detach):
            params = make_params()
            optimizer = entrant(params, **backend, **options)
            for param in params:
                param.grad = arrange(torch.tensor(0.3, dtype=param.dtype).expand(param.shape))
            optimizer.step()
            results.append(params)
        assert_same(*results, rtol=1e-12, atol=1e-13)


@every_entrant
@every_backend
def test_empty_tensors(entrant, backend):
    for reduction in ("sum", "mean"):
        params, optimizer = train(
            lambda p, reduction=reduction: entrant(p, **backend, reduction=reduction, weight_decay=0.1),
            make_params(shapes=[(0, 4), (4, 0), (0,), (0, 2, 3, 3), (6, 4)]),
        )
        assert all(torch.isfinite(value).all() for p in params for value in optimizer.state[p].values())
        assert torch.isfinite(params[-1]).all()


@every_backend
@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
@pytest.mark.parametrize("eps", [0.0, 1e-10])
def test_a_zero_row_next_to_a_huge_one_next_to_a_denormal_one(cls, eps, backend):
    x = Parameter(torch.zeros(4, 3))
    x.grad = torch.tensor([[0.0] * 3, [1e18, -2e18, 0.0], [1e-44, 0.0, -1e-44], [1.0, 2.0, 2.0]])
    optimizer = cls([x], lr=0.5, eps=eps, **backend)
    optimizer.step()
    assert torch.isfinite(x).all()
    assert torch.equal(x[0], torch.zeros(3))
    torch.testing.assert_close(x[1], torch.tensor([-0.5, 1.0, 0.0]) / 5**0.5)
    assert x[2].abs().max() < 1e-20  # its squares are 0 in float32: no scale, and no step to speak of
    torch.testing.assert_close(x[3], torch.tensor([-1.0, -2.0, -2.0]) / 6)


@every_backend
@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
@pytest.mark.parametrize("huge", [1e20, 1e25])
def test_a_square_that_overflows_stops_its_row_and_makes_no_nan(cls, huge, backend):
    x = Parameter(torch.ones(2, 3))
    optimizer = cls([x], lr=0.1, **backend)
    for size in (huge, 1.0, 1.0, 1.0):
        x.grad = torch.tensor([[size], [1.0]]).expand(2, 3)
        optimizer.step()
    assert x.isfinite().all()
    assert not optimizer.state[x][cls.STATISTIC].isnan().any()


@every_backend
@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
@pytest.mark.parametrize(("eps", "lr"), [(1e-40, 1.0), (2e-38, 10.0), (1e-10, 1e30), (0.0, 1e30)])
def test_no_gradient_gives_no_step_however_small_the_stabilizer(cls, eps, lr, backend):
    x = Parameter(torch.ones(2, 3))
    optimizer = cls([x], lr=lr, eps=eps, **backend)
    for _ in range(2):
        x.grad = torch.zeros(2, 3)
        optimizer.step()
    assert torch.equal(x, torch.ones(2, 3))


def sum_in_float64(x, geometry, backend):
    """The statistic after one step along random gradients, and the same in float64."""
    x.grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    optimizer = MatrixAdaGrad([x], geometry=geometry, **backend)
    optimizer.step()
    return optimizer.state[x]["sum"].double(), as_geometry(geometry).statistic(x.grad.double())


@every_backend
@pytest.mark.parametrize("geometry", ["row", "column", "whole"])
@pytest.mark.parametrize("shape", [(300_000, 8), (8, 300_000), (1500, 1500), (3, 5, 200_000), (1, 2_000_000)])
def test_the_sums_of_long_blocks_are_as_good_as_in_float64(geometry, shape, backend):
    torch.testing.assert_close(*sum_in_float64(Parameter(torch.zeros(shape)), geometry, backend), rtol=3e-6, atol=0)


@every_backend
@pytest.mark.parametrize("blocks", [Blocks(rows=3), Blocks(columns=2), Blocks(rows=3, columns=None)], ids=str)
def test_the_sums_of_long_blocks_of_a_grid(blocks, backend):
    torch.testing.assert_close(*sum_in_float64(Parameter(torch.zeros(1200, 1000)), blocks, backend), rtol=3e-6, atol=0)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_scalar_with_a_learning_rate_in_float64(dtype, backend):
    x = Parameter(torch.tensor(1.0, dtype=dtype))
    x.grad = torch.tensor(1.0, dtype=dtype)
    lr = torch.tensor(0.5, dtype=torch.float64)
    MatrixAdaGrad([x], lr=lr, stochastic_rounding=True, **backend).step()
    assert x.item() == 0.5


@every_backend
@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_in_one_row_stays_in_that_row(cls, bad, backend):
    params = make_params(shapes=[(4, 3), (3,)])
    optimizer = cls(params, **backend)
    for t in range(3):
        for param, grad in zip(params, make_grads(params, t), strict=True):
            param.grad = grad
        params[0].grad[1, 2] = bad
        optimizer.step()
    clean, _ = train(lambda p: cls(p, **backend), make_params(shapes=[(4, 3), (3,)]), steps=3)
    rest = [0, 2, 3]
    assert_bitwise([params[0][rest], params[1]], [clean[0][rest], clean[1]])
    assert torch.isfinite(optimizer.state[params[0]][cls.STATISTIC][rest]).all()
    assert not torch.isfinite(params[0][1, 2])  # it propagates, as in torch.optim


@every_backend
@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
def test_stochastic_rounding_is_unbiased_where_rounding_to_nearest_loses_every_step(cls, backend):
    n = 40_000
    x = Parameter(torch.ones(n, 1, dtype=torch.bfloat16))  # bfloat16 has 1/128 above 1 and 1/256 below
    nearest = Parameter(x.detach().clone())
    rounded = cls([x], lr=1e-3, geometry="entry", stochastic_rounding=True, **backend)
    plain = cls([nearest], lr=1e-3, geometry="entry", **backend)
    steps = 5
    exact = Parameter(torch.ones(1, 1))
    reference = cls([exact], lr=1e-3, geometry="entry")
    for _ in range(steps):
        for param, optimizer in ((x, rounded), (nearest, plain), (exact, reference)):
            param.grad = torch.ones_like(param)
            optimizer.step()
    assert torch.equal(nearest, torch.ones_like(nearest))
    mean, deviation = x.float().mean(), x.float().std() / n**0.5
    assert deviation > 0
    assert (mean - exact.detach()).abs() < 5 * deviation  # five standard errors
    assert x.dtype is torch.bfloat16


@every_backend
def test_stochastic_rounding_keeps_what_is_exact_and_what_is_not_finite(backend):
    x = Parameter(torch.tensor([[1.0, -2.0, 0.0], [float("inf"), float("-inf"), float("nan")]], dtype=torch.bfloat16))
    before = x.detach().clone()
    optimizer = MatrixAdaGrad([x], lr=0.0, stochastic_rounding=True, **backend)
    x.grad = torch.ones_like(x)
    optimizer.step()
    torch.testing.assert_close(x.detach(), before, rtol=0, atol=0, equal_nan=True)


def test_stochastic_rounding_leaves_wider_parameters_as_they_are():
    rounded, _ = train(lambda p: MatrixAdaGrad(p, stochastic_rounding=True), make_params(torch.float32))
    plain, _ = train(MatrixAdaGrad, make_params(torch.float32))
    assert_bitwise(rounded, plain)


def test_decoupled_decay_is_not_lost_in_bfloat16_with_stochastic_rounding():
    x = Parameter(torch.ones(20_000, 1, dtype=torch.bfloat16))
    optimizer = MatrixAdaGrad([x], lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, stochastic_rounding=True)
    for _ in range(10):
        x.grad = torch.zeros_like(x)
        optimizer.step()
    assert x.float().mean().item() == pytest.approx((1 - 0.001) ** 10, abs=5e-4)


@every_backend
def test_mixed_dtypes_in_one_group_are_each_decayed_once(backend):
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.float32, torch.float16, torch.complex64)
    options = {"weight_decay": 0.1, "decoupled_weight_decay": True, "lr": 0.1, **backend}
    together, _ = train(lambda p: MatrixAdaGrad(p, **options), [make_params(d, [(4, 3)])[0] for d in dtypes], steps=1)
    for param in together:
        alone = make_params(param.dtype, [(4, 3)])[0]
        optimizer = MatrixAdaGrad([alone], **options)
        alone.grad = param.grad
        optimizer.step()
        assert_bitwise([param], [alone])


def test_float64_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        params, optimizer = train(RowMomentum, steps=2)
        assert optimizer.state[params[0]]["step"].dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_convolution_has_one_scale_per_output_channel():
    conv = torch.nn.Conv2d(3, 8, 5)
    optimizer = RowAdaGrad(conv.parameters())
    conv(torch.randn(1, 3, 9, 9)).square().mean().backward()
    optimizer.step()
    expected = conv.weight.grad.square().sum((1, 2, 3))
    torch.testing.assert_close(optimizer.state[conv.weight]["sum"].flatten(), expected)
    assert Row().scales(conv.weight.shape) == 8

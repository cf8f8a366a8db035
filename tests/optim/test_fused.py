"""The native kernels do what the reference does, on any tensors, with any number of threads."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from matrix_adagrad import MatrixAdaGrad, MatrixMomentum, RowAdaGrad, native
from matrix_adagrad.geometry import Blocks, Column, Entry, Factored, Partition, Row
from matrix_adagrad.native.matrices import NotCoveredError
from matrix_adagrad.optim.step.config import SteepestConfig
from tests.optim.batches import (
    DTYPES,
    FACTORED,
    KINDS,
    LAYOUTS,
    a_config,
    assert_close,
    assert_equal,
    batches,
    configs,
    copied,
    fused,
    layouts,
    reference,
    sparse,
    spread,
    state_of,
    written,
)
from tests.optim.training import assert_bitwise, make_grads, make_params

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


@given(batches())
def test_a_dense_step_is_that_of_the_reference(case):
    batch, config = case
    other = copied(batch)
    for _ in range(2):
        try:
            fused(batch, config)
        except NotCoveredError:
            # The rest is covered in two dimensions, whatever the strides: with a floor, entries are steps in parts.
            assert isinstance(config.geometry, Blocks if not getattr(config, "floor", 0) else Blocks | Entry)
            return
        reference(other, config)
    assert_close(batch, other)


FAMILIES = {"adagrad": {}, "momentum": {"betas": (0.9, 0.99)}, "steepest": {"momentum": 0.9, "nesterov": True}}
every_pair = pytest.mark.parametrize(
    ("geometry", "family"),
    [
        pytest.param(geometry, options, id=f"{geometry}-{family}")
        for geometry in (*KINDS[:4], Factored())  # the other ways to combine: drawn above
        for family, options in FAMILIES.items()
        if family != "steepest" or isinstance(geometry, Partition)  # others have no norm
    ],
)
SHAPES = [
    (1_000_000, 3),
    (3, 200_000),
    (700, 900),
    (20_000, 64),
    (64, 20_000),
    (2, 1_000_001),
    (1, 300_000),
    (9000, 33),
    (103, 9000),
    (500, 300),  # a small one that is alone, and thus for all threads
]


@every_pair
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "layout"), [(torch.float32, "contiguous"), (torch.bfloat16, "transposed")])
def test_large_tensors_too_and_the_bits_do_not_depend_on_threads(geometry, shape, family, dtype, layout):
    x, g = (LAYOUTS[layout](spread(shape, seed, dtype)) for seed in (0, 1))
    config = a_config(geometry, **family)
    batch = state_of([x], [g], config)
    expected, ends = copied(batch), []
    for threads in (1, 2, 3, 7):
        ends.append(copied(batch))
        with_threads(threads, lambda: fused(ends[-1], config))
    reference(expected, config)
    assert_close(ends[0], expected)
    for end in ends[1:]:
        assert_equal(end, ends[0])


# -------------------------------------------------------------------------------------- scales from rows and columns


BATCH_LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "every other matrix": lambda x: torch.stack([x, x], 1)[:, 0],
    "matrices side by side": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
}
BATCH_SHAPES = [
    *[(1, 4, 6), (3, 5, 1), (4, 1, 9), (40, 64, 65), (2, 600, 500), (3, 2, 9000)],
    *[(2, 0, 5), (3, 4, 0), (0, 3, 4)],
]


@given(
    *(st.sampled_from(BATCH_SHAPES), configs(FACTORED), st.sampled_from(DTYPES)),
    *[st.sampled_from(sorted(BATCH_LAYOUTS))] * 2,
)
def test_matrices_of_a_batch_are_stepped_one_by_one(shape, config, dtype, layout, layout_of_grad):
    x = BATCH_LAYOUTS[layout](spread(shape, 0, dtype))
    batch = state_of([x], [BATCH_LAYOUTS[layout_of_grad](spread(shape, 1, dtype))], config)
    alone, expected = copied(batch), copied(batch)
    for _ in range(2 if dtype.itemsize > 2 else 1):  # a narrow entry may be rounded apart in every step
        try:
            with_threads(2, lambda: fused(batch, config))
        except NotCoveredError:
            assert 0 in shape
            return
        with_threads(1, lambda: fused(alone, config))
        reference(expected, config)
    assert_equal(batch, alone)
    assert_close(batch, expected)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1), (2, 3, 4, 5)])
@pytest.mark.parametrize("geometry", FACTORED, ids=str)
def test_statistics_of_empty_matrices_fade_and_several_dimensions_are_one_batch(geometry, shape):
    config = a_config(geometry, betas=(0.9, 0.5))
    batch = state_of([spread(shape, 0, torch.float32)], [spread(shape, 1, torch.float32)], config)
    for statistic in batch[0].statistics:
        statistic += 1
    expected = copied(batch)
    fused(batch, config)
    reference(expected, config)
    assert_close(batch, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)  # bfloat16 rows go by pairs
def test_sums_of_rows_and_columns_have_the_bits_of_the_partitions(dtype):
    x, g = (spread((700, 900), seed, dtype) for seed in (0, 1))
    kept = {}
    for geometry in (Factored(), Row(), Column()):
        batch = state_of([x.clone()], [g], a_config(geometry))
        fused(batch, a_config(geometry))
        kept[geometry] = batch[0].statistics
    assert_bitwise(kept[Factored()][:2], [*kept[Row()], *kept[Column()]])


@pytest.mark.parametrize("geometry", FACTORED, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_in_a_factored_scale_is_where_the_reference_has_it(geometry, value):
    config, g = a_config(geometry), torch.ones(40, 70)
    g[7, 33] = value
    batch = state_of([torch.zeros(40, 70)], [g], config)
    expected = copied(batch)
    fused(batch, config)
    reference(expected, config)
    torch.testing.assert_close(written(batch), written(expected), rtol=1e-5, atol=0, equal_nan=True)


def test_matrices_of_a_batch_round_by_numbers_of_their_own():
    x = torch.ones(2, 100, 64, dtype=torch.bfloat16)
    config = a_config(Factored(), lr=0.3 * 2**-7, eps=0.0, stochastic_rounding=True)
    batch = state_of([x], [torch.full_like(x, -1)], config)
    fused(batch, config)
    first, second = (batch.params[0].float() - 1) * 2**7
    assert {*first.unique().tolist()} == {*second.unique().tolist()} == {0.0, 1.0}
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.1


def test_a_factored_statistic_with_gaps_is_left_to_torchs_operators():
    config = a_config(Factored())
    (update,) = batch = state_of([torch.ones(6, 4)], [torch.ones(6, 4)], config)
    update.statistics = (torch.zeros(6, 2)[:, :1], *update.statistics[1:])
    with pytest.raises(NotCoveredError, match="have gaps in memory"):
        fused(batch, config)


# -------------------------------------------------------------------------------------------------- widths of registers


@pytest.fixture(name="library")
def _library():
    yield native.load()
    native.load().matrix_adagrad_use_at_most(AVX512)


ANYWHERE, AVX2, AVX512 = range(3)


@every_pair
@pytest.mark.parametrize("shape", [(37, 100), (300, 64), (9, 5000), (103, 9000), (3, 20_000), (50, 1)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_bits_do_not_depend_on_the_width_of_registers(geometry, shape, dtype, family, library):
    x, g = (spread(shape, seed, dtype) for seed in (0, 1))
    x.view(-1)[::17] = 0
    x.view(-1)[5], g.view(-1)[11] = float("nan"), float("inf")
    config = a_config(geometry, **family)
    batch, ends = state_of([x], [g], config), []
    for width in (ANYWHERE, AVX2, AVX512):  # where the CPU has it
        library.matrix_adagrad_use_at_most(width)
        ends.append(copied(batch))
        for _ in range(2):
            fused(ends[-1], config)
    for end in ends[1:]:
        torch.testing.assert_close(written(end), written(ends[0]), rtol=0, atol=0, equal_nan=True)


def with_threads(threads, call):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        call()
    finally:
        torch.set_num_threads(before)


# ------------------------------------------------------------------------------------------------- sparse gradients


@st.composite
def sparse_batches(draw):
    config, dtype = draw(configs(KINDS, floors=(0.0,))), draw(st.sampled_from(DTYPES))
    assume(not isinstance(config, SteepestConfig) or config.geometry in (Row(), Entry()))  # or else it is made dense
    m, n = draw(st.sampled_from([(1, 5), (2, 1), (5, 3000), (300, 8), (300, 64), (5000, 65), (70_000, 3)]))
    count = draw(st.sampled_from([0, 1, 2, 7, 100, 5000 if n < 1000 else 100]))
    x = LAYOUTS[draw(layouts)](spread((m, n), 0, dtype))
    index = torch.randint(m, (count,), generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    if draw(st.booleans()):
        index = index.sort().values
    values = LAYOUTS[draw(layouts)](spread((count, n), 1, dtype)) if count else spread((0, n), 1, dtype)
    grad = torch.sparse_coo_tensor(index[None], values, x.shape, check_invariants=True)
    return state_of([x], [grad], config), config


@given(sparse_batches())
def test_a_sparse_step_is_that_of_torchs_operators(case):
    batch, config = case
    other, alone = copied(batch), copied(batch)
    for _ in range(2):
        fused(batch, config)
        with_threads(1, lambda: fused(alone, config))
        sparse(other, config)
    assert_equal(batch, alone)
    assert_close(batch, other)


@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
def test_rows_that_share_scales_in_groups_are_left_to_torchs_operators(cls):
    (x,) = make_params(torch.float32, [(6, 4)])
    x.grad = make_grads([x], 0)[0].to_sparse(1)
    with pytest.raises(RuntimeError, match="fused=True is not possible here: .* in groups.*; leave fused=None"):
        cls([x], geometry=Blocks(rows=2), fused=True).step()
    cls([x], geometry=Blocks(rows=2)).step()


# ---------------------------------------------------------------------------------------------------- narrow numbers


def every_half(dtype):
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_step_of_length_0_leaves_every_number_of_sixteen_bits(dtype, stride):
    x = every_half(dtype).repeat_interleave(stride)[::stride]
    config = a_config(Entry(), lr=0.0)
    batch = state_of([x.clone() if stride == 1 else x], [torch.ones(2**16, dtype=dtype)], config)
    fused(batch, config)
    torch.testing.assert_close(batch.params[0], every_half(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [1, 8, 16, 23, 100])
def test_steps_are_rounded_to_the_nearest_with_ties_to_even(dtype, columns):
    random = torch.Generator().manual_seed(columns)
    x = torch.randn(200, columns, generator=random).to(dtype)
    g = torch.randn(200, columns, generator=random).to(dtype)
    config = a_config(Row(), lr=1.0, eps=0.0)
    batch = state_of([x.clone()], [g], config)
    fused(batch, config)
    root = batch.statistics[0].double().sqrt().float()
    scale = (1 / root.double()).float()
    torch.testing.assert_close(batch.params[0], (x.float() - scale * g.float()).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38, -3e38])
def test_what_is_not_finite_stays_in_its_row(value):
    for dtype in DTYPES:
        x = torch.zeros(40, 70, dtype=dtype)
        g = torch.ones(40, 70, dtype=dtype)
        g[7, 33] = value
        results = [state_of([x.clone()], [g], a_config(Row())) for _ in range(2)]
        fused(results[0], a_config(Row()))
        reference(results[1], a_config(Row()))
        torch.testing.assert_close(results[0].params, results[1].params, rtol=0.01, atol=0, equal_nan=True)
        assert results[0].params[0][torch.arange(40) != 7].isfinite().all()


def test_stochastic_rounding_is_unbiased_and_repeats_with_the_seed():
    def rounded(seed, threads):
        x = torch.ones(1000, 257, dtype=torch.bfloat16)
        config = a_config(Entry(), lr=0.3 * 2**-7, eps=0.0, stochastic_rounding=True)
        batch = state_of([x], [torch.full_like(x, -1)], config)
        batch[0].stream = seed + 1
        with_threads(threads, lambda: fused(batch, config))
        return batch.params[0]

    ups = (rounded(0, 1).float() - 1) * 2**7
    assert set(ups.unique().tolist()) == {0.0, 1.0}
    for share in (ups.mean(), ups.mean(0).mean(), ups[::2].mean(), ups[:, ::2].mean()):
        assert abs(share - 0.3) < 5 * (0.3 * 0.7 / (ups.numel() / 2)) ** 0.5
    neighbours = torch.stack([ups[:, 1:].flatten(), ups[:, :-1].flatten()])
    assert abs(torch.corrcoef(neighbours)[0, 1]) < 0.01
    assert torch.equal(rounded(0, 1), rounded(0, 2))
    assert not torch.equal(rounded(0, 1), rounded(1, 1))


# --------------------------------------------------------------------------------------------- torch's own machinery


def test_autograd_sees_that_a_parameter_was_changed():
    x = Parameter(torch.ones(3, 2))
    loss = x.square().sum()
    x.grad = torch.ones_like(x)
    RowAdaGrad([x], fused=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_fake_tensors_take_a_fused_step_without_memory():
    with FakeTensorMode():
        x = Parameter(torch.empty(10**6, 10**6))
        x.grad = torch.empty_like(x)
        optimizer = RowAdaGrad([x], fused=True)
        optimizer.step()
        assert optimizer.state[x]["sum"].shape == (10**6, 1)


@pytest.mark.separate_process
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
def test_a_compiled_step_calls_the_kernel_in_one_graph(cls):
    torch._dynamo.reset()
    ends = []
    for compiled in (False, True):
        params = make_params(torch.float32, [(6, 4), (4, 6), (5,)])
        groups = [
            {"params": [p], "geometry": g} for p, g in zip(params, (Row(), Blocks(columns=2), Row()), strict=True)
        ]
        optimizer = cls(groups, lr=torch.tensor(0.1), fused=True)
        step = torch.compile(optimizer.step, fullgraph=True) if compiled else optimizer.step
        for t in range(3):
            for param, grad in zip(params, make_grads(params, t), strict=True):
                param.grad = grad
            optimizer.param_groups[0]["lr"].fill_(0.1 / (t + 1))
            step()
        ends.append([*params, *(optimizer.state[p][cls.STATISTIC] for p in params)])
    assert_bitwise(*ends)


def test_torch_checks_the_operator():
    batch = state_of([torch.randn(6, 4)], [torch.randn(6, 4)], a_config(Row()))
    (update,), config = batch, a_config(Row())
    tensors = ([update.param], [update.grad], [], [update.statistics[0]], [update.step])
    numbers = [float(number) for name, number in config.numbers.items() if name != "lr"]
    arguments = (*tensors, [1], torch.tensor(0.1), numbers, False)
    torch.library.opcheck(torch.ops.matrix_adagrad.step.default, arguments)


# -------------------------------------------------------------------------------- what the kernels must not be given


def stepped(cls=MatrixMomentum, shape=(4, 4), **options):
    x = Parameter(torch.ones(shape))
    optimizer = cls([x], **options)
    x.grad = torch.ones_like(x)
    optimizer.step()
    return x, optimizer


def test_a_parameter_of_another_shape_than_its_state_is_refused_by_name():
    x, optimizer = stepped()
    x.data = torch.zeros(3000, 40)
    x.grad = torch.ones_like(x)
    with pytest.raises(RuntimeError, match=r"parameter 0 has shape \(3000, 40\) and geometry row, but its state"):
        optimizer.step()


def test_a_geometry_that_is_edited_after_the_first_step_is_refused_by_name():
    _, optimizer = stepped()
    optimizer.param_groups[0]["geometry"] = "whole"
    with pytest.raises(RuntimeError, match=r"whole, but its state has .*'exp_avg_sq' of shape \(4, 1\), made for"):
        optimizer.step()


@pytest.mark.parametrize("wrong", ["average of another shape", "gradient of another shape", "state on another device"])
def test_tensors_that_do_not_belong_together_raise_and_never_reach_the_kernels(wrong):
    x, optimizer = stepped()
    state = optimizer.state[x]
    if wrong == "average of another shape":
        state["exp_avg"] = torch.zeros(2, 3)
    elif wrong == "gradient of another shape":
        x.data = torch.ones(4, 5000)  # torch checks a gradient only when it is set
    else:
        state["exp_avg_sq"] = state["exp_avg_sq"].to("meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        optimizer.step()


def test_lazy_negatives_and_zeros_are_left_to_torch():
    for backend in ({}, {"foreach": False}):
        x = Parameter(torch.ones(3, 4, dtype=torch.cfloat).mul(1j).conj().imag)
        assert x.is_neg()
        x.grad = torch.ones(3, 4)
        RowAdaGrad([x], lr=0.5, **backend).step()
        torch.testing.assert_close(x.detach(), torch.full((3, 4), -1.25))
    x = Parameter(torch.ones(2, 2))
    x.grad = torch._efficientzerotensor((2, 2))
    RowAdaGrad([x]).step()
    assert torch.equal(x.detach(), torch.ones(2, 2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float64])
def test_a_count_of_steps_of_any_dtype_is_counted_on(dtype):
    x, optimizer = stepped()
    optimizer.state[x]["step"] = optimizer.state[x]["step"].to(dtype)
    optimizer.step()
    assert optimizer.state[x]["step"].item() == 2


def test_an_empty_parameter_with_a_statistic_with_gaps_touches_nothing_else():
    x, optimizer = stepped(geometry="column", shape=(0, 5))
    base = torch.ones(1, 10)
    optimizer.state[x]["exp_avg_sq"] = base[:, ::2]
    optimizer.step()
    assert torch.equal(base[:, 1::2], torch.ones(1, 5))
    assert (base[:, ::2] < 1).all()


@pytest.mark.parametrize("geometry", ["row", "entry", Factored()], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_an_empty_table_with_a_sparse_gradient_is_left_to_torchs_operators(geometry, shape):
    """It has no memory, so that the kernels could not even say where its rows would be."""
    x = Parameter(torch.empty(shape))
    x.grad = torch.zeros(shape).to_sparse(1)
    with pytest.raises(RuntimeError, match="fused=True is not possible here: it is empty"):
        MatrixAdaGrad([x], geometry=geometry, fused=True).step()
    MatrixAdaGrad([x], geometry=geometry).step()


def test_a_small_gradient_joins_a_large_average_without_being_swallowed():
    """As torch's lerp: with a tiny β₁ the average is the last gradient, whatever came before."""
    for geometry in KINDS:
        x, optimizer = stepped(geometry=geometry, betas=(1e-30, 0.5))
        x.grad = torch.full_like(x, 1e8)
        optimizer.step()
        x.grad = torch.ones_like(x)
        optimizer.step()
        assert torch.equal(optimizer.state[x]["exp_avg"], torch.ones(4, 4))


def test_a_state_from_another_memory_format_is_walked_like_the_parameter():
    saved = stepped(shape=(4, 2, 3, 3))[1].state_dict()
    x = Parameter(torch.ones(4, 2, 3, 3).contiguous(memory_format=torch.channels_last))
    optimizer = MatrixMomentum([x], fused=True)
    optimizer.load_state_dict(saved)
    x.grad = torch.ones_like(x)
    optimizer.step()
    assert optimizer.state[x]["exp_avg"].stride() == x.stride()


@pytest.mark.separate_process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_small_step_works_in_a_forked_process():
    program = (
        "import os, torch\nfrom matrix_adagrad import RowAdaGrad\n"
        "x = torch.nn.Parameter(torch.ones(4, 4))\nx.grad = torch.ones_like(x)\no = RowAdaGrad([x], fused=True)\n"
        "o.step()\nchild = os.fork()\no.step()\nif not child: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

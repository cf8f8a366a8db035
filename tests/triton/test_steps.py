"""The Triton kernels do what the reference does, on any tensors."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrix_adagrad.geometry import Batched, Blocks, Column, Factored, Row, Spectral, Whole
from matrix_adagrad.native.matrices import NotCoveredError
from matrix_adagrad.optim.step.config import SteepestConfig
from tests.optim.batches import (
    FACTORED,
    KINDS,
    LAYOUTS,
    Batch,
    a_config,
    assert_close,
    assert_equal,
    configs,
    copied,
    layouts,
    reference,
    sparse,
    spread,
    state_of,
    written,
)
from tests.triton.steps import FAMILIES, every_pair, few, of_shapes, renewed, step

COVERED = (torch.float32, torch.bfloat16, torch.float16)
WIDE = (torch.float32, torch.float64)
sizes = st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 33, 64, 65]))


@st.composite
def cases(draw, **choices):
    config, dtype = draw(configs(**choices)), draw(st.sampled_from(COVERED))
    is_other_norm = isinstance(config, SteepestConfig) and config.floor
    if not is_other_norm and draw(st.booleans()):
        config = replace(config, capturable=True, lr=torch.tensor(config.lr, dtype=draw(st.sampled_from(WIDE))))
    params, grads = [], []
    for seed in range(draw(st.integers(1, 4))):
        m, n = 2 * draw(sizes), 2 * draw(sizes)
        params.append(LAYOUTS[draw(layouts)](spread((m, n), seed, dtype)))
        grads.append(LAYOUTS[draw(layouts)](spread((m, n), 100 + seed, dtype)))
    return state_of(params, grads, config), config


@few
@given(cases())
@pytest.mark.usefixtures("small_tiles")
def test_a_dense_step_is_that_of_the_reference(case):
    batch, config = case
    other = copied(batch)
    for _ in range(1 if batch.params[0].itemsize < 4 else 2):  # narrow entries may be rounded apart in every step
        try:
            step(batch, config)
        except NotCoveredError:
            assert isinstance(config.geometry, Blocks)
            return
        reference(other, config)
    assert_close(batch, other)


@every_pair
def test_tiles_as_they_are_on_a_device(geometry, family):
    shapes = [(300, 700), (3, 20_000), (9000, 3)]
    config = a_config(geometry, **family)
    batch = state_of(
        [spread(s, 0, torch.float32) for s in shapes], [spread(s, 1, torch.float32) for s in shapes], config
    )
    other = copied(batch)
    step(batch, config)
    reference(other, config)
    assert_close(batch, other)


@every_pair
@pytest.mark.usefixtures("small_tiles")
def test_the_same_bits_alone_and_in_a_list(geometry, family):
    config = a_config(geometry, **family)
    shapes = [(6, 10), (40, 3), (1, 7), (17, 33), (6, 10)]
    batch = state_of(
        [spread(s, i, torch.float32) for i, s in enumerate(shapes)],
        [spread(s, 9, torch.float32) for s in shapes],
        config,
    )
    alone = copied(batch)
    step(batch, config)
    for update in alone:
        step(Batch([update]), config)
    assert_equal(batch, alone)


@few
@given(
    st.sampled_from([(1, 4, 6), (3, 5, 1), (4, 1, 9), (5, 16, 32), (2, 3, 4, 6)]),
    configs(FACTORED),
    st.sampled_from(COVERED),
)
@pytest.mark.usefixtures("small_tiles")
def test_a_batch_of_matrices(shape, config, dtype):
    batch = of_shapes([shape], config, dtype)
    other = copied(batch)
    step(batch, config)
    reference(other, config)
    assert_close(batch, other)


@pytest.mark.parametrize("geometry", [Batched(Row()), Batched(Whole()), Blocks(rows=2), Blocks(columns=2)], ids=str)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.usefixtures("small_tiles")
def test_blocks_that_are_contiguous(geometry, family):
    config = a_config(geometry, **family)
    batch = state_of(
        [spread((4, 6, 10), 0, torch.float32)],
        [spread((4, 6, 10), 1, torch.float32)],
        config,
    )
    other = copied(batch)
    step(batch, config)
    reference(other, config)
    assert_close(batch, other)


OTHER_NORMS = {
    "spectral": (Spectral(), {}),
    "exactly": (Spectral(steps=None), {"scale": None, "nesterov": True, "weight_decay": 0.1}),
    "without momentum": (Spectral(), {"momentum": 0.0, "maximize": True}),
    "with a floor": (Row(), {"floor": 0.5, "weight_decay": 0.1, "decoupled_weight_decay": True}),
}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("geometry", "options"), OTHER_NORMS.values(), ids=OTHER_NORMS)
@pytest.mark.parametrize("dtype", COVERED, ids=str)
def test_steepest_descent_in_other_norms(geometry, options, dtype):
    config = SteepestConfig(geometry=geometry, **{"lr": 0.1, "momentum": 0.9, **options})
    batch = of_shapes([(6, 10), (3, 5, 7)], config, dtype)
    other = copied(batch)
    for _ in range(2):
        step(batch, config)
        reference(other, config)
    for a, b in zip(written(batch), written(other), strict=True):  # the polar factor amplifies roundings
        torch.testing.assert_close(a, b, rtol=max(1e-4, 4 * torch.finfo(a.dtype).eps), atol=1e-5)


# --------------------------------------------------------------------------------------------- what must not go wrong


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, in the interpreter
@pytest.mark.parametrize("geometry", KINDS, ids=str)
@pytest.mark.usefixtures("small_tiles")
def test_numbers_that_are_not_finite_stay_in_their_blocks(geometry):
    config = a_config(geometry)
    grad = spread((20, 24), 1, torch.float32)
    grad[3, 5], grad[7, 9] = torch.inf, torch.nan
    batch = state_of([spread((20, 24), 0, torch.float32)], [grad], config)
    other = copied(batch)
    step(batch, config)
    reference(other, config)
    for a, b in zip(written(batch), written(other), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.usefixtures("small_tiles")
def test_entries_beyond_two_to_the_31():
    """Two rows of a table that is otherwise never touched, further apart than a 32-bit number can say."""
    far = 1 << 31
    storage = torch.empty(far + 64, dtype=torch.bfloat16)
    x = storage.as_strided((2, 16), (far + 16, 1))
    x[:] = spread((2, 16), 0, torch.bfloat16)
    for geometry in (Row(), Column(), Factored()):
        batch = state_of([x.clone()], [spread((2, 16), 1, torch.bfloat16)], a_config(geometry))
        expected = copied(batch)
        batch[0].param = x.copy_(batch[0].param)
        step(batch, a_config(geometry))
        reference(expected, a_config(geometry))
        torch.testing.assert_close(x, expected[0].param, rtol=2**-7, atol=1e-6)


@pytest.mark.usefixtures("small_tiles")
def test_a_gradient_is_never_written_to():
    for geometry in KINDS:
        batch = of_shapes([(20, 24)], a_config(geometry))
        before = batch.grads[0].clone()
        step(batch, a_config(geometry))
        assert torch.equal(batch.grads[0], before)


def not_covered(name):
    x, ones = torch.ones(2, 3), torch.ones(2, 3)
    return {
        "float64": (x.double(), ones.double()),
        "shares memory": (x, x),
        "entries share memory": (x[:1].expand(2, 3), ones),
        "another": (x, torch.ones(3, 2)),
    }[name]


@pytest.mark.parametrize("reason", ["float64", "shares memory", "entries share memory", "another"])
def test_what_is_not_covered_is_named(reason):
    param, grad = not_covered(reason)
    with pytest.raises(NotCoveredError, match=reason):
        step(state_of([param], [grad], a_config(Row())), a_config(Row()))


@every_pair
@pytest.mark.parametrize(("shape", "is_sparse"), [((0, 4), False), ((4, 0), False), ((4, 3), True)])
def test_a_step_of_an_empty_tensor_or_gradient_is_counted(geometry, family, shape, is_sparse):
    """As a rank has them that holds no row of a table, or saw none."""
    config = a_config(geometry, **family)
    if is_sparse and isinstance(config, SteepestConfig) and not geometry.separates_rows(shape):
        pytest.skip("its optimizer makes the gradient dense")
    none = torch.zeros((1, 0), dtype=torch.int64), torch.zeros(0, 3)
    grad = torch.sparse_coo_tensor(*none, shape, check_invariants=True) if is_sparse else torch.zeros(shape)
    batch = state_of([torch.ones(shape)], [grad], config)
    for update in batch:
        for v in update.statistics:
            v += 1
    other = copied(batch)
    step(batch, config)
    (sparse if is_sparse else reference)(other, config)
    assert_equal(batch, other)
    assert batch[0].step == 1


def test_memory_that_was_freed_is_an_error():
    """As that of a parameter that is gathered for a while, and of no GPU then."""
    for which in range(2):
        batch = of_shapes([(4, 16)], a_config(Row()))
        step(batch, a_config(Row()))
        (batch.params + batch.grads)[which].untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="has been freed"):
            renewed(batch)
        with pytest.raises(RuntimeError, match="has been freed"):
            step(batch, a_config(Row()))

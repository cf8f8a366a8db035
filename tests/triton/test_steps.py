"""The Triton kernels do what the reference does, on any tensors."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matrix_adagrad.geometry import Batched, Blocks, Column, Entry, Factored, Geometry, Partition, Row, Spectral, Whole
from matrix_adagrad.native.matrices import NotCoveredError
from matrix_adagrad.optim.step import triton as backend
from matrix_adagrad.optim.step import triton_tensors
from matrix_adagrad.optim.step.config import SteepestConfig
from matrix_adagrad.optim.step.dispatch import NATIVE, TRITON
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

COVERED = (torch.float32, torch.bfloat16, torch.float16)
# The interpreter takes a millisecond for what a device does in one program.
few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
sizes = st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 33, 64, 65]))


def step(batch, config):
    """A step in the kernels; `NotCoveredError` if they do not cover it."""
    for update in batch:
        update.prepared = None
        if reason := TRITON.reason_against(update, config):
            raise NotCoveredError(reason)
    TRITON.step(batch, config)


def of_shapes(shapes, config, dtype=torch.float32):
    params, grads = ([spread(shape, 9 * i + j, dtype) for j, shape in enumerate(shapes)] for i in range(2))
    return state_of(params, grads, config)


def renewed(batch):
    repeated = TRITON.repeated(batch)
    assert repeated.renew([update.grad for update in batch])
    return repeated


@st.composite
def cases(draw, **choices):
    config, dtype = draw(configs(**choices)), draw(st.sampled_from(COVERED))
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


FAMILIES = {
    "adagrad": {},
    "momentum": {"betas": (0.9, 0.99), "bias_correction": True},
    "nesterov": {"betas": (0.9, 0.99), "bias_correction": True, "nesterov": True},
    "averages alone": {"betas": (0.0, 0.99), "bias_correction": True},
    "steepest": {"momentum": 0.9, "nesterov": True},
}
every_pair = pytest.mark.parametrize(
    ("geometry", "family"),
    [
        pytest.param(geometry, options, id=f"{geometry}-{family}")
        for geometry in KINDS
        for family, options in FAMILIES.items()
        if family != "steepest" or isinstance(geometry, Partition)  # others have no norm
    ],
)


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
        [spread((3, 6, 10)[-len(geometry.cut((6, 10))) :] if False else (4, 6, 10), 0, torch.float32)],
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


# ----------------------------------------------------------------------------------------------------- sparse gradients


@st.composite
def sparse_cases(draw):
    config = draw(configs(geometries=KINDS, floors=(0.0,)))
    rows, width, entries = draw(st.integers(1, 20)), draw(st.sampled_from([1, 3, 16, 40])), draw(st.integers(1, 40))
    dtype = draw(st.sampled_from(COVERED))
    index = torch.tensor(draw(st.lists(st.integers(0, rows - 1), min_size=entries, max_size=entries)))
    grad = torch.sparse_coo_tensor(
        index[None], spread((entries, width), 1, dtype), (rows, width), check_invariants=True
    )
    if draw(st.booleans()):
        grad = grad.coalesce()
    return state_of([spread((rows, width), 0, dtype)], [grad], config), config


@few
@given(sparse_cases())
@pytest.mark.usefixtures("small_tiles")
def test_a_sparse_step_is_that_of_torchs_operators(case):
    batch, config = case
    other = copied(batch)
    for _ in range(2):
        if isinstance(config, SteepestConfig) and not config.geometry.separates_rows((2, 2)):
            with pytest.raises(NotCoveredError, match="depend on each other"):
                step(batch, config)
            return
        step(batch, config)
        sparse(other, config)
    assert_close(batch, other)


def test_a_row_that_is_there_a_thousand_times_is_summed_in_runs():
    index = torch.cat([torch.zeros(1000, dtype=torch.int64), torch.arange(50)])
    values = spread((1050, 16), 1, torch.float32)
    grad = torch.sparse_coo_tensor(index[None], values, (50, 16), check_invariants=True)
    config = a_config(Row())
    batch = state_of([spread((50, 16), 0, torch.float32)], [grad], config)
    other = copied(batch)
    step(batch, config)
    sparse(other, config)
    assert_close(batch, other)


@pytest.mark.parametrize("wrong", [-1, 6])
def test_a_row_that_is_out_of_range_is_found_before_anything_is_written(wrong):
    grad = torch.sparse_coo_tensor(torch.tensor([[0, wrong]]), torch.ones(2, 4), (6, 4), check_invariants=False)
    batch = state_of([torch.ones(6, 4)], [grad], a_config(Row()))
    with pytest.raises(RuntimeError, match="out of range"):
        step(batch, a_config(Row()))
    assert (batch.params[0] == 1).all()


# ------------------------------------------------------------------------------------------------------------- rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("geometry", [Row(), Column(), Entry(), Factored()], ids=str)
@pytest.mark.usefixtures("small_tiles")
def test_rounding_at_random_draws_the_numbers_of_the_c_kernels(dtype, geometry):
    config = replace(a_config(geometry), stochastic_rounding=True)
    batch = state_of([spread((40, 24), 0, dtype)], [spread((40, 24), 1, dtype)], config)
    other = copied(batch)
    step(batch, config)
    for update in other:
        assert not NATIVE.reason_against(update, config)
    NATIVE.step(other, config)
    # The last bits of sums differ, and so does a result that is that close to the edge.
    assert (batch.params[0] == other.params[0]).float().mean() > 0.98


def test_rounding_does_not_depend_on_tiles_and_is_right_on_average(monkeypatch):
    config = replace(a_config(Entry(), eps=0.0), lr=1e-3, stochastic_rounding=True)
    ends = []
    for tile in (32, 4096):
        monkeypatch.setattr(triton_tensors, "TILE", tile)
        batch = state_of([torch.ones(64, 64, dtype=torch.bfloat16)], [torch.ones(64, 64, dtype=torch.bfloat16)], config)
        step(batch, config)
        ends.append(batch.params[0])
    assert torch.equal(*ends)
    assert abs(ends[0].double().mean() - 0.999) < 3e-4
    assert len(ends[0].unique()) == 2


def test_a_narrow_average_is_rounded_at_random():
    config = replace(a_config(Row(), betas=(0.999, 0.99)), momentum_dtype=torch.bfloat16)
    ends = []
    for seed in (1, 2):
        batch = state_of([torch.ones(64, 64)], [torch.ones(64, 64)], config)
        batch[0].average, batch[0].stream = torch.full((64, 64), 0.5, dtype=torch.bfloat16), seed
        step(batch, config)
        ends.append(batch[0].average)
    assert not torch.equal(*ends)
    for end in ends:
        assert abs(end.double().mean() - 0.5005) < 1e-4


# --------------------------------------------------------------------------------------------- what must not go wrong


@pytest.mark.parametrize("geometry", [Row(), Column(), Entry(), Factored()], ids=str)
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
        "empty": (x[:0], ones[:0]),
        "shares memory": (x, x),
        "entries share memory": (x[:1].expand(2, 3), ones),
        "another": (x, torch.ones(3, 2)),
    }[name]


@pytest.mark.parametrize("reason", ["float64", "empty", "shares memory", "entries share memory", "another"])
def test_what_is_not_covered_is_named(reason):
    param, grad = not_covered(reason)
    with pytest.raises(NotCoveredError, match=reason):
        step(state_of([param], [grad], a_config(Row())), a_config(Row()))


# ------------------------------------------------------------------------------------------------- tables and capturing


class _Recorded:
    """The kernels, and the names of those that ran."""

    def __init__(self):
        self.ran, self._kernels = [], backend._kernels()

    def __getattr__(self, name):
        found = getattr(self._kernels, name)
        if not hasattr(found, "run"):
            return found
        return _Noted(found, name, self.ran)


class _Noted:
    def __init__(self, kernel, name, ran):
        self._kernel, self._name, self._ran = kernel, name, ran

    def __getitem__(self, grid):
        self._ran.append(self._name)
        return self._kernel[grid]


@pytest.fixture
def ran(monkeypatch):
    recorded = _Recorded()
    monkeypatch.setattr(backend, "_kernels", lambda: recorded)
    return recorded.ran


def test_hundreds_of_tensors_are_a_handful_of_launches(ran):
    for geometry, launches in ((Row(), 1), (Entry(), 1), (Column(), 3), (Factored(), 5)):
        ran.clear()
        grads = [torch.ones(4, 16) for _ in range(100)]
        step(state_of([torch.ones(4, 16) for _ in grads], grads, a_config(geometry)), a_config(geometry))
        assert len(ran) == launches


def test_a_table_is_sent_again_only_if_something_has_changed(monkeypatch):
    uploads, upload = [], backend._upload
    monkeypatch.setattr(backend, "_upload", lambda *args: uploads.append(1) or upload(*args))
    config = a_config(Row(), betas=(0.9, 0.99), bias_correction=True)
    batch = state_of([torch.ones(4, 16), torch.ones(5, 16)], [torch.ones(4, 16), torch.ones(5, 16)], config)
    step(batch, config)
    for _ in range(3):  # step counts go up together
        TRITON.step(renewed(batch), config)
    assert len(uploads) == 1
    batch[0].grad = torch.full((4, 16), 2.0)
    TRITON.step(renewed(batch), config)
    assert len(uploads) == 2
    other = state_of([torch.ones(4, 16), torch.ones(5, 16)], [torch.ones(4, 16), torch.ones(5, 16)], config)
    for number in range(5):
        other[0].grad = torch.full((4, 16), 2.0 if number == 4 else 1.0)
        reference(other, config)
    assert_close(batch, other)


def test_a_captured_step_takes_nothing_from_the_cpu(monkeypatch):
    config = replace(a_config(Row(), betas=(0.9, 0.99), bias_correction=True), capturable=True, lr=torch.tensor(0.1))

    def make():
        return of_shapes([(4, 16)] * 6, config)

    batch, other = make(), make()
    monkeypatch.setattr(backend, "_is_capturing", lambda _: True)
    with pytest.raises(RuntimeError, match="take a step first"):
        step(batch, config)
    monkeypatch.undo()
    batch = make()
    step(batch, config)
    reference(other, config)
    monkeypatch.setattr(backend, "_is_capturing", lambda _: True)
    monkeypatch.setattr(backend, "_upload", lambda *_: pytest.fail("the CPU's memory must not be read"))
    for update, same in zip(batch, other, strict=True):
        update.grad = same.grad = torch.full((4, 16), 3.0)
    TRITON.step(renewed(batch), config)
    reference(other, config)
    assert_close(batch, other)


def test_one_geometry_for_each_kind_of_layout():
    kinds: dict[int, Geometry] = {}
    for geometry in KINDS:
        batch = state_of([torch.ones(4, 16)], [torch.ones(4, 16)], a_config(geometry))
        assert not TRITON.reason_against(batch[0], a_config(geometry))
        kinds.setdefault(batch[0].prepared.kind.layout, geometry)
    assert len(kinds) == 5
    assert isinstance(a_config(Row(), momentum=0.9), SteepestConfig)

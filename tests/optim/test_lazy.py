"""lazy="exact": a row that had no gradient for some steps is where dense training would have taken it."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import Parameter

from benchmarks.measure import peak_extra_bytes
from matrix_adagrad import (
    CombinedOptimizer,
    EmbeddingBag,
    MatrixAdaGrad,
    MatrixMomentum,
    RowAdaGrad,
    RowMomentum,
    SteepestDescent,
    keep_rows_current,
    state_bytes,
    step_in_backward,
)
from matrix_adagrad.checkpoints import Checkpoints
from matrix_adagrad.domains import FrobeniusBall, RowBalls, RowSimplex
from matrix_adagrad.geometry import Batched, Blocks, Column, Entry, Factored, Row, Whole
from matrix_adagrad.optim.step import dispatch, lazy, native_lazy
from tests.optim.training import assert_bitwise, assert_same

ROWS, WIDTH = 12, 4
GEOMETRIES = (
    *(Row(), Column(), Entry(), Whole(), Blocks(rows=3), Blocks(columns=2), Blocks(rows=3, columns=2)),
    *(Factored(), Factored("geometric"), Factored("minimum"), Batched(Row())),
)
DECOUPLED = {"weight_decay": 0.4, "decoupled_weight_decay": True}


@pytest.fixture(autouse=True, scope="module", params=["native", "torch"])
def backend(request):
    """Every test runs with the native kernels, where they cover the case, and with torch's operators."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(dispatch.NATIVE, "reason_against", lambda *_: "the test asks for torch's operators")
            patch.setattr(native_lazy, "covers", lambda *_: False)
        yield


def make_table(dtype=torch.float64, layer=nn.Embedding, sparse=True, rows=ROWS):
    table = layer(rows, WIDTH, sparse=sparse)
    with torch.no_grad():
        table.weight.copy_(torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0)))
    return table.to(dtype)


def take_step(table, optimizer, index, lr):
    """A step of real training: the forward pass reads rows, and the gradient depends on their values."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    rows = torch.tensor([index], dtype=torch.int64)
    target = torch.arange(rows.numel() * WIDTH).view(1, -1, WIDTH).sin() if isinstance(table, nn.Embedding) else 1
    (table(rows) - target).square().sum().backward()
    optimizer.step()


def walk(make, steps, *, dense=False, catch_up=True, **of_table):
    """Train, and read all rows at the end."""
    table = make_table(sparse=not dense, **of_table)
    optimizer = make(table.parameters())
    with keep_rows_current(table, optimizer):
        for index, lr in steps:
            take_step(table, optimizer, index, lr)
    if catch_up:
        optimizer.catch_up()
    state = optimizer.state[table.weight]
    return table.weight.detach(), {
        key: value for key, value in state.items() if "decay" not in key and key != "last_step"
    }


indices = st.lists(st.integers(0, ROWS - 1), max_size=4)
rates = st.sampled_from([0.0, 0.05, 0.1, 0.3, torch.tensor(0.2, dtype=torch.float64)])
schedules = st.lists(st.tuples(indices, rates), min_size=1, max_size=12)
kinds = st.sampled_from([MatrixAdaGrad, MatrixMomentum])
decays = st.sampled_from([{}, {"weight_decay": 0.0, "decoupled_weight_decay": True}, DECOUPLED])


@given(st.sampled_from(GEOMETRIES), kinds, schedules, decays, st.sampled_from([0.0, 0.5, 0.99]), st.booleans())
def test_sparse_training_is_dense_training(geometry, cls, steps, decay, beta2, flag):
    options = {"geometry": geometry, "eps": 1e-3, **decay}
    if cls is MatrixMomentum:
        options |= {"betas": (0.0, beta2), "bias_correction": flag}
    (x, state), (y, dense_state) = (
        walk(lambda p, o=own: cls(p, **options, **o), steps, dense=dense)
        for own, dense in (({"lazy": "exact"}, False), ({}, True))
    )
    assert_same([x], [y], rtol=1e-10, atol=1e-11)
    assert_same([*state.values()], [*dense_state.values()], rtol=1e-10, atol=1e-14)


LONG = [([t % ROWS if t % 7 else 0, t * t % ROWS], 0.1 + 0.05 * (t % 5)) for t in range(60)]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-5), (torch.float64, 1e-11)], ids=str)
def test_long_runs_stay_with_the_dense_one_up_to_rounding(geometry, dtype, rtol):
    """The decays add up to more than the counters resolve at once: they start over."""
    options = {"geometry": geometry, "betas": (0.0, 0.9), "eps": 1e-2, "weight_decay": 1.5}
    options["decoupled_weight_decay"] = True
    (x, _), (y, _) = (
        walk(lambda p, o=own: MatrixMomentum(p, **options, **o), LONG, dense=dense, dtype=dtype)
        for own, dense in (({"lazy": "exact"}, False), ({}, True))
    )
    assert_same([x], [y], rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_tables_are_rounded_once_per_catch_up(dtype):
    """A half is exact in every dtype, and so dense training makes no other roundings."""
    steps = [([0, 1], 1.0), ([1], 1.0), ([2], 1.0), ([0], 1.0)]
    halves = {"weight_decay": 0.5, "decoupled_weight_decay": True}
    (x, _), (y, _) = (
        walk(lambda p, o=own: RowAdaGrad(p, **halves, **o), steps, dense=dense, dtype=dtype)
        for own, dense in (({"lazy": "exact"}, False), ({}, True))
    )
    assert x.dtype is dtype
    assert_bitwise([x], [y])


def test_a_narrow_table_keeps_decays_that_dense_training_rounds_away():
    small = {"weight_decay": 1e-3, "decoupled_weight_decay": True, "lr": 1.0}
    table, dense = (make_table(torch.bfloat16, sparse=sparse) for sparse in (True, False))
    exact, other = RowAdaGrad(table.parameters(), **small, lazy="exact"), RowAdaGrad(dense.parameters(), **small)
    start = table.weight.detach().clone()
    for _ in range(200):
        take_step(table, exact, [0], 1.0)
        take_step(dense, other, [0], 1.0)
    exact.catch_up()
    assert_same([table.weight[1:]], [(start * 0.999**200)[1:]], rtol=2e-2, atol=0)
    assert torch.equal(dense.weight[1:], start[1:])


def test_touched_rows_are_not_enough():
    steps = [([t % 3], 0.1) for t in range(6)] + [([7], 0.1)]
    ends = [
        walk(lambda p, o=own: RowMomentum(p, betas=(0.0, 0.9), **DECOUPLED, **o), steps, dense=dense)[0]
        for own, dense in (({"lazy": "touched"}, False), ({"lazy": "exact"}, False), ({}, True))
    ]
    touched, exact, dense = ends
    assert_same([exact], [dense], rtol=1e-12, atol=1e-12)
    assert ((touched - dense).abs().amax(1) > 1e-3).all()


@given(st.sampled_from(GEOMETRIES), st.lists(indices, min_size=1, max_size=8), st.sampled_from([0.5, 0.9]))
def test_averages_are_the_dense_ones_and_movement_between_gradients_is_not_made_up(geometry, batches, beta1):
    params = [Parameter(torch.ones(ROWS, WIDTH, dtype=torch.float64)) for _ in range(2)]
    exact, dense = (
        MatrixMomentum([p], geometry=geometry, betas=(beta1, 0.9), lazy=own)
        for p, own in zip(params, ("exact", "touched"), strict=True)
    )
    x, y = params
    for t, index in enumerate(batches):
        values = torch.randn(len(index), WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
        grad = torch.sparse_coo_tensor(torch.tensor([index], dtype=torch.int64), values, x.shape, check_invariants=True)
        x.grad, y.grad, before = grad, grad.to_dense(), x.detach().clone()
        exact.step()
        dense.step()
        untouched = [i for i in range(ROWS) if i not in index]
        assert_bitwise([x[untouched]], [before[untouched]])
    exact.catch_up()
    for key in exact.state[x].keys() - {"last_step"}:
        assert_same([exact.state[x][key]], [dense.state[y][key]], rtol=1e-12, atol=1e-15)


def test_rows_of_every_step_take_the_same_bits_as_touched_ones():
    steps = [([*range(ROWS)], 0.1 * t) for t in range(1, 6)]
    for cls in (RowAdaGrad, RowMomentum):
        make = partial(cls, **DECOUPLED)
        x, y = (walk(partial(make, lazy=own), steps)[0] for own in ("exact", "touched"))
        assert_bitwise([x], [y])


@pytest.mark.parametrize("domain", [RowBalls(0.7)], ids=str)
def test_a_domain_around_0_is_projected_onto_as_in_dense_training(domain):
    options = {"domain": domain, "project_start": True, **DECOUPLED, "betas": (0.0, 0.9)}
    (x, _), (y, _) = (
        walk(lambda p, o=own: RowMomentum(p, **options, **o), LONG, dense=dense)
        for own, dense in (({"lazy": "exact"}, False), ({}, True))
    )
    assert_same([x], [y], rtol=1e-9, atol=1e-9)


def test_gradients_may_change_between_sparse_and_dense():
    make = lambda p, o: MatrixMomentum(p, betas=(0.0, 0.9), **DECOUPLED, lazy=o)  # noqa: E731
    tables, ends = [make_table(sparse=True), make_table(sparse=False)], []
    for table, own in zip(tables, ("exact", "touched"), strict=True):
        optimizer = make(table.parameters(), own)
        keep = keep_rows_current(table, optimizer)
        for t, (index, lr) in enumerate(LONG):
            table.sparse = own == "exact" and t % 5 > 0
            take_step(table, optimizer, index, lr)
        optimizer.catch_up()
        keep.remove()
        ends.append(table.weight)
    assert_same(ends[:1], ends[1:], rtol=1e-11, atol=1e-12)


# ------------------------------------------------------------------------------------------------------ reading rows


class TwoTables(nn.Module):
    """A module that says what it reads: the first half of the numbers from one table, the second from another."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ParameterList([make_table().weight, make_table().weight])

    def forward(self, index):
        return torch.cat([nn.functional.embedding(rows, w, sparse=True) for w, rows in self.rows_read(index)])

    def rows_read(self, index):
        return zip(self.tables, index.chunk(2), strict=True)


def halving(params, **options):
    return RowAdaGrad(params, lr=1.0, weight_decay=0.5, decoupled_weight_decay=True, lazy="exact", **options)


def nothing(p):
    """A sparse gradient without rows."""
    index, values = torch.zeros(1, 0, dtype=torch.int64), p.new_zeros(0, *p.shape[1:])
    return torch.sparse_coo_tensor(index, values, p.shape, check_invariants=True)


def idle_steps(optimizer, steps=2):
    """Steps without gradient for any row."""
    for _ in range(steps):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = nothing(p)
        optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag, EmbeddingBag, "own"])
def test_a_forward_pass_reads_rows_that_are_up_to_date_and_leaves_the_others(layer):
    module = TwoTables() if layer == "own" else make_table(layer=layer)
    start = [p.detach().clone() for p in module.parameters()]
    optimizer = halving(module.parameters())
    handle = keep_rows_current(nn.Sequential(module), optimizer)
    idle_steps(optimizer)
    index = torch.tensor([[3, 5]]).view(-1) if layer in ("own", nn.Embedding) else torch.tensor([[3, 5]])
    out = module(index)
    if layer == "own":
        assert_bitwise([out], [torch.stack([start[0][3], start[1][5]]) / 4])
        assert_bitwise([module.tables[0][5]], [start[0][5]])
    else:
        assert_same([module.weight[[3, 5]]], [start[0][[3, 5]] / 4], rtol=1e-15, atol=0)
        assert_bitwise([module.weight[4]], [start[0][4]])
    handle.remove()
    module(index + 1)
    assert_bitwise([next(module.parameters())[4]], [start[0][4]])


def test_a_bag_may_be_called_by_keyword_and_twice_in_one_pass_with_weights_of_its_own():
    """The second call brings rows up to date that the first has not read: its graph stays valid."""
    table = make_table(layer=nn.EmbeddingBag)
    table.mode = "sum"
    optimizer = halving(table.parameters())
    keep_rows_current(table, optimizer)
    idle_steps(optimizer)
    weights = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    one = table(input=torch.tensor([[1, 2]]), per_sample_weights=weights)
    two = table(torch.tensor([[3, 4]]), per_sample_weights=weights)
    (one + two).sum().backward()
    assert_same([weights.grad[0]], [table.weight[[1, 2]].sum(1) + table.weight[[3, 4]].sum(1)], rtol=1e-14, atol=0)


def test_autograd_notices_a_catch_up_of_all_rows_between_forward_and_backward():
    table = make_table()
    optimizer = halving(table.parameters())
    idle_steps(optimizer)
    loss = (table.weight**2).sum()
    optimizer.catch_up()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_hook_goes_with_neither_copies_nor_optimizers_that_are_gone():
    table = make_table()
    optimizer = halving(table.parameters())
    keep_rows_current(table, optimizer)
    copied = copy.deepcopy(table)
    idle_steps(optimizer)
    before = copied.weight.detach().clone()
    copied(torch.tensor([1]))
    assert_bitwise([copied.weight], [before])
    del optimizer
    table(torch.tensor([1]))


def test_a_module_or_optimizer_without_such_rows_is_refused_by_name():
    table, linear = make_table(), nn.Linear(2, 2)
    with pytest.raises(ValueError, match="among those of a MatrixAdaGrad or MatrixMomentum; it has none"):
        keep_rows_current(linear, RowAdaGrad(linear.parameters()))
    with pytest.raises(ValueError, match="among those of a MatrixAdaGrad or MatrixMomentum; it has Embedding"):
        keep_rows_current(table, RowAdaGrad(linear.parameters()))
    with pytest.raises(TypeError, match="module must be an nn.Module, got Parameter"):
        keep_rows_current(table.weight, RowAdaGrad(table.parameters()))
    with pytest.raises(TypeError, match="optimizer must be a torch.optim.Optimizer, got str"):
        keep_rows_current(table, "exact")


def test_what_cannot_be_caught_up_is_refused_by_name():
    table = make_table()
    optimizer = halving(table.parameters())
    with pytest.raises(ValueError, match="not among the optimizer's parameters"):
        optimizer.catch_up(Parameter(torch.zeros(2, 2)))
    with pytest.raises(TypeError, match="rows are those of a parameter: give param too"):
        optimizer.catch_up(rows=torch.tensor([1]))
    idle_steps(optimizer)
    with pytest.raises(IndexError, match=f"rows must be from 0 to {ROWS - 1}, got 3 to {ROWS}"):
        optimizer.catch_up(table.weight, torch.tensor([3, ROWS]))


def test_it_costs_what_the_batch_costs():
    peaks = []
    for rows in (1000, 100_000):
        table = make_table(torch.float32, rows=rows)
        optimizer = RowMomentum(table.parameters(), betas=(0.0, 0.9), **DECOUPLED, lazy="exact")
        keep_rows_current(table, optimizer)
        take_step(table, optimizer, [5, 1, 9], 0.1)

        def step(table=table, optimizer=optimizer):
            take_step(table, optimizer, [7, 1, 5, 9], 0.1)

        peaks.append(peak_extra_bytes(step)[0])
    assert peaks[0] == peaks[1] < 20_000


def test_combined_optimizers_catch_up_and_step_in_backward_steps_exactly():
    def train(in_backward):
        torch.manual_seed(0)
        table, head = make_table(), nn.Linear(WIDTH, 1).double()
        combined = CombinedOptimizer(
            [
                RowMomentum(table.parameters(), betas=(0.0, 0.9), **DECOUPLED, lazy="exact"),
                SteepestDescent(head.parameters()),
            ]
        )
        handles = [keep_rows_current(table, combined), *([step_in_backward(combined)] if in_backward else [])]
        for index, _ in LONG:
            combined.zero_grad()
            head(table(torch.tensor(index))).square().sum().backward()
            combined.step()
        combined.catch_up()
        combined.catch_up(head.weight)
        assert handles
        return [table.weight, head.weight]

    assert_bitwise(train(in_backward=True), train(in_backward=False))


# -------------------------------------------------------------------------------------------------------------- state


def test_four_bytes_a_row_for_averages_and_four_for_decay():
    table = make_table(torch.float32)
    for betas, decay, expected in (
        (None, False, {}),
        (None, True, {"last_decay": (ROWS,), "decay": ()}),
        ((0.0, 0.9), False, {"last_step": (ROWS,)}),
        ((0.0, 0.9), True, {"last_step": (ROWS,), "last_decay": (ROWS,), "decay": ()}),
    ):
        sizes = []
        for own in ("touched", "exact"):
            options = {"decoupled_weight_decay": decay, "lazy": own}
            optimizer = (
                RowAdaGrad(table.parameters(), **options)
                if betas is None
                else RowMomentum(table.parameters(), betas=betas, **options)
            )
            optimizer.init_state()
            sizes.append(state_bytes(optimizer))
        state = optimizer.state[table.weight]
        found = {key: tuple(value.shape) for key, value in state.items() if key in ("last_step", "last_decay", "decay")}
        assert found == expected
        assert sizes[1] - sizes[0] == 4 * ROWS * len([shape for shape in expected.values() if shape]) + 8 * decay


def make_exact(params, lazy="exact"):
    return RowMomentum(params, betas=(0.0, 0.9), **DECOUPLED, lazy=lazy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_run_resumes_bit_for_bit_from_a_state_dict_or_a_copy(dtype):
    whole, table, twin = (make_table(dtype) for _ in range(3))
    optimizer, part = make_exact(whole.parameters()), make_exact(table.parameters())
    for index, lr in LONG[:20]:
        take_step(whole, optimizer, index, lr)
        take_step(table, part, index, lr)
    twin, copied = copy.deepcopy((table, part))
    again = make_exact(table.parameters())
    again.load_state_dict(part.state_dict())
    for index, lr in LONG[20:]:
        for own, its in ((whole, optimizer), (table, again), (twin, copied)):
            take_step(own, its, index, lr)
    for own in (optimizer, again, copied):
        own.catch_up()
    assert_bitwise([whole.weight, whole.weight], [table.weight, twin.weight])
    assert_bitwise([*optimizer.state[whole.weight].values()], [*again.state[table.weight].values()])


def test_a_checkpoint_resumes_exactly(tmp_path):
    table = make_table(torch.float32)
    optimizer = make_exact(table.parameters())
    for index, lr in LONG[:20]:
        take_step(table, optimizer, index, lr)
    Checkpoints(tmp_path, table, optimizer).save(20)
    other = make_table(torch.float32)
    resumed = make_exact(other.parameters())
    assert Checkpoints(tmp_path, other, resumed).resume() == 20
    for own, its in ((table, optimizer), (other, resumed)):
        for index, lr in LONG[20:]:
            take_step(own, its, index, lr)
        its.catch_up()
    assert_bitwise([table.weight], [other.weight])


def test_rows_of_a_touched_state_count_from_now_on(tmp_path):
    table, other = make_table(), make_table()
    optimizer = make_exact(table.parameters(), lazy="touched")
    for index, lr in LONG[:20]:
        take_step(table, optimizer, index, lr)
    Checkpoints(tmp_path, table, optimizer).save(20)
    exact = make_exact(other.parameters())
    assert Checkpoints(tmp_path, other, exact).resume() == 20
    assert exact.param_groups[0]["lazy"] == "exact"
    optimizer.param_groups[0]["lazy"] = "exact"
    for own, its in ((table, optimizer), (other, exact)):
        take_step(own, its, [3], 0.1)
        assert its.state[own.weight]["last_step"][[0, 3]].tolist() == [20, 21]
        its.catch_up()
    assert_bitwise([table.weight], [other.weight])


def test_an_exact_state_goes_to_touched_only_if_all_rows_are_up_to_date(tmp_path):
    table = make_table()
    optimizer, touched = make_exact(table.parameters()), make_exact(table.parameters(), lazy="touched")
    for index, lr in LONG[:20]:
        take_step(table, optimizer, index, lr)
    Checkpoints(tmp_path, table, optimizer).save(20)
    for load in (lambda: touched.load_state_dict(optimizer.state_dict()), Checkpoints(tmp_path, table, touched).resume):
        with pytest.raises(ValueError, match="parameter .*: the saved run had lazy='exact', and some rows have yet to"):
            load()
    optimizer.catch_up()
    touched.load_state_dict(optimizer.state_dict())
    assert {*touched.state[table.weight]} == {"step", "exp_avg_sq"}
    assert touched.param_groups[0]["lazy"] == "touched"


def test_a_group_that_is_edited_to_touched_catches_up_first():
    table, twin = make_table(), make_table()
    edited, optimizer = make_exact(table.parameters()), make_exact(twin.parameters())
    for index, lr in LONG[:20]:
        take_step(table, edited, index, lr)
        take_step(twin, optimizer, index, lr)
    edited.param_groups[0]["lazy"] = "touched"
    edited.init_state()
    optimizer.catch_up()
    assert_bitwise([table.weight], [twin.weight])
    assert {*edited.state[table.weight]} == {"step", "exp_avg_sq"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "last_step",
            torch.zeros(3, dtype=torch.int32),
            "'last_step' must be a dense tensor of whole numbers of shape",
        ),
        ("last_step", torch.full((ROWS,), 99), "'last_step' must be at least 0, and at most 3"),
        ("last_decay", torch.full((ROWS,), float("nan")), "'last_decay' must be at least 0, and finite"),
        ("decay", torch.zeros(2), "'decay' must be a dense tensor of floating-point numbers of shape"),
    ],
)
def test_saved_counters_are_checked_before_anything_changes(key, value, words):
    table = make_table()
    optimizer = make_exact(table.parameters())
    idle_steps(optimizer, 3)
    saved = optimizer.state_dict()
    saved["state"][0] = {**saved["state"][0], key: value}
    other = make_exact(table.parameters())
    with pytest.raises(ValueError, match=words):
        other.load_state_dict(saved)
    assert not other.state


def test_counters_follow_the_dtype_of_their_table():
    table = make_table(torch.float32)
    optimizer = make_exact(table.parameters())
    take_step(table, optimizer, [3], 0.1)
    table.double()
    take_step(table, optimizer, [4], 0.1)
    assert optimizer.state[table.weight]["last_decay"].dtype is torch.float64


# ----------------------------------------------------------------------------------------------------------- refusals


def test_options_that_rule_each_other_out_are_refused_by_name():
    x = Parameter(torch.full((3, 4), 0.25))
    with pytest.raises(ValueError, match=r"lazy='exact' cannot catch up weight_decay=0.1: it is part of the gradient"):
        RowAdaGrad([x], weight_decay=0.1, lazy="exact")
    for other in ("capturable", "differentiable"):
        with pytest.raises(ValueError, match=f"which {other}=True rules out"):
            RowAdaGrad([x], lazy="exact", **{other: True})
    with pytest.raises(ValueError, match="lazy must be 'touched' or 'exact', got 'eager'"):
        RowAdaGrad([x], lazy="eager")
    with pytest.raises(ValueError, match="ties those of parameter 0 together"):
        RowAdaGrad([x], lazy="exact", domain=FrobeniusBall(9.0))
    with pytest.raises(ValueError, match=r"RowSimplex\(.*\) does not contain 0"):
        RowAdaGrad([x], lazy="exact", domain=RowSimplex(), **DECOUPLED)
    with pytest.raises(TypeError, match="SteepestDescent got an unknown option 'lazy'"):
        SteepestDescent([x], lazy="exact")


def test_an_edited_group_is_refused_before_anything_moves():
    table = make_table()
    optimizer = halving(table.parameters())
    before = table.weight.detach().clone()
    optimizer.param_groups[0]["weight_decay"] = 1.0
    with pytest.raises(ValueError, match=r"lr \* weight_decay must be less than 1 with lazy='exact', got 1 \* 1"):
        take_step(table, optimizer, [1], 1.0)
    optimizer.param_groups[0]["decoupled_weight_decay"] = False
    with pytest.raises(ValueError, match="it is part of the gradient"):
        take_step(table, optimizer, [1], 0.1)
    assert_bitwise([table.weight], [before])


def test_a_step_that_fails_leaves_rows_where_they_belong():
    table = make_table()
    optimizer = halving(table.parameters())
    idle_steps(optimizer)
    start = table.weight.detach().clone()
    table.weight.grad = torch.sparse_coo_tensor(
        [[1, ROWS]], torch.ones(2, WIDTH).double(), (ROWS, WIDTH), check_invariants=False
    )
    with pytest.raises(IndexError, match="its sparse gradient has rows"):
        optimizer.step()
    optimizer.catch_up()
    assert_same([table.weight], [start / 4], rtol=1e-15, atol=0)


def test_stochastic_rounding_of_rows_that_catch_up_is_unbiased():
    rows = 20_000
    x = Parameter(torch.ones(rows, 1, dtype=torch.bfloat16))
    optimizer = RowAdaGrad(
        [x], lr=1e-3, weight_decay=0.5, decoupled_weight_decay=True, lazy="exact", stochastic_rounding=True
    )
    idle_steps(optimizer, 2)
    optimizer.catch_up()
    moved = x.detach().float()
    assert (moved.mean() - 0.9995**2).abs() < 5 * moved.std() / rows**0.5


def test_the_total_starts_over_before_a_float32_loses_digits():
    table = make_table(torch.float32)
    optimizer = halving(table.parameters())
    idle_steps(optimizer, 5)
    assert optimizer.state[table.weight]["decay"] == 5 * torch.tensor(2.0, dtype=torch.float64).log()
    idle_steps(optimizer, 1)
    assert optimizer.state[table.weight]["decay"] == 0
    assert lazy._MOST_DECAY == 4

"""Sparse gradients: the rows of a batch, whatever their order and number."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import Parameter
from torch.optim import SparseAdam

from benchmarks.measure import peak_extra_bytes
from matrix_adagrad import MatrixAdaGrad, MatrixMomentum, RowAdaGrad, RowMomentum
from matrix_adagrad.domains import RowBalls
from matrix_adagrad.geometry import Batched, Blocks, Column, Diagonal, Entry, Factored, Row, Whole
from matrix_adagrad.optim.step import dispatch
from tests.optim.table import TABLE
from tests.optim.training import assert_bitwise, assert_same, make_params, train


@pytest.fixture(autouse=True, scope="module", params=["native", "torch"])
def backend(request):
    """Every test runs with the native kernels, where they cover the case, and with torch's operators."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(dispatch.NATIVE, "reason_against", lambda *_: "the test asks for torch's operators")
        yield


ROWS, WIDTH = 12, 4
FACTORED = (Factored(), Factored("geometric"), Factored("minimum"))
GEOMETRIES = (
    *(Row(), Column(), Entry(), Whole(), Blocks(rows=3), Blocks(columns=2), Blocks(rows=3, columns=2)),
    *FACTORED,
)
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
every_entrant = pytest.mark.parametrize("entrant", TABLE, ids=str)
batches = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=8), min_size=1, max_size=4)
options = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([0.1, torch.tensor(0.1, dtype=torch.float64)]),
        "reduction": st.sampled_from(["sum", "mean"]),
        "eps": st.sampled_from([0.0, 1e-10, 1e-2]),
        "initial_accumulator_value": st.sampled_from([0.0, 0.5]),
        "maximize": st.booleans(),
    }
)


def sparse_grad(index, seed, shape=(ROWS, WIDTH), dtype=torch.float64):
    """Rows as they come: repeated, unsorted, not coalesced."""
    values = torch.randn(len(index), *shape[1:], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.sparse_coo_tensor(
        torch.tensor([index], dtype=torch.int64), values.to(dtype), shape, check_invariants=True
    )


def walk(make, batches, *, dense, shape=(ROWS, WIDTH), dtype=torch.float64):
    (x,) = make_params(dtype, [shape])
    optimizer = make([x])
    for t, index in enumerate(batches):
        grad = sparse_grad(index, t, shape, dtype)
        x.grad = grad.to_dense() if dense else grad
        optimizer.step()
    return x, optimizer.state[x]


@given(st.sampled_from(GEOMETRIES), options, batches)
def test_adagrad_takes_the_same_steps_as_with_dense_gradients_in_every_geometry(geometry, options, batches):
    ends = [walk(lambda p: MatrixAdaGrad(p, geometry=geometry, **options), batches, dense=d) for d in (False, True)]
    (x, state), (y, dense_state) = ends
    assert_same([x], [y], rtol=1e-11, atol=1e-12)
    assert_same([*state.values()], [*dense_state.values()], rtol=1e-12, atol=0)


@given(st.sampled_from(GEOMETRIES), st.sampled_from([MatrixAdaGrad, MatrixMomentum]), st.booleans(), st.booleans())
def test_where_every_row_is_touched_sparse_is_dense_with_decay_and_momentum_too(geometry, cls, decoupled, maximize):
    rows = [list(range(ROWS))[::-1]] * 4
    options = {"weight_decay": 0.1, "decoupled_weight_decay": decoupled, "maximize": maximize, "geometry": geometry}
    (x, state), (y, dense_state) = (walk(lambda p: cls(p, **options), rows, dense=d) for d in (False, True))
    assert_same([x], [y], rtol=1e-11, atol=1e-12)
    statistics = [key for key in state if key.startswith(cls.STATISTIC)]
    assert_same([state[key] for key in statistics], [dense_state[key] for key in statistics], rtol=1e-12, atol=0)


@given(batches)
def test_momentum_of_untouched_rows_is_lazy(batches):
    """In the entry geometry that is what torch's SparseAdam does, which has eps elsewhere."""
    (x, _), (y, _) = (
        walk(make, batches, dense=False)
        for make in (
            lambda p: MatrixMomentum(p, lr=0.1, geometry="entry", eps=1e-30),
            lambda p: SparseAdam(p, lr=0.1, eps=1e-30),
        )
    )
    assert_same([x], [y], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("geometry", FACTORED, ids=str)
def test_averages_of_touched_rows_and_of_all_columns_take_a_step(geometry):
    beta2, g = 0.5, sparse_grad([3, 7, 3], 0)
    (x,) = make_params(shapes=[(ROWS, WIDTH)])
    optimizer = MatrixMomentum([x], geometry=geometry, betas=(0.0, beta2))
    x.grad = sparse_grad(list(range(ROWS)), 1)
    optimizer.step()
    before = {key: value.clone() for key, value in optimizer.state[x].items()}
    x.grad = g
    optimizer.step()
    squares, touched = g.to_dense().square(), torch.tensor([3, 7])
    for key, dims in {"row": 1, "column": 0, "whole": (0, 1)}.items():
        if (name := f"exp_avg_sq_{key}") not in before:
            continue
        expected = beta2 * before[name] + (1 - beta2) * squares.sum(dims, keepdim=True)
        if key == "row":  # lazy: an untouched row keeps its average
            expected = before[name].index_copy(0, touched, expected[touched])
        assert_same([optimizer.state[x][name]], [expected], rtol=1e-12, atol=0)


@pytest.mark.parametrize("shape", [(ROWS, 1), (ROWS, 70), (1, 5), (ROWS, 3, 4)])
@pytest.mark.parametrize("geometry", [*FACTORED, Batched(Row())], ids=str)
def test_rows_of_a_table_and_matrices_of_a_batch_can_be_sparse(geometry, shape):
    index = [[i % shape[0] for i in batch] for batch in ([1, 5, 1], [0])]
    (x, state), (y, dense_state) = (
        walk(lambda p: MatrixAdaGrad(p, geometry=geometry), index, dense=d, shape=shape) for d in (False, True)
    )
    assert_same([x], [y], rtol=1e-11, atol=1e-12)
    assert_same([*state.values()], [*dense_state.values()], rtol=1e-12, atol=0)


@dataclass(frozen=True)
class RowPlusColumn(Diagonal):
    """√(r_i + c_j), as a user would write it."""

    statistics, partitions = ("row", "column"), (Row(), Column())

    def scale(self, row, column):
        return (row + column).sqrt()


@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (ROWS, 2, 3)])
def test_a_geometry_of_ones_own_that_names_its_partitions_steps_the_touched_rows(shape):
    (x, state), (y, dense_state) = (
        walk(lambda p: MatrixAdaGrad(p, geometry=RowPlusColumn()), [[1, 5, 1], [0]], dense=d, shape=shape)
        for d in (False, True)
    )
    assert_same([x], [y], rtol=1e-11, atol=1e-12)
    assert_same([*state.values()], [*dense_state.values()], rtol=1e-12, atol=0)
    x, _ = walk(lambda p: MatrixMomentum(p, geometry=RowPlusColumn()), [list(range(ROWS)), [1]], dense=False)
    once, _ = walk(lambda p: MatrixMomentum(p, geometry=RowPlusColumn()), [list(range(ROWS))], dense=False)
    assert (x == once).all(1).tolist() == [i != 1 for i in range(ROWS)]


@every_entrant
def test_rows_that_are_not_touched_do_not_move(entrant):
    x, _ = walk(lambda p: entrant(p, weight_decay=0.1), [[3, 3, 7], [7, 0]], dense=False)
    (start,) = make_params(shapes=[(ROWS, WIDTH)])
    untouched = [i for i in range(ROWS) if i not in (0, 3, 7)]
    assert_bitwise([x[untouched]], [start[untouched]])
    assert (x[[0, 3, 7]] != start[[0, 3, 7]]).any(1).all()


@pytest.mark.parametrize("cls", [RowAdaGrad, RowMomentum])
def test_weight_decay_is_for_the_touched_rows(cls):
    for decoupled in (False, True):
        x, _ = walk(lambda p, d=decoupled: cls(p, weight_decay=0.1, decoupled_weight_decay=d), [[2]], dense=False)
        y, _ = walk(lambda p, d=decoupled: cls(p, weight_decay=0.1, decoupled_weight_decay=d), [[2]], dense=True)
        assert_same([x[2]], [y[2]], rtol=1e-11, atol=1e-12)


@every_entrant
def test_an_empty_batch_is_a_step_that_moves_nothing(entrant):
    x, state = walk(entrant, [[], []], dense=False)
    assert_bitwise([x], make_params(shapes=[(ROWS, WIDTH)]))
    assert state["step"] == 2
    assert all(value.isfinite().all() for value in state.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("cls", [RowAdaGrad, RowMomentum])
def test_other_dtypes_have_wide_state_and_follow_the_dense_step(cls, dtype):
    rows = [list(range(ROWS))]
    (x, state), (y, _) = (walk(lambda p: cls(p, lr=0.1), rows, dense=d, dtype=dtype) for d in (False, True))
    assert x.dtype is dtype
    assert state[cls.STATISTIC].dtype is torch.float32
    assert_same([x], [y])


def test_repeated_rows_are_summed_in_float32():
    x = Parameter(torch.zeros(2, 1, dtype=torch.bfloat16))
    ones = torch.ones(600, 1, dtype=torch.bfloat16)
    x.grad = torch.sparse_coo_tensor(torch.zeros(1, 600, dtype=torch.int64), ones, (2, 1), check_invariants=True)
    optimizer = RowAdaGrad([x])
    optimizer.step()
    assert optimizer.state[x]["sum"][0].item() == 600**2  # in bfloat16 the sum would stop at 256


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 2, 3)])
@pytest.mark.parametrize("geometry", ["row", "column", "entry", "whole"])
def test_vectors_and_tensors_with_sparse_rows(shape, geometry):
    (x, _), (y, _) = (
        walk(lambda p: MatrixAdaGrad(p, geometry=geometry), [[1, 5, 1], [0]], dense=d, shape=shape)
        for d in (False, True)
    )
    assert_same([x], [y], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
@every_geometry
def test_embeddings_train_alike_with_sparse_and_dense_gradients(layer, geometry):
    ends = []
    for is_sparse in (False, True):
        torch.manual_seed(0)
        table, head = layer(ROWS, WIDTH, sparse=is_sparse), nn.Linear(WIDTH, 1)
        groups = [{"params": table.parameters(), "geometry": geometry}, {"params": head.parameters()}]
        optimizer = MatrixAdaGrad(groups, lr=0.1)
        for t in range(5):
            optimizer.zero_grad()
            index = torch.randint(ROWS, (6, 2), generator=torch.Generator().manual_seed(t))
            head(table(index)).square().mean().backward()
            optimizer.step()
        ends.append([*table.parameters(), *head.parameters()])
    assert_same(*ends, rtol=1e-4, atol=1e-6)


def test_stochastic_rounding_of_touched_rows_is_unbiased():
    x = Parameter(torch.ones(20_000, 1, dtype=torch.bfloat16))
    optimizer = RowAdaGrad([x], lr=1e-3, stochastic_rounding=True)
    index = torch.arange(0, 20_000, 2)
    ones = torch.ones(10_000, 1, dtype=torch.bfloat16)
    x.grad = torch.sparse_coo_tensor(index[None], ones, x.shape, check_invariants=True)
    optimizer.step()
    assert torch.equal(x[1::2], torch.ones_like(x[1::2]))
    moved = x[::2].detach().float()
    assert (moved.mean() - 0.999).abs() < 5 * moved.std() / 100


@pytest.mark.parametrize("geometry", [Row(), Factored()], ids=str)
@pytest.mark.parametrize("domain", [None, RowBalls(1.0)], ids=str)
def test_the_work_grows_with_the_batch_and_not_with_the_table(geometry, domain):
    peaks = []
    for rows in (1000, 100_000):
        x = Parameter(torch.zeros(rows, 8))
        optimizer = MatrixAdaGrad([x], geometry=geometry, domain=domain)
        optimizer.init_state()
        x.grad = sparse_grad([5, 1, 5, 9], 0, (rows, 8), torch.float32)
        peaks.append(peak_extra_bytes(optimizer.step)[0])
    assert peaks[0] == peaks[1] < 10_000


@every_entrant
def test_indices_out_of_range_raise_before_anything_is_written(entrant):
    (table, dense) = params = make_params(shapes=[(ROWS, WIDTH), (ROWS, WIDTH)])
    optimizer = entrant([("dense", dense), ("table", table)])
    optimizer.init_state()
    before = [p.detach().clone() for p in params]
    dense.grad = torch.ones_like(dense)
    for wrong in ([[3, ROWS]], [[-1, 3]]):
        values = torch.ones(2, WIDTH, dtype=torch.float64)
        table.grad = torch.sparse_coo_tensor(torch.tensor(wrong), values, (ROWS, WIDTH), check_invariants=False)
        with pytest.raises(IndexError, match=f"parameter 'table' has {ROWS} rows, and its sparse gradient has rows"):
            optimizer.step()
        assert_bitwise(params, before)
        assert optimizer.state[dense]["step"] == 0


def test_what_cannot_be_stepped_sparsely_is_refused_by_name():
    (x,) = make_params(shapes=[(ROWS, WIDTH)])
    x.grad = torch.ones(ROWS, WIDTH, dtype=torch.float64).to_sparse()
    with pytest.raises(RuntimeError, match="parameter 0 has a gradient with 2 sparse dimensions, and only the first"):
        RowAdaGrad([x]).step()
    x.grad = sparse_grad([1], 0)
    with pytest.raises(RuntimeError, match="parameter 0 has a sparse gradient, and autograd cannot record its step"):
        RowAdaGrad([x], differentiable=True).step()


def test_a_parameter_may_change_between_sparse_and_dense_gradients():
    (x,) = make_params(shapes=[(ROWS, WIDTH)])
    optimizer = RowAdaGrad([x])
    x.grad = sparse_grad([1, 4], 0)
    optimizer.step()
    train(None, [x], steps=1, optimizer=optimizer)
    (y,) = make_params(shapes=[(ROWS, WIDTH)])
    twin = RowAdaGrad([y])
    y.grad = sparse_grad([1, 4], 0).to_dense()
    twin.step()
    train(None, [y], steps=1, optimizer=twin)
    assert_same([x], [y], rtol=1e-11, atol=1e-12)


def test_gradients_are_not_written_to():
    (x,) = make_params(shapes=[(ROWS, WIDTH)])
    for coalesced in (False, True):
        grad = sparse_grad([1, 4, 1], 0)
        x.grad = grad.coalesce() if coalesced else grad
        before = x.grad._values().clone()
        RowAdaGrad([x], weight_decay=0.1, maximize=True).step()
        assert torch.equal(x.grad._values(), before)


def test_the_default_device_does_not_matter():
    (x,) = make_params(torch.float32, [(ROWS, WIDTH)])
    x.grad = sparse_grad([1] * 5000, 0, dtype=torch.float32)
    optimizer = RowAdaGrad([x])
    optimizer.init_state()
    with torch.device("meta"):
        optimizer.step()
    assert x.isfinite().all()

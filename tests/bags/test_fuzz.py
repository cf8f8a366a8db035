"""Random tables and bags of all kinds, against loops over the bags."""

import itertools
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix_adagrad import (
    ColumnAdaGrad,
    EmbeddingBag,
    EmbeddingBags,
    Factored,
    MatrixAdaGrad,
    MatrixMomentum,
    RowAdaGrad,
    Table,
    native,
    step_in_backward,
)
from matrix_adagrad.geometry import Column, Entry, Row
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")

# The same examples in every run: what they find does not depend on the day.
fuzzed = settings(derandomize=True, max_examples=max(50, settings().max_examples))

STEPS, MOST_BAGS, LONGEST = 3, 70, 90  # bags of a feature, ids of a bag
WIDTHS = (1, 3, 5, 8, 20, 64, 130)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# A large eps bounds what a rounding of the gradient does to the step: it moves x by at most lr / eps as much.
OPTIONS = {"lr": 0.1, "eps": 0.05}
OPTIMIZERS = {
    "rows": lambda params, **own: RowAdaGrad(params, **own),
    "columns": lambda params, **own: ColumnAdaGrad(params, **own),
    "entries": lambda params, **own: MatrixAdaGrad(params, geometry=Entry(), **own),
    "factored": lambda params, **own: MatrixAdaGrad(params, geometry=Factored(), **own),
    "row momentum": lambda params, **own: MatrixMomentum(params, geometry=Row(), **own),
    "column momentum": lambda params, **own: MatrixMomentum(params, geometry=Column(), nesterov=True, **own),
    "factored momentum": lambda params, **own: MatrixMomentum(params, geometry=Factored(), betas=(0.0, 0.9), **own),
}


class Batch(NamedTuple):
    index: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None
    upstream: torch.Tensor


class Case(NamedTuple):
    tables: dict[str, Table]
    batches: list[Batch]

    @property
    def features(self) -> list[tuple[str, Table]]:
        """The table that each feature reads."""
        return [(name, table) for name, table in self.tables.items() for _ in table.features or (name,)]

    def bags(self) -> EmbeddingBags:
        torch.manual_seed(0)
        return EmbeddingBags(self.tables)


@st.composite
def tables(draw):
    name, rows = draw(st.sampled_from(["user", "items", "type"])), draw(st.sampled_from([1, 2, 7, 300, 5000]))
    features = draw(st.sampled_from([None, None, ("seen", "bought")]))
    padding = draw(st.sampled_from([None, None, 0, rows - 1]))
    return name, {"rows": rows, "width": draw(st.sampled_from(WIDTHS)), "features": features, "padding_idx": padding}


@st.composite
def cases(draw, dtypes=DTYPES, is_shared=True):
    dtype, index_dtype = draw(st.sampled_from(dtypes)), draw(st.sampled_from([torch.int64, torch.int32]))
    modes = ["sum"] if draw(st.booleans()) else ["sum", "mean"]
    specs = dict(draw(st.lists(tables(), min_size=1, max_size=4, unique_by=lambda table: table[0])))
    shared = [name for name, spec in specs.items() if spec["features"]]
    for name in shared[is_shared:]:  # the names of features are unique
        specs[name]["features"] = None
    made = {name: Table(**spec, mode=draw(st.sampled_from(modes)), dtype=dtype) for name, spec in specs.items()}
    case = Case(made, [])
    weighted = all(table.mode == "sum" for table in made.values()) and draw(st.booleans())
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    for _ in range(STEPS):
        bags, longest = (
            draw(st.sampled_from([0, 1, 2, 3, 5, 9, MOST_BAGS])),
            draw(st.sampled_from([0, 1, 4, 4, LONGEST])),
        )
        lengths = torch.randint(longest + 1, (len(case.features), bags), generator=random)
        ids = [
            (torch.rand(int(own.sum()), generator=random) ** 3 * table.rows).to(index_dtype)
            for own, (_, table) in zip(lengths, case.features, strict=True)
        ]
        index, offsets = torch.cat(ids), torch.cat([torch.zeros(1), lengths.reshape(-1).cumsum(0)]).to(index_dtype)
        width = sum(table.width for _, table in case.features)
        weights = torch.randn(len(index), generator=random).to(dtype) if weighted else None
        case.batches.append(Batch(index, offsets, weights, torch.randn(bags, width, generator=random).to(dtype)))
    return case


# ---------------------------------------------------------------------------------------------------------- in loops


class Pooled(NamedTuple):
    """What loops over the bags find in float64, and for each number the sum of the sizes of its terms."""

    out: torch.Tensor
    gradients: dict[str, torch.Tensor]
    of_weights: torch.Tensor
    out_size: torch.Tensor
    gradient_sizes: dict[str, torch.Tensor]
    of_weights_size: torch.Tensor
    rows: dict[str, set[int]]  # that the gradients list


def in_loops(case, batch, x):
    """Sums and gradients of a batch with the tables x."""
    index, offsets, weights, upstream = batch
    bags, columns = upstream.shape
    index, x = index.long(), {name: table.detach().double() for name, table in x.items()}
    weights = torch.ones(len(index), dtype=torch.float64) if weights is None else weights.double()
    out, out_size = torch.zeros(2, bags, columns, dtype=torch.float64)
    gradients, sizes = ({name: torch.zeros_like(table) for name, table in x.items()} for _ in range(2))
    of_weights, of_weights_size = torch.zeros(2, len(index), dtype=torch.float64)
    rows, column = {name: set() for name in x}, 0
    for f, (name, spec) in enumerate(case.features):
        for b in range(bags):
            places = torch.arange(*offsets[f * bags + b : f * bags + b + 2].tolist())
            if spec.padding_idx is not None:
                places = places[index[places] != spec.padding_idx]
            at, row = slice(column, column + spec.width), index[places]
            share = (weights[places] / (max(1, len(places)) if spec.mode == "mean" else 1))[:, None]
            upstreams = upstream[b, at].double().expand(len(places), -1)
            for found, change in ((out, lambda y: y), (out_size, torch.abs)):
                found[b, at] = change(share * x[name][row]).sum(0)
            for found, change in ((gradients, lambda y: y), (sizes, torch.abs)):
                found[name].index_add_(0, row, change(share * upstreams))
            for found, change in ((of_weights, lambda y: y), (of_weights_size, torch.abs)):
                found[places] = change(x[name][row] * upstreams).sum(1)
            rows[name].update(row.tolist())
        column += spec.width
    return Pooled(out, gradients, of_weights, out_size, sizes, of_weights_size, rows)


def assert_sum(found, expected, size, terms):
    """A sum of so many terms, in any order: each product, addition and rounding of the result errs by half a unit."""
    limits = torch.finfo(found.dtype)
    error = (found.detach().double() - expected).abs() - terms * limits.eps * size
    assert not error.numel() or error.max() <= terms * limits.smallest_normal, float(error.max())


@fuzzed
@given(case=cases())
def test_sums_and_gradients_are_those_of_loops(case):
    for batch in case.batches:
        bags = case.bags()
        weights = None if batch.weights is None else batch.weights.clone().requires_grad_()
        out = bags(batch.index, batch.offsets, weights)
        out.backward(batch.upstream)
        expected = in_loops(case, batch, bags.tables)
        is_narrow = out.dtype.itemsize == 2  # summed in float32: only the result is rounded
        assert_sum(out, expected.out, expected.out_size, 2 if is_narrow else LONGEST + 2)
        for name, table in bags.tables.items():
            assert table.grad.is_sparse
            terms = 2 * MOST_BAGS * LONGEST  # of a row that two features have in all places
            assert_sum(table.grad.to_dense(), expected.gradients[name], expected.gradient_sizes[name], terms)
        if weights is not None:
            assert_sum(weights.grad, expected.of_weights, expected.of_weights_size, max(WIDTHS) + 1)


# --------------------------------------------------------------------------------------------------------- many steps


class Run(NamedTuple):
    outs: list[torch.Tensor]
    of_weights: list[torch.Tensor]
    tables: dict[str, torch.Tensor]
    states: dict[str, list[torch.Tensor]]

    def all(self) -> list[torch.Tensor]:
        return [*self.outs, *self.of_weights, *self.tables.values(), *itertools.chain(*self.states.values())]


def trained(case, make, *, threads=1, in_backward=False):
    """A step for each batch."""
    bags, outs, of_weights = case.bags(), [], []
    optimizer = OPTIMIZERS[make](bags.parameters(), **OPTIONS)
    if in_backward:
        step_in_backward(optimizer)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for batch in case.batches:
            optimizer.zero_grad()
            weights = None if batch.weights is None else batch.weights.clone().requires_grad_()
            out = bags(batch.index, batch.offsets, weights)
            out.backward(batch.upstream)
            optimizer.step()
            outs.append(out.detach())
            of_weights += [] if weights is None else [weights.grad]
    finally:
        torch.set_num_threads(before)
    return Run(outs, of_weights, dict(bags.tables.items()), states_of(optimizer, bags.tables))


def states_of(optimizer, tables):
    return {name: list(optimizer.state[table].values()) for name, table in tables.items()}


@fuzzed
@given(case=cases(), make=st.sampled_from(list(OPTIMIZERS)))
def test_a_step_in_the_backward_pass_has_the_bits_of_one_after_it_for_any_number_of_threads(case, make):
    expected = trained(case, make).all()
    for threads, in_backward in ((2, False), (1, True), (2, True)):
        assert_bitwise(trained(case, make, threads=threads, in_backward=in_backward).all(), expected)


@fuzzed
@given(case=cases(is_shared=False), make=st.sampled_from(list(OPTIMIZERS)))
def test_tables_together_have_the_bits_of_a_module_for_each(case, make):
    together, column = trained(case, make, in_backward=True), 0
    for f, (name, spec) in enumerate(case.tables.items()):
        alone = EmbeddingBag.from_pretrained(
            case.bags().tables[name].detach(),
            freeze=False,
            mode=spec.mode,
            sparse=True,
            include_last_offset=True,
            padding_idx=spec.padding_idx,
        )
        optimizer = OPTIMIZERS[make](alone.parameters(), **OPTIONS)
        for batch, out in zip(case.batches, together.outs, strict=True):
            optimizer.zero_grad()
            bags = len(batch.upstream)
            offsets, columns = batch.offsets[f * bags : (f + 1) * bags + 1], slice(column, column + spec.width)
            own = slice(int(offsets[0]), int(offsets[-1]))
            weights = None if batch.weights is None else batch.weights[own]
            pooled = alone(batch.index[own], offsets - offsets[0], weights)
            assert_bitwise([out[:, columns]], [pooled])
            pooled.backward(batch.upstream[:, columns])
            optimizer.step()
        assert_bitwise([together.tables[name]], [alone.weight])
        assert_bitwise(together.states[name], list(optimizer.state[alone.weight].values()))
        column += spec.width


@fuzzed
@given(case=cases(dtypes=[torch.float64]), make=st.sampled_from(list(OPTIMIZERS)))
def test_steps_are_those_of_the_reference_along_gradients_of_loops(case, make):
    x = {name: torch.nn.Parameter(table.detach()) for name, table in case.bags().tables.items()}
    optimizer = OPTIMIZERS[make](x.values(), **OPTIONS, foreach=False)
    for batch in case.batches:
        found = in_loops(case, batch, x)
        for name, table in x.items():
            rows = torch.tensor(sorted(found.rows[name]), dtype=torch.long)
            table.grad = torch.sparse_coo_tensor(
                rows[None], found.gradients[name][rows], table.shape, check_invariants=True
            )
        optimizer.step()
    run = trained(case, make, in_backward=True)
    for name, state in states_of(optimizer, x).items():
        # 1e-9: rounding of a gradient of up to 10,000 terms, times lr / eps.
        torch.testing.assert_close(
            [run.tables[name].detach(), *run.states[name]], [x[name].detach(), *state], rtol=1e-9, atol=1e-9
        )

"""Tables grow and shrink during training as if they had always had their size."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad import (
    Blocks,
    Column,
    CombinedOptimizer,
    EmbeddingBag,
    Entry,
    Factored,
    Full,
    MatrixAdaGrad,
    MatrixMomentum,
    Row,
    RowAdaGrad,
    RowMomentum,
    SteepestDescent,
    Whole,
    evict,
    resize_table,
    step_in_backward,
)
from matrix_adagrad.domains import RowBalls

OLD, NEW, WIDTH = 30, 50, 8

OPTIMIZERS = {
    "row": lambda p: RowAdaGrad(p, lr=0.1),
    "start": lambda p: RowAdaGrad(p, lr=0.1, initial_accumulator_value=0.5),
    "column": lambda p: MatrixAdaGrad(p, lr=0.1, geometry=Column()),
    "entry": lambda p: MatrixAdaGrad(p, lr=0.1, geometry=Entry()),
    "whole": lambda p: MatrixAdaGrad(p, lr=0.1, geometry=Whole()),
    "factored": lambda p: MatrixAdaGrad(p, lr=0.1, geometry=Factored()),
    "columns together": lambda p: MatrixAdaGrad(p, lr=0.1, geometry=Blocks(rows=None, columns=2)),
    "momentum": lambda p: RowMomentum(p, lr=0.1),
    "column momentum": lambda p: MatrixMomentum(p, lr=0.1, geometry=Column()),
    "narrow": lambda p: RowMomentum(p, lr=0.1, momentum_dtype=torch.bfloat16),
    "steepest": lambda p: SteepestDescent(p, lr=0.1, geometry=Row()),
    "steepest with a floor": lambda p: SteepestDescent(p, lr=0.1, geometry=Row(), floor=0.1),
    "rescaled": lambda p: SteepestDescent(p, lr=0.1, geometry=Entry(), rescale=Row()),
    "torch": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "combined": lambda p: CombinedOptimizer([RowAdaGrad(p, lr=0.1)]),
}
# A step depends on how many rows there are, or draws random numbers for all of them.
SIZE_MATTERS = ("steepest with a floor", "rescaled", "narrow")
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
MODULES = {
    "Embedding": lambda rows: nn.Embedding(rows, WIDTH, sparse=False),
    "sparse Embedding": lambda rows: nn.Embedding(rows, WIDTH, sparse=True),
    "torch's EmbeddingBag": lambda rows: nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True),
    "EmbeddingBag": lambda rows: EmbeddingBag(rows, WIDTH, mode="sum", sparse=True),
}


def started(rows, make_module=MODULES["Embedding"]):
    """A table with the same first rows, whatever its size."""
    module = make_module(rows)
    with torch.no_grad():
        module.weight.copy_(values(NEW)[:rows])
    return module


def values(rows):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0))


def train(module, optimizer, steps, seed, rows):
    for step in range(steps):
        index = torch.randint(rows, (6, 3), generator=torch.Generator().manual_seed(100 * seed + step))
        optimizer.zero_grad()
        loss = module(index).sum(-1).square().sum()  # the graph of the last step is alive
        loss.backward()
        optimizer.step()
    return loss


def contents(module, optimizer):
    (param,) = module.parameters()
    return {"param": param.detach(), **optimizer.state[param]}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # by torch's Adagrad
@pytest.mark.parametrize("make_module", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in SIZE_MATTERS])
def test_a_table_that_grew_trains_as_one_that_had_the_size_from_the_start(name, make_module):
    module, whole = started(OLD, make_module), started(NEW, make_module)
    if name == "SGD" and module.sparse:
        pytest.skip("the momentum of SGD is a sparse tensor")
    optimizer, other = (OPTIMIZERS[name](table.parameters()) for table in (module, whole))
    param = module.weight
    kept = train(module, optimizer, 4, 1, OLD)
    train(whole, other, 4, 1, OLD)
    resize_table(module, optimizer, NEW, init=lambda new: new.copy_(values(NEW)[OLD:]))
    assert module.weight is param
    assert module.num_embeddings == len(param) == NEW
    train(module, optimizer, 4, 2, NEW)
    del kept  # with its graph of the old table, which was alive
    train(whole, other, 4, 2, NEW)
    torch.testing.assert_close(contents(module, optimizer), contents(whole, other), rtol=0, atol=0)


@every_optimizer
def test_state_dicts_follow(make):
    module = started(OLD)
    optimizer = make(module.parameters())
    train(module, optimizer, 3, 1, OLD)
    resize_table(module, optimizer, NEW)
    evict(module, optimizer, range(0, NEW, 2))
    fresh = started(NEW // 2)
    other = make(fresh.parameters())
    fresh.load_state_dict(module.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    torch.manual_seed(0)
    train(module, optimizer, 3, 2, NEW // 2)
    torch.manual_seed(0)
    train(fresh, other, 3, 2, NEW // 2)
    torch.testing.assert_close(contents(module, optimizer), contents(fresh, other), rtol=0, atol=0)


@every_optimizer
def test_rows_that_are_kept_keep_their_state_and_train_on_under_their_new_index(make):
    optimizer = make((module := started(OLD)).parameters())
    train(module, optimizer, 3, 1, OLD)
    before = copy.deepcopy(contents(module, optimizer))
    keep = torch.randperm(OLD, generator=torch.Generator().manual_seed(3))[:12]
    new_ids = evict(module, optimizer, keep)
    assert new_ids[keep].tolist() == [*range(12)]
    assert (new_ids == -1).sum() == OLD - 12
    assert module.num_embeddings == 12
    for key, value in contents(module, optimizer).items():
        if value.dim() and before[key].shape[0] == OLD:
            assert torch.equal(value, before[key][keep])
        else:
            assert torch.equal(value, before[key])
    train(module, optimizer, 2, 2, 12)


def test_a_square_table_keeps_what_its_columns_share():
    module = nn.Embedding(8, 8)
    optimizer = MatrixAdaGrad(module.parameters(), lr=0.1, geometry=Full("column"))
    module(torch.arange(8)).square().sum().backward()
    optimizer.step()
    before = [value.clone() for key, value in optimizer.state[module.weight].items() if key != "step"]
    resize_table(module, optimizer, 11)
    after = [value for key, value in optimizer.state[module.weight].items() if key != "step"]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1, WIDTH), (OLD, 1), (0, WIDTH), (OLD,)])
def test_tables_of_any_shape(shape):
    module = nn.Module()
    module.weight = Parameter(torch.ones(shape))
    for geometry in (Row(), Column(), Entry(), Whole()):
        optimizer = MatrixMomentum(module.parameters(), geometry=geometry)
        optimizer.init_state()
        resize_table(module, optimizer, shape[0] + 3, init=nn.init.zeros_)
        module.weight.grad = torch.ones_like(module.weight)
        optimizer.step()
        evict(module, optimizer, range(shape[0]))
        module.weight.grad = torch.ones_like(module.weight)
        optimizer.step()
        assert module.weight.shape == shape


def test_counters_of_rows_follow_and_new_rows_are_up_to_date():
    module = started(OLD)
    optimizer = RowAdaGrad(module.parameters(), lr=0.1)
    train(module, optimizer, 3, 1, OLD)
    optimizer.state[module.weight]["last"] = torch.arange(OLD, dtype=torch.int32) % 4
    resize_table(module, optimizer, OLD + 2)
    evict(module, optimizer, [5, 6, OLD, OLD + 1])
    assert optimizer.state[module.weight]["last"].tolist() == [1, 2, 3, 3]
    assert optimizer.state[module.weight]["last"].dtype is torch.int32


def test_rows_catch_up_before_they_go():
    module = started(OLD)
    optimizer = RowAdaGrad(module.parameters(), lr=0.1)
    train(module, optimizer, 1, 1, OLD)
    asked = []
    optimizer.catch_up = asked.append
    resize_table(module, optimizer, NEW)
    evict(module, optimizer, range(3))
    assert [param is module.weight for param in asked] == [True, True]


def test_a_table_by_name_within_a_module():
    bags = nn.Module()
    bags.tables = nn.ParameterDict({"user": torch.ones(4, 2), "item": torch.ones(6, 2)})
    optimizer = RowAdaGrad([{"params": [param]} for param in bags.parameters()])
    resize_table(bags, optimizer, 9, name="tables.user", init=nn.init.zeros_)
    assert bags.tables["user"].tolist() == [[1, 1]] * 4 + [[0, 0]] * 5
    with pytest.raises(ValueError, match="init must say how new rows of ParameterDict start"):
        resize_table(bags, optimizer, 9, name="tables.item")
    assert len(bags.tables["item"]) == 6


def test_new_rows_start_as_the_modules_own():
    class Small(nn.Embedding):
        def reset_parameters(self):
            nn.init.constant_(self.weight, 0.25)
            self._fill_padding_idx_with_zero()

    module = Small(4, 2, padding_idx=0)
    module.weight.data.fill_(3)
    resize_table(module, None, 6)
    assert module.weight.tolist() == [[3, 3]] * 4 + [[0.25, 0.25]] * 2
    assert module.padding_idx == 0

    torch.manual_seed(0)
    module = nn.EmbeddingBag(4, 2, mode="sum")
    resize_table(module, None, 4000)
    assert 0.9 < module.weight[4:].std() < 1.1


def test_the_padding_row_stays_and_is_found_under_its_new_index():
    module = nn.Embedding(6, 2, padding_idx=3)
    optimizer = RowAdaGrad(module.parameters())
    with pytest.raises(ValueError, match="rows must be more than 3, the table's padding_idx, got 3"):
        resize_table(module, optimizer, 3)
    with pytest.raises(ValueError, match="keep must have row 3, the table's padding_idx"):
        evict(module, optimizer, [0, 1])
    evict(module, optimizer, [5, 3])
    assert module.padding_idx == 1
    module(torch.tensor([0, 1])).sum().backward()
    assert module.weight.grad.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("sparse", [False, True])
def test_steps_in_the_backward_pass_go_on(sparse):
    module, whole = (nn.Embedding.from_pretrained(values(rows), freeze=False, sparse=sparse) for rows in (OLD, NEW))
    optimizer, other = (CombinedOptimizer([RowAdaGrad(table.parameters(), lr=0.1)]) for table in (module, whole))
    handle, _ = step_in_backward(optimizer), step_in_backward(other)
    train(module, optimizer, 3, 1, OLD)
    train(whole, other, 3, 1, OLD)
    resize_table(module, optimizer, NEW, init=lambda new: new.copy_(values(NEW)[OLD:]))
    with torch.no_grad():
        whole.weight[OLD:] = module.weight[OLD:]
    train(module, optimizer, 3, 2, NEW)
    train(whole, other, 3, 2, NEW)
    assert module.weight.grad is None
    torch.testing.assert_close(contents(module, optimizer), contents(whole, other), rtol=0, atol=0)
    handle.remove()


@pytest.mark.parametrize("fused", [True, False])
def test_rounding_at_random_goes_on_in_the_same_streams(fused):
    tables = [nn.Embedding(rows, WIDTH, dtype=torch.bfloat16, sparse=True) for rows in (OLD, NEW)]
    for table in tables:
        table.weight.data.copy_(values(NEW)[: len(table.weight)])
    other = [nn.Linear(2, 2) for _ in tables]
    optimizers = [
        RowAdaGrad([*more.parameters(), *table.parameters()], lr=1e-3, stochastic_rounding=True, fused=fused)
        for table, more in zip(tables, other, strict=True)
    ]
    for table, optimizer in zip(tables, optimizers, strict=True):
        torch.manual_seed(0)
        train(table, optimizer, 2, 1, OLD)
        if len(table.weight) == OLD:
            resize_table(table, optimizer, NEW, init=lambda new: new.copy_(values(NEW)[OLD:]))
            torch.manual_seed(1)
        torch.manual_seed(1)
        train(table, optimizer, 2, 2, NEW)
    assert torch.equal(*[table.weight for table in tables])


def test_old_memory_is_freed():
    module = started(OLD)
    optimizer = RowMomentum(module.parameters())
    handle = step_in_backward(optimizer)
    train(module, optimizer, 2, 1, OLD)
    old = [weakref.ref(x.untyped_storage()) for x in (module.weight, optimizer.state[module.weight]["exp_avg"])]
    assert None not in [own() for own in old]
    resize_table(module, optimizer, NEW)
    assert [own() for own in old] == [None, None]
    handle.remove()


def test_a_transposed_table_stays_transposed():
    module = nn.Module()
    module.weight = Parameter(torch.arange(12.0).view(3, 4).t())
    optimizer = RowMomentum(module.parameters())
    optimizer.init_state()
    resize_table(module, optimizer, 6, init=nn.init.zeros_)
    assert module.weight.stride() == (1, 6)
    assert optimizer.state[module.weight]["exp_avg"].stride() == (1, 6)
    assert module.weight[:4].tolist() == torch.arange(12.0).view(3, 4).t().tolist()


def test_a_graph_of_the_old_table_is_refused():
    module = nn.Linear(4, 3, bias=False)
    x = torch.ones(2, 4, requires_grad=True)
    loss = module(x).square().sum()
    resize_table(module, None, 5, init=nn.init.zeros_)
    assert module.out_features == 5
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_new_rows_start_in_the_domain():
    module = started(OLD)
    optimizer = RowAdaGrad(module.parameters(), domain=RowBalls(1.0), project_start=True)
    resize_table(module, optimizer, NEW)
    assert module.weight.norm(dim=1).max() < 1 + 1e-5
    optimizer.param_groups[0]["project_start"] = False
    before = module.weight.detach().clone()
    with pytest.raises(ValueError, match="weight starts outside RowBalls"):
        resize_table(module, optimizer, NEW + 1, init=lambda new: new.fill_(2))
    assert torch.equal(module.weight, before)


def test_nothing_changes_if_it_cannot_be_done():
    module = nn.Embedding(6, 4)
    optimizer = MatrixAdaGrad(module.parameters(), geometry=Blocks(rows=2))
    module(torch.arange(6)).sum().backward()
    optimizer.step()
    before = copy.deepcopy(contents(module, optimizer))

    def fails(_):
        raise ArithmeticError

    for rows, init, error in ((8, None, ValueError), (8, fails, ArithmeticError)):
        with pytest.raises(error):
            resize_table(module, optimizer, rows, init=init)
    with pytest.raises(ValueError, match="weight has the geometry blocks.rows=2.*, which ties its rows together"):
        evict(module, optimizer, [0, 1])
    torch.testing.assert_close(contents(module, optimizer), before, rtol=0, atol=0)
    assert module.num_embeddings == 6


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, None, 3), TypeError, "module must be an nn.Module, got NoneType"),
        ((nn.Embedding(3, 2), "adam", 3), TypeError, "optimizer must be a torch.optim.Optimizer or None, got str"),
        ((nn.Embedding(3, 2), None, -1), ValueError, "rows must be a whole number, at least 0, got -1"),
        ((nn.Embedding(3, 2), None, 2.0), ValueError, "rows must be a whole number, at least 0, got 2.0"),
        ((nn.Embedding(3, 2), RowAdaGrad([torch.ones(1)]), 3), ValueError, "weight of Embedding is in no group of"),
        ((nn.LazyLinear(2), None, 3), ValueError, "weight must be a plain parameter with rows"),
        ((nn.ReLU(), None, 3), ValueError, r"name must be that of a parameter of ReLU, \[\], got 'weight'"),
    ],
)
def test_wrong_arguments_of_resize_table(arguments, error, message):
    with pytest.raises(error, match=message):
        resize_table(*arguments)


@pytest.mark.parametrize(
    ("keep", "error", "message"),
    [
        ([3], IndexError, "keep must be rows 0 to 2, got rows 3 to 3"),
        ([-1, 0], IndexError, "keep must be rows 0 to 2, got rows -1 to 0"),
        ([0, 0], ValueError, "keep must have each row once"),
        ([0.5], TypeError, "keep must be a list of rows or a mask, got torch.float32"),
        (
            torch.ones(2, dtype=torch.bool),
            ValueError,
            "keep must have an entry for each of the 3 rows, got a mask of 2",
        ),
    ],
)
def test_wrong_rows_to_keep(keep, error, message):
    with pytest.raises(error, match=message):
        evict(nn.Embedding(3, 2), None, keep)

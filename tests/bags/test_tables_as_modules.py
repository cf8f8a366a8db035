"""Many tables are a module like others: copied, saved, moved, compiled and transformed."""

import copy
import pickle

import pytest
import torch
from torch import nn

from matrix_adagrad import (
    EmbeddingBags,
    RowAdaGrad,
    Table,
    native,
    step_in_backward,
)
from tests.bags.tables import (
    BAGS,
    TABLES,
    assert_same_tables,
    bags_of,
    batch,
    copies,
    train,
)
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


def test_copies_pickles_and_state_dicts_have_the_same_rows_and_go_their_own_ways():
    bags = bags_of()
    bags(*batch())  # what it knows from this call is not copied
    loaded = EmbeddingBags(TABLES)
    loaded.load_state_dict(bags.state_dict())
    for twin in (copy.deepcopy(bags), pickle.loads(pickle.dumps(bags)), loaded):
        assert_bitwise([twin(*batch())], [bags(*batch())])
        before = copies(bags)
        twin(*batch()).sum().backward()
        RowAdaGrad(twin.parameters(), lr=0.1).step()
        assert_bitwise(list(bags.tables.values()), list(before.values()))
        assert not torch.equal(twin(*batch()), bags(*batch()))
        assert all(table.grad is None for table in bags.tables.values())


NAMES = [
    "items",
    "type",
    "keys",
    "values",
    "training",
    "forward",
    "_parameters",
    "T_destination",
    "user name",
    "1",
    "é",
]


def test_tables_may_have_any_name():
    bags = bags_of(dict.fromkeys(NAMES, (5, 2)))
    for change in (bags.eval, bags.train, bags.float, bags.zero_grad, lambda: bags.requires_grad_(True)):
        change()
    assert list(bags.state_dict()) == [f"tables.{name}" for name in NAMES] == [n for n, _ in bags.named_parameters()]
    twin = copy.deepcopy(bags)
    for assign in (False, True):
        bags.load_state_dict({name: x + 1 for name, x in bags.state_dict().items()}, assign=assign)
    for name in NAMES:
        torch.testing.assert_close(bags.tables[name].detach(), twin.tables[name].detach() + 2)
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    bags(torch.ones(len(NAMES), dtype=torch.long), torch.arange(len(NAMES) + 1)).sum().backward()
    assert pickle.loads(pickle.dumps(bags)).tables["training"][1].ne(twin.tables["training"][1] + 2).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_another_dtype_is_followed_between_steps(dtype):
    ends = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        if in_backward:
            step_in_backward(optimizer)
        train(bags, optimizer, 2)
        bags.to(dtype)
        assert bags(*batch()).dtype == dtype
        train(bags, optimizer, 2, start=2)
        bags.float()
        train(bags, optimizer, 2, start=4)
        ends.append(bags)
    assert_same_tables(*ends)


def test_on_the_meta_device_it_has_shapes():
    bags = bags_of(device="meta")
    index, offsets = batch()
    assert bags(index.to("meta"), offsets.to("meta")).shape == (BAGS, sum(bags.widths))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler asks for it
def test_a_model_around_it_may_be_compiled():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags, self.head = bags_of(), nn.Linear(22, 1)

        def forward(self, index, offsets):
            return self.head(torch.relu(self.bags(index, offsets)))

    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    for seed in range(2):
        grads = []
        for run in (model, compiled):
            model.zero_grad()
            run(*batch(seed)).sum().backward()
            grads.append([param.grad.to_dense() for param in model.parameters()])
        torch.testing.assert_close(*grads)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_functions_are_torchs():
    bags, inputs = bags_of(), batch()
    params = dict(bags.named_parameters())

    def loss(params):
        return torch.func.functional_call(bags, params, inputs).square().sum()

    expected = torch.autograd.grad(loss(params), list(params.values()))
    found = torch.func.grad(loss)({name: param.detach() for name, param in params.items()})
    for name, grad in zip(params, expected, strict=True):
        torch.testing.assert_close(found[name].to_dense(), grad.to_dense())
    stacked = {name: torch.stack([param.detach(), 2 * param.detach()]) for name, param in params.items()}
    torch.testing.assert_close(torch.func.vmap(loss)(stacked), loss(params).detach() * torch.tensor([1.0, 4.0]))


def test_without_kernels_it_is_the_same_in_torchs_operators(monkeypatch):
    bags, weights = bags_of({"user": Table(50, 8, padding_idx=4), "type": (20, 3)}), torch.rand(24)
    index = torch.randint(20, (24,))
    offsets = torch.tensor([0, 0, 5, 9, 20, 24, 24])
    outs = [bags(index, offsets, weights)]
    monkeypatch.setattr(native, "missing", lambda: "taken away")
    outs.append(bags(index, offsets, weights))
    outs[1].sum().backward()
    torch.testing.assert_close(*outs)
    assert type(bags.tables["user"].grad) is torch.Tensor

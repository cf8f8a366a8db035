"""Tables move between PyTorch's modules and EmbeddingBags, with the optimizer's state."""

import pytest
import torch
from torch import nn

from matrix_adagrad import EmbeddingBags, RowAdaGrad, RowMomentum, Table, evict, resize_table
from matrix_adagrad.interop.adagrad import from_adagrad

ROWS, BATCH, BAG = {"user": 30, "item": 20}, 6, 4


def modules(sparse=True):
    """Of different widths and modes."""
    torch.manual_seed(0)
    user = nn.EmbeddingBag(ROWS["user"], 8, mode="sum", sparse=sparse)
    return {"user": user, "item": nn.EmbeddingBag(ROWS["item"], 4, mode="mean", padding_idx=3, sparse=sparse)}


def batches(count):
    random = torch.Generator().manual_seed(0)
    for _ in range(count):
        index = {name: torch.randint(rows, (BATCH, BAG), generator=random) for name, rows in ROWS.items()}
        yield index, torch.randn(BATCH, 12, generator=random)


def train(model, optimizer, steps):
    for index, upstream in steps:
        optimizer.zero_grad()
        if isinstance(model, EmbeddingBags):
            out = model(index)
        else:
            out = torch.cat([module(index[name]) for name, module in model.items()], dim=1)
        (out * upstream).sum().backward()
        optimizer.step()


def assert_same_tables(one, other):
    for name in ROWS:
        torch.testing.assert_close(one[name].weight, other[name].weight, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", [RowAdaGrad, RowMomentum])
def test_one_optimizer_goes_on_when_modules_become_one_and_modules_again(make):
    kept, moved = modules(), modules()
    unbroken, optimizer = (make([own.weight for own in model.values()], lr=0.1) for model in (kept, moved))
    steps = list(batches(9))
    train(kept, unbroken, steps)
    train(moved, optimizer, steps[:3])
    bags = EmbeddingBags.from_modules(moved)
    train(bags, optimizer, steps[3:6])
    back = bags.to_modules()
    train(back, optimizer, steps[6:])
    assert_same_tables(back, kept)
    for name, module in back.items():
        assert module.weight is bags.tables[name] is moved[name].weight
        assert (module.mode, module.padding_idx) == (moved[name].mode, moved[name].padding_idx)


def test_tables_keep_their_dtype_device_and_requires_grad():
    given = {
        "a": nn.EmbeddingBag(5, 3, mode="sum", dtype=torch.bfloat16),
        "b": nn.EmbeddingBag(5, 2, mode="sum", dtype=torch.float64),
        "c": nn.EmbeddingBag(5, 2, mode="sum", device="meta"),
    }
    given["b"].weight.requires_grad_(False)
    bags = EmbeddingBags.from_modules(given)
    for name, module in bags.to_modules().items():
        assert module.weight is bags.tables[name] is given[name].weight
    assert not bags.tables["b"].requires_grad


def test_saved_modules_and_their_optimizer_are_loaded_by_name():
    kept = modules()
    unbroken = RowMomentum([(name, own.weight) for name, own in kept.items()], lr=0.1)
    steps = list(batches(6))
    train(kept, unbroken, steps[:3])
    saved = nn.ModuleDict(kept).state_dict(), unbroken.state_dict()
    bags = EmbeddingBags({"user": (30, 8), "item": Table(20, 4, mode="mean", padding_idx=3)})
    bags.load_state_dict({f"tables.{name}": saved[0][f"{name}.weight"] for name in bags.tables})
    optimizer = RowMomentum(bags.tables.items(), lr=0.1)
    optimizer.load_state_dict(saved[1])
    for model, own in ((kept, unbroken), (bags, optimizer)):
        train(model, own, steps[3:])
    assert_same_tables(bags.to_modules(), kept)

    in_another_order = RowMomentum(reversed(list(bags.tables.items())), lr=0.1)
    with pytest.raises(
        ValueError, match=r"the saved parameters are \['user', 'item'\], here they are \['item', 'user'\]"
    ):
        in_another_order.load_state_dict(saved[1])


def test_a_state_dict_of_the_tables_is_loaded_into_modules():
    bags, others = EmbeddingBags({"user": (30, 8), "item": (20, 4)}), nn.ModuleDict(modules())
    others.load_state_dict({f"{name}.weight": table for name, table in bags.tables.items()})
    assert all(torch.equal(others[name].weight, table) for name, table in bags.tables.items())


def test_a_run_of_torchs_adagrad_goes_on_with_one_module():
    kept, moved = modules(sparse=False), modules(sparse=False)
    unbroken, theirs = (torch.optim.Adagrad([m.weight for m in model.values()], lr=0.1) for model in (kept, moved))
    steps = list(batches(6))
    train(kept, unbroken, steps)
    train(moved, theirs, steps[:3])
    bags = EmbeddingBags.from_modules(moved)
    train(bags, from_adagrad(theirs, "entry"), steps[3:])
    assert_same_tables(bags.to_modules(), kept)


def test_tables_that_have_grown_and_lost_rows_are_modules_as_they_are_now():
    bags = EmbeddingBags({"user": Table(30, 8), "item": Table(20, 4, mode="mean", padding_idx=3)})
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    train(bags, optimizer, batches(2))
    resize_table(bags, optimizer, 40, name="tables.user")
    evict(bags, optimizer, torch.arange(1, 20), name="tables.item")
    found = bags.to_modules()
    assert [tuple(module.weight.shape) for module in found.values()] == [(40, 8), (19, 4)]
    assert found["item"].padding_idx == 2
    again = EmbeddingBags.from_modules(found)
    index = {"user": torch.tensor([[39, 2]]), "item": torch.tensor([[2, 18]])}
    assert torch.equal(again(index), bags(index))


def test_several_features_read_one_table():
    item = nn.EmbeddingBag(20, 4, mode="sum")
    bags = EmbeddingBags.from_modules({"item": item}, {"item": ["seen", "bought"]})
    assert bags.features_by_table == {"item": ("seen", "bought")}
    index = torch.arange(6).view(3, 2)
    expected = torch.cat([item(index), item(index.flip(0))], dim=1)
    torch.testing.assert_close(bags({"seen": index, "bought": index.flip(0)}), expected)
    assert list(bags.to_modules()) == ["item"]


def shared():
    first, second = nn.EmbeddingBag(5, 4), nn.EmbeddingBag(5, 4)
    second.weight = first.weight
    return {"a": first, "b": second}


@pytest.mark.parametrize(
    ("given", "features", "error", "words"),
    [
        ({"a": nn.Embedding(5, 4)}, None, TypeError, r"modules\['a'\] must be an nn.EmbeddingBag, got Embedding"),
        ({"a": nn.EmbeddingBag(5, 4, max_norm=1.0)}, None, ValueError, r"modules\['a'\] has max_norm=1.0"),
        ({"a": nn.EmbeddingBag(5, 4, scale_grad_by_freq=True)}, None, ValueError, "scale_grad_by_freq=True"),
        ({"a": nn.EmbeddingBag(5, 4, mode="max")}, None, ValueError, "mode of the table 'a' must be 'sum' or 'mean'"),
        (shared(), None, ValueError, "modules 'a' and 'b' share a table: give one, and features="),
        ({"a": nn.EmbeddingBag(5, 4)}, {"b": ["c"]}, ValueError, r"features names the tables \['b'\], and the modules"),
        ({}, None, ValueError, "tables must name at least one table"),
    ],
)
def test_what_one_module_cannot_be_is_refused(given, features, error, words):
    with pytest.raises(error, match=words):
        EmbeddingBags.from_modules(given, features)

"""Small tables, and batches of bags for them."""

import torch
from torch.nn import functional

from matrix_adagrad import EmbeddingBags, Table, step_in_backward
from tests.optim.training import assert_bitwise

TABLES = {"user": Table(50, 8), "items": Table(30, 4, features=("seen", "bought")), "type": Table(20, 6)}
FEATURES = ["user", "items", "items", "type"]
BAGS = 6


def bags_of(tables=None, **options):
    torch.manual_seed(0)
    return EmbeddingBags(tables or TABLES, **options)


def batch(seed=0, bags=BAGS):
    """Bags of up to four ids for the features of TABLES."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, (len(FEATURES), bags), generator=random)
    ids = [
        torch.randint(TABLES[name].rows, (int(own.sum()),), generator=random)
        for name, own in zip(FEATURES, lengths, strict=True)
    ]
    return torch.cat(ids), functional.pad(lengths.reshape(-1).cumsum(0), (1, 0))


def one_table(rows=10, width=4, **options):
    return bags_of({"user": Table(rows, width, **options)})


def copies(bags):
    return {name: table.detach().clone() for name, table in bags.tables.items()}


def assert_same_tables(bags, other):
    assert_bitwise(list(bags.tables.values()), list(other.tables.values()))


def train(bags, optimizer, steps=4, start=0, after=lambda _: None):
    for step in range(start, start + steps):
        optimizer.zero_grad()
        bags(*batch(step)).square().sum().backward()
        optimizer.step()
        after(step)


def both_ways(make, edit=lambda *_: None, steps=5, **options):
    """Bags trained by optimizer.step(), and in the backward pass. After each step comes edit(optimizer, t)."""
    ends = []
    for in_backward in (False, True):
        bags = bags_of(**options)
        optimizer = make(bags)
        if in_backward:
            step_in_backward(optimizer)
        train(bags, optimizer, steps, after=lambda t, optimizer=optimizer: edit(optimizer, t))
        ends.append((bags, optimizer))
    return ends


def assert_both_ways(make, edit=lambda *_: None, **options):
    (after, optimizer), (during, stepping) = both_ways(make, edit, **options)
    assert_same_tables(after, during)
    for table, other in zip(after.tables.values(), during.tables.values(), strict=True):
        assert other.grad is None
        assert_bitwise(list(optimizer.state[table].values()), list(stepping.state[other].values()))

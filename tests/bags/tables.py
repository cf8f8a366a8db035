"""Small tables, and batches of bags for them."""

import torch
from torch.nn import functional

from matrix_adagrad import EmbeddingBags, Table

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

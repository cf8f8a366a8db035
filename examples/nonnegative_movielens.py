"""Factorize MovieLens 100K with non-negative factors, and with unconstrained ones for comparison.

It downloads the data if needed (see `matrix-adagrad data`); pass a path to use your own copy.
"""

import sys
from pathlib import Path

import torch
from torch import nn

from matrix_adagrad import RowAdaGrad
from matrix_adagrad.datasets.movielens import movielens
from matrix_adagrad.domains import NonNegative

data = movielens(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
shuffled = torch.randperm(len(data.ratings), generator=torch.Generator().manual_seed(0))
train, test = shuffled[:90_000], shuffled[90_000:]
ratings = data.ratings.float()
FACTORS, EPOCHS, DECAY = 20, 15, 0.02


def factorise(domain: NonNegative | None) -> tuple[float, nn.ModuleList]:
    torch.manual_seed(0)
    tables = nn.ModuleList(nn.Embedding(size, FACTORS, sparse=True) for size in (943, 1682))
    for table in tables:
        nn.init.uniform_(table.weight, 0, 2 * (3.5 / FACTORS) ** 0.5)  # the mean prediction is about the mean rating
    optimizer = RowAdaGrad(tables.parameters(), lr=0.2, domain=domain)
    for _ in range(EPOCHS):
        for batch in train[torch.randperm(len(train))].split(1024):
            users, items = tables[0](data.users[batch]), tables[1](data.items[batch])
            error = (users * items).sum(1) - ratings[batch]
            loss = error.square().sum() + DECAY * (users.square().sum() + items.square().sum())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        predicted = (tables[0](data.users[test]) * tables[1](data.items[test])).sum(1).clamp(1, 5)
    return (predicted - ratings[test]).square().mean().sqrt().item(), tables


for domain in (None, NonNegative()):
    rmse, tables = factorise(domain)
    weights = [table.weight.detach() for table in tables]
    zeros = torch.cat([weight.flatten() for weight in weights]).eq(0).float().mean()
    lowest = min(weight.min().item() for weight in weights)
    print(f"domain {domain}: test RMSE {rmse:.4f}, least factor {lowest:.3f}, {zeros:.1%} of the factors are 0")
assert lowest >= 0

"""A small network with a table, a hidden layer and a head, the plain loop that trains it, and the probe around it."""

import torch
from torch import nn

from matrix_adagrad import RowAdaGrad
from matrix_adagrad.advisor import Probe


class Network(nn.Module):
    def __init__(self, tied=False, sparse=False):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 8, sparse=sparse)
        self.hidden = nn.Linear(8, 8)
        self.out = nn.Linear(8, 20)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, items):
        return self.out(torch.tanh(self.hidden(self.table(items))))


def loss_of(model, t):
    items = torch.randint(20, (16,), generator=torch.Generator().manual_seed(t))
    return nn.functional.cross_entropy(model(items), (items + 1) % 20)


def train(model, optimizer, steps=6, start=0):
    for t in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(model, t).backward()
        optimizer.step()
    return model


def probed(model, optimizer, loop=train, **options):
    with Probe(model, optimizer, every=1) as probe:
        loop(model, optimizer, **options)
    return probe.report()


def adagrad(model):
    return RowAdaGrad(model.parameters(), lr=0.1)

"""Predict clicks with a DLRM: dense features, 26 tables of ids, and the dot products of all pairs.

    python examples/dlrm.py

The clicks are drawn from a planted model, so the best possible AUC is known. The tables are one module: one native call
reads them all, and one updates them all, in the backward pass.
"""

import itertools

import torch
from torch import Tensor, nn

from matrix_adagrad import EmbeddingBags, RowAdaGrad, step_in_backward
from matrix_adagrad.datasets.clicks import ClickBatch, Clicks, auc

ROWS = {f"single{i}": 2000 for i in range(13)} | {f"several{i}": 500 for i in range(13)}
WIDTH, DENSE, BATCH, STEPS = 16, 13, 1024, 400


def mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for m, n in itertools.pairwise(sizes) for layer in (nn.Linear(m, n), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """Naumov et al., 2019 (arXiv:1906.00091)."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBags({name: (rows, WIDTH) for name, rows in ROWS.items()}, mode="sum")
        for table in self.bags.tables.values():
            nn.init.uniform_(table, -(len(table) ** -0.5), len(table) ** -0.5)
        vectors = len(ROWS) + 1
        self.pairs = torch.triu_indices(vectors, vectors, offset=1)
        self.bottom, self.top = mlp(DENSE, 64, WIDTH), mlp(WIDTH + self.pairs.shape[1], 64, 1)

    def forward(self, batch: ClickBatch) -> Tensor:
        dense = self.bottom(batch.dense)
        rows = self.bags(batch.index, batch.offsets).view(len(dense), -1, WIDTH)  # a vector for each table
        vectors = torch.cat([dense[:, None], rows], 1)
        dots = (vectors @ vectors.mT)[:, *self.pairs]
        return self.top(torch.cat([dense, dots], 1)).squeeze(1)


torch.manual_seed(0)
model = DLRM()
tables = RowAdaGrad(model.bags.parameters(), lr=0.1)
step_in_backward(tables)  # the gradients of tables never wait for a step
layers = torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], lr=2e-3)

clicks = Clicks(list(ROWS.values()), ids=[1] * 13 + [6] * 13, dense=DENSE)
test = next(clicks.batches(20_000, seed=1))
best = auc(test.odds, test.clicked)

for step, batch in zip(range(1, STEPS + 1), clicks.batches(BATCH), strict=False):
    loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch.clicked)
    layers.zero_grad()
    loss.backward()
    layers.step()
    if step % 100 == 0:
        with torch.no_grad():
            found = auc(model(test), test.clicked)
        print(f"step {step:4}: loss {loss:.4f}, test AUC {found:.4f} of at most {best:.4f}")
assert found > 0.5 + 0.6 * (best - 0.5)

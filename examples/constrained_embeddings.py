"""Embeddings whose rows stay in a ball, trained with sparse gradients: only the rows in the batch are touched."""

import torch
from torch import nn

from matrix_adagrad import RowAdaGrad
from matrix_adagrad.domains import RowBalls

torch.manual_seed(0)
WORDS, GROUPS, SIZE, RADIUS = 2000, 10, 16, 1.0
group = torch.arange(WORDS) % GROUPS  # words of a group should point in the same direction

table = nn.Embedding(WORDS, SIZE, sparse=True)
optimizer = RowAdaGrad(table.parameters(), lr=0.5, domain=RowBalls(RADIUS), project_start=True)

for step in range(600):
    words, others = torch.randint(GROUPS, WORDS - GROUPS, (2, 512))
    others[::2] += (group[words] - group[others])[::2]  # every other pair is from the same group
    score = (table(words) * table(others)).sum(1)
    loss = nn.functional.softplus(torch.where(group[words] == group[others], -score, score)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 200 == 199:
        longest = table.weight.detach().norm(dim=1).max()
        print(f"step {step + 1}: loss {loss.item():.3f}, longest row {longest:.6f}")

weight = table.weight.detach()
assert weight.norm(dim=1).max() <= RADIUS * (1 + 1e-6)
same = (weight @ weight.T)[group[:, None] == group].mean()
apart = (weight @ weight.T)[group[:, None] != group].mean()
print(f"mean inner product inside a group {same:.3f}, between groups {apart:.3f}")
assert same > apart + 0.5

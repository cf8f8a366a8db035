"""Rows on a simplex: topics as distributions over words, and documents as mixtures of topics."""

import torch

from matrix_adagrad import RowAdaGrad
from matrix_adagrad.domains import RowSimplex

torch.manual_seed(0)
DOCUMENTS, WORDS, TOPICS = 300, 60, 3

# Each true topic uses a third of the words; each document mixes the topics and has 200 words.
truth = torch.zeros(TOPICS, WORDS).scatter_(0, (torch.arange(WORDS) % TOPICS)[None], 1.0)
truth = truth * torch.rand(TOPICS, WORDS)
truth /= truth.sum(1, keepdim=True)
mixtures = torch.distributions.Dirichlet(torch.full((TOPICS,), 0.3)).sample((DOCUMENTS,))
counts = torch.distributions.Multinomial(200, mixtures @ truth).sample()

topics, weights = (
    torch.nn.Parameter(torch.distributions.Dirichlet(torch.full((size,), 5.0)).sample((rows,)))
    for rows, size in ((TOPICS, WORDS), (DOCUMENTS, TOPICS))
)
optimizer = RowAdaGrad([topics, weights], lr=0.1, domain=RowSimplex())

for step in range(300):
    likelihood = (counts * (weights @ topics + 1e-5).log()).sum() / counts.sum()
    optimizer.zero_grad()
    (-likelihood).backward()
    optimizer.step()
    if step % 100 == 99:
        print(f"step {step + 1}: log-likelihood per word {likelihood.item():.4f}")

best = (counts * (mixtures @ truth + 1e-5).log()).sum() / counts.sum()
overlap = torch.minimum(topics.detach()[:, None], truth).sum(2).max(1).values
print(
    f"that of the truth {best.item():.4f}; overlap of each topic with a true one",
    [round(o, 2) for o in overlap.tolist()],
)
for rows in (topics.detach(), weights.detach()):
    assert (rows >= 0).all()
    torch.testing.assert_close(rows.sum(1), torch.ones(len(rows)))
assert likelihood.item() > best.item() - 0.05

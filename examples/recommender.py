"""Recommend films from MovieLens 100K, with embeddings that have one scale per row.

    python examples/recommender.py               # downloads the data if needed: see `matrix-adagrad data`
    python examples/recommender.py ml-100k 42    # your own copy, and films for person 42

Films have titles if they came with the ratings, and numbers otherwise.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from matrix_adagrad import RowAdaGrad
from matrix_adagrad.datasets.movielens import movielens

PEOPLE, FILMS, FACTORS = 943, 1682, 20
path = Path(sys.argv[1]) if len(sys.argv) > 1 else None
person = int(sys.argv[2]) if len(sys.argv) > 2 else 1


class Recommender(nn.Module):
    """Predict a rating: the mean, plus how generous the person is, how good the film is, and how well the two match."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.mean = mean
        self.people, self.films = nn.Embedding(PEOPLE, FACTORS, sparse=True), nn.Embedding(FILMS, FACTORS, sparse=True)
        self.generous, self.good = nn.Embedding(PEOPLE, 1, sparse=True), nn.Embedding(FILMS, 1, sparse=True)
        for table in (self.people, self.films, self.generous, self.good):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, people: Tensor, films: Tensor) -> Tensor:
        match = (self.people(people) * self.films(films)).sum(1)
        return self.mean + match + (self.generous(people) + self.good(films)).squeeze(1)


torch.set_num_threads(1)  # on such a small model, threads would only wait for each other
torch.manual_seed(1)
data = movielens(path)
stars = data.ratings.float()
train, test = torch.randperm(len(stars)).split((90_000, 10_000))
model = Recommender(stars[train].mean().item())

# Sparse gradients hold only the rows in the batch, so the cost of a step does not depend on the size of the tables.
optimizer = RowAdaGrad(model.parameters(), lr=0.3, weight_decay=0.3)

for epoch in range(1, 11):
    for batch in train[torch.randperm(len(train))].split(1000):
        loss = (model(data.users[batch], data.items[batch]) - stars[batch]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        rating = model(data.users[test], data.items[test]).clamp(1, 5)
    rmse = (rating - stars[test]).square().mean().sqrt().item()
    print(f"epoch {epoch:2}: test RMSE {rmse:.4f}")

scales = sum(state["sum"].numel() for state in optimizer.state.values())
print(f"The optimizer kept {scales:,} numbers for {sum(p.numel() for p in model.parameters()):,} parameters.")
assert rmse < 0.93 < (stars[test] - model.mean).square().mean().sqrt()  # better than predicting the mean

films = torch.arange(FILMS)
with torch.no_grad():
    rating = model(torch.full_like(films, person - 1), films)
rating[data.items[data.users == person - 1]] = -torch.inf  # already seen

titles = data.titles or [f"film {number}" for number in range(1, FILMS + 1)]
print(f"\nPerson {person} may like")
for film in rating.topk(5).indices.tolist():
    given = stars[data.items == film]
    print(f"  {titles[film]}: {rating[film]:.1f} stars ({len(given)} people gave it {given.mean():.1f})")

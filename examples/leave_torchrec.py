"""Leave TorchRec's RowWiseAdagrad in the middle of a run, continue here with sparse gradients, and go back.

    python examples/leave_torchrec.py

The run ends in the same place as one that never left. Needs torchrec and fbgemm-gpu-cpu.
"""

import warnings

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the packages' own warnings
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    from matrix_adagrad.interop.torchrec import from_torchrec, to_torchrec

USERS, ITEMS, WIDTH, BATCH, STEPS = 2000, 500, 16, 256, 20  # STEPS per optimizer


class Tables(nn.Module):
    """The log-odds of a click: the inner product of a user's row and an item's row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.users, self.items = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(1) / WIDTH

    def use_sparse_gradients(self, sparse: bool) -> None:
        self.users.sparse = self.items.sparse = sparse


def train(model: Tables, optimizer: Optimizer, first: int) -> float:
    """Train for STEPS steps, starting at batch `first`; return the mean loss."""
    total = 0.0
    for step in range(first, first + STEPS):
        random = torch.Generator().manual_seed(step)
        users = (USERS * torch.rand(BATCH, generator=random) ** 3).long()
        items = (ITEMS * torch.rand(BATCH, generator=random) ** 3).long()
        clicked = ((users + items) % 3 == 0).float()
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), clicked)
        loss.backward()
        optimizer.step()
        total += loss.item() / STEPS
    return total


def main() -> None:
    stays, leaves = Tables(), Tables()
    unbroken = RowWiseAdagrad(stays.parameters(), lr=0.1)
    optimizer: Optimizer = RowWiseAdagrad(leaves.parameters(), lr=0.1)
    for part, convert in enumerate((None, from_torchrec, to_torchrec)):
        if convert is not None:
            optimizer = convert(optimizer)
        leaves.use_sparse_gradients(convert is from_torchrec)  # TorchRec takes only dense ones
        expected, loss = (train(*pair, part * STEPS) for pair in ((stays, unbroken), (leaves, optimizer)))
        print(f"{type(optimizer).__name__:15} loss {loss:.6f}, without leaving {expected:.6f}")
    with torch.no_grad():
        apart = max((p - q).abs().max().item() for p, q in zip(stays.parameters(), leaves.parameters(), strict=True))
    print(f"the largest difference of an entry is {apart:.1e}")


if __name__ == "__main__":
    main()

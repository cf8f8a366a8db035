"""A small GPT on the text that ships with Python: the scales of each layer, with loss and state compared to Adam's."""

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from matrix_adagrad import MatrixMomentum, geometry_groups
from matrix_adagrad.datasets.python_text import characters, python_text
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows

CONTEXT, BATCH, STEPS, EVERY, LR = 32, 12, 60, 20, 5e-3
torch.set_num_threads(1)  # on such a small model, threads would only wait for each other
text = characters(python_text())
train, held_out = text[:-20_000], text[-20_000:]
validation = windows(held_out, torch.arange(0, 19_000, 400), CONTEXT)
starts = torch.randint(len(train) - CONTEXT, (STEPS, BATCH), generator=torch.Generator().manual_seed(1))


def new_model() -> nn.Module:
    torch.manual_seed(0)  # the same initial weights for all
    return GPT(int(text.max()) + 1, context=CONTEXT, layers=1)


def train_with(model: nn.Module, optimizer: Optimizer) -> list[float]:
    """Return the loss on held-out text, every EVERY steps."""
    losses = []
    for step, batch in enumerate(starts, 1):
        optimizer.zero_grad()
        next_character_loss(model, windows(train, batch, CONTEXT)).backward()
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                losses.append(next_character_loss(model, validation).item())
    return losses


models = {"Adam": new_model(), "balanced": new_model(), "lean": new_model()}
optimizers = {
    "Adam": Adam(models["Adam"].parameters(), LR),
    # Tables and the head by row, the rest by entry. With the mean of squares, Adam's learning rate carries over.
    "balanced": MatrixMomentum(geometry_groups(models["balanced"], explain=True), LR, reduction="mean"),
    # Every matrix by row.
    "lean": MatrixMomentum(geometry_groups(models["lean"], "lean"), LR, reduction="mean"),
}

steps = "".join(f"{step:>8}" for step in range(EVERY, STEPS + 1, EVERY))
print(f"\nheld-out loss after{steps}    scales + momentum")
for name, optimizer in optimizers.items():
    losses = train_with(models[name], optimizer)
    scales, momentum = (sum(s[key].numel() for s in optimizer.state.values()) for key in ("exp_avg_sq", "exp_avg"))
    print(f"{name:<19}{''.join(f'{loss:8.3f}' for loss in losses)}{scales:>10,} + {momentum:,}")
    assert losses[-1] < 2.8  # an uninformed guess gives 4.6
print(f"One seed, {STEPS} steps and one learning rate for all: this shows that they train, not which is ahead.")

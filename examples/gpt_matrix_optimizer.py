"""A small GPT with one optimizer for all of it, next to AdamW: the same loop, less state."""

import re
from collections import Counter

import torch
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from matrix_adagrad import matrix_optimizer, state_bytes
from matrix_adagrad.datasets.python_text import help_texts
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows

torch.set_num_threads(1)  # on such a small model, threads would only wait for each other
CONTEXT, STEPS, WARMUP = 32, 60, 6

# The 1,000 most frequent words and signs in the output of help(), plus one token for everything else.
pieces = re.findall(r" ?\w+|\W", help_texts())[:100_000]
numbers = {piece: number for number, (piece, _) in enumerate(Counter(pieces).most_common(1000))}
text = torch.tensor([numbers.get(piece, 1000) for piece in pieces])


def new_model() -> GPT:
    torch.manual_seed(0)  # the same initial weights for both
    return GPT(1001, context=CONTEXT, width=32, heads=2, layers=3)


def train(model: GPT, optimizer: Optimizer) -> list[float]:
    """A loop as for any other optimizer: warm-up, then down to zero, with clipped gradients."""
    schedule = LambdaLR(optimizer, lambda t: min((t + 1) / WARMUP, (STEPS - t) / (STEPS - WARMUP)))
    torch.manual_seed(1)  # the same batches for both
    losses = []
    for _ in range(STEPS):
        loss = next_character_loss(model, windows(text, torch.randint(len(text) - CONTEXT, (8,)), CONTEXT))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


adamw_model, model = new_model(), new_model()
adamw = AdamW(adamw_model.parameters(), lr=0.01)
optimizer = matrix_optimizer(model, explain=True)
print()
for name, own_model, own in (("AdamW", adamw_model, adamw), ("matrix_optimizer", model, optimizer)):
    losses = train(own_model, own)
    final = sum(losses[-5:]) / 5
    print(f"{name}: loss {losses[0]:.2f} → {final:.2f}, {state_bytes(own):,} bytes of state")
    assert final < 4.5
assert state_bytes(optimizer) < 0.4 * state_bytes(adamw)
print(f"One seed, {STEPS} steps, rates that were not tuned: this shows that both train, not which is ahead.")

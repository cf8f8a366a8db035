"""A small GPT with Muon on its hidden matrices, and one scale per row on its table and its head."""

import re
from collections import Counter

import torch

from matrix_adagrad import muon_with_rows
from matrix_adagrad.datasets.python_text import help_texts
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows

torch.set_num_threads(1)
CONTEXT, STEPS = 32, 60

# The 1,000 most frequent words and signs in the output of help(), plus one token for everything else.
pieces = re.findall(r" ?\w+|\W", help_texts())[:100_000]
numbers = {piece: number for number, (piece, _) in enumerate(Counter(pieces).most_common(1000))}
text = torch.tensor([numbers.get(piece, 1000) for piece in pieces])

for rows, lr in (("momentum", 0.05), ("adagrad", 0.3)):
    torch.manual_seed(0)
    model = GPT(1001, context=CONTEXT, width=32, heads=2, layers=1)
    optimizer = muon_with_rows(model, lr=0.02, rows_lr=lr, rows=rows, explain=rows == "momentum")
    rates = [group["lr"] for group in optimizer.param_groups]  # Muon's rate, then one for each of the other groups
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=STEPS, cycle_momentum=False)
    losses = []
    for _ in range(STEPS):
        loss = next_character_loss(model, windows(text, torch.randint(len(text) - CONTEXT, (8,)), CONTEXT))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())

    hidden, others = (sum(p.numel() for g in part.param_groups for p in g["params"]) for part in optimizer.optimizers)
    adamw = hidden + 2 * others
    state = sum(value.numel() for values in optimizer.state.values() for value in values.values())
    final = sum(losses[-5:]) / 5
    print(f"\n{rows}: loss {losses[0]:.2f} → {final:.2f}, {state:,} numbers of state; with Muon and AdamW {adamw:,}")
    assert final < 4.3
    assert state < {"momentum": 0.6, "adagrad": 0.12}[rows] * adamw

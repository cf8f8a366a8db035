"""Train a small GPT with Accelerate, then resume the run from the middle: the results are bit-identical.

Needs accelerate but no network: the model starts from random weights, and the text ships with Python.
"""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from matrix_adagrad import MatrixMomentum, geometry_groups
from matrix_adagrad.datasets.python_text import characters, python_text
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows

CONTEXT, BATCH, ACCUMULATE, STEPS = 32, 8, 2, 40  # each step accumulates the gradients of ACCUMULATE batches
torch.set_num_threads(1)  # on such a small model, threads would only wait for each other
text = characters(python_text())
pieces = windows(text, torch.arange(0, len(text) - CONTEXT, CONTEXT), CONTEXT)[: STEPS * ACCUMULATE * BATCH]


def train(folder: str, *, resume: bool = False) -> tuple[nn.Module, list[float]]:
    """Return the final model and the loss of every batch; halfway, save everything, or start from what was saved."""
    set_seed(0)
    again = DataLoaderConfiguration(use_seedable_sampler=True)  # or batches change order after resuming
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE, dataloader_config=again)
    model = GPT(int(text.max()) + 1, context=CONTEXT, layers=1)
    # Before `prepare`. Tables and the head by row, hidden matrices by entry. Adam's learning rate carries over.
    optimizer = MatrixMomentum(geometry_groups(model), lr=5e-3, reduction="mean")
    scheduler = CosineAnnealingLR(optimizer, STEPS)
    model, optimizer, scheduler, batches = accelerator.prepare(
        model, optimizer, scheduler, DataLoader(pieces, BATCH, shuffle=True)
    )
    half, losses = len(batches) // 2, []
    if resume:
        accelerator.load_state(folder)
        batches = accelerator.skip_first_batches(batches, half)
    for number, batch in enumerate(batches, 1):
        with accelerator.accumulate(model):
            loss = next_character_loss(model, batch)
            accelerator.backward(loss)
            optimizer.step()  # this and the next two do nothing until all batches of a step are accumulated
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if number == half and not resume:
            accelerator.save_state(folder)
    return accelerator.unwrap_model(model), losses


with tempfile.TemporaryDirectory() as folder:
    unbroken, losses = train(folder)
    resumed, later = train(folder, resume=True)

print("loss of every 20 batches:", *(f"{sum(losses[i : i + 20]) / 20:.3f}" for i in range(0, len(losses), 20)))
assert sum(losses[-20:]) < sum(losses[:20]) - 10
assert later == losses[len(losses) // 2 :]
for (name, expected), weight in zip(unbroken.named_parameters(), resumed.parameters(), strict=True):
    assert torch.equal(expected, weight), name  # bit-identical
print("The resumed run had the same losses and ended with the same bits.")

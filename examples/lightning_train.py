"""Train a small GPT with Lightning's Trainer, then resume the run from the middle: the results are bit-identical.

Needs lightning. The model starts from random weights, and the text ships with Python.
"""

import logging
import tempfile

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from matrix_adagrad import MatrixMomentum, geometry_groups
from matrix_adagrad.datasets.python_text import characters, python_text
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows

CONTEXT, BATCH, STEPS = 32, 16, 20  # STEPS per epoch
torch.set_num_threads(1)  # on such a small model, threads would only wait for each other
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
text = characters(python_text())
pieces = windows(text, torch.arange(0, len(text) - CONTEXT, CONTEXT), CONTEXT)[: STEPS * BATCH]


class Writer(lightning.LightningModule):
    """Learns to predict the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.losses = GPT(int(text.max()) + 1, context=CONTEXT, layers=1), []

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        loss = next_character_loss(self.model, batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        # Tables and the head by row, hidden matrices by entry. Adam's learning rate carries over.
        optimizer = MatrixMomentum(geometry_groups(self), lr=5e-3, reduction="mean")
        scheduler = CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(folder: str, resume: str | None = None) -> Writer:
    lightning.seed_everything(0, verbose=False)
    writer = Writer()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(writer, DataLoader(pieces, BATCH, num_workers=0), ckpt_path=resume)
    return writer


with tempfile.TemporaryDirectory() as folder:
    unbroken = fit(folder)
    resumed = fit(folder, resume=f"{folder}/epoch=0.ckpt")  # a fresh model, optimizer and trainer

losses = unbroken.losses
print("loss of every 10 steps:", *(f"{sum(losses[i : i + 10]) / 10:.3f}" for i in range(0, len(losses), 10)))
assert sum(losses[-10:]) < sum(losses[:10]) - 5
assert resumed.losses == losses[STEPS:]
for (name, expected), weight in zip(unbroken.named_parameters(), resumed.parameters(), strict=True):
    assert torch.equal(expected, weight), name  # bit-identical
print("The resumed run had the same losses and ended with the same bits.")

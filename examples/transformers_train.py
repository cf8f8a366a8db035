"""Train a small GPT-2 with Hugging Face's Trainer, then resume from the middle: the results are bit-identical.

Needs transformers and accelerate but no network: the model starts from random weights, and the text ships with Python.
"""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from matrix_adagrad import MatrixMomentum, geometry_groups
from matrix_adagrad.datasets.python_text import characters, python_text
from matrix_adagrad.demos.gpt import windows

CONTEXT, STEPS, BATCH = 32, 40, 16
torch.set_num_threads(1)  # on such a small model, threads would only wait for each other
text = characters(python_text())
pieces = windows(text, torch.arange(0, len(text) - CONTEXT, CONTEXT), CONTEXT - 1)
examples = [{"input_ids": piece, "labels": piece} for piece in pieces]


def new_trainer(folder: str, *, explain: bool = False) -> Trainer:
    set_seed(0)
    size = {"vocab_size": int(text.max()) + 1, "n_positions": CONTEXT, "n_embd": 64, "n_layer": 1, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, eos_token_id=None))
    # The token table, tied to the head, by row; hidden matrices by entry. With the mean of squares, Adam's learning
    # rate carries over. The schedule below is the Trainer's; it scales the learning rate given here.
    groups = geometry_groups(model, explain=explain)
    optimizer = MatrixMomentum(groups, lr=5e-3, reduction="mean", weight_decay=0.01, decoupled_weight_decay=True)
    args = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        save_steps=STEPS // 2,
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    return Trainer(model, args, train_dataset=examples, optimizers=(optimizer, None))


with tempfile.TemporaryDirectory() as folder:
    unbroken = new_trainer(folder, explain=True)
    unbroken.train()
    # A fresh model, a fresh optimizer, and everything saved halfway: weights, state, schedule, random numbers.
    resumed = new_trainer(folder)
    resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-{STEPS // 2}")

losses = [entry["loss"] for entry in unbroken.state.log_history if "loss" in entry]
print("loss of every 10 steps:", *(f"{loss:.3f}" for loss in losses))
assert losses[-1] < losses[0] - 0.5

for (name, expected), weight in zip(unbroken.model.named_parameters(), resumed.model.parameters(), strict=True):
    assert torch.equal(expected, weight), name  # bit-identical, dropout included
print("The resumed run ended with the same bits.")

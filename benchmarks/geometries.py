"""What the rule sets of `geometry_groups` cost in quality on a small GPT, each with the same tuning.

The GPT reads the help texts that ship with Python, character by character. Every learning rate of the grid is tried
with every seed, with the same initial weights and batches. Each rule set uses the rate with the best mean, and is
compared seed by seed with one scale per entry (which is Adam). ``python -m benchmarks.geometries``: about 15 minutes.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import Tensor

from matrix_adagrad import MatrixMomentum, geometry_groups
from matrix_adagrad.datasets.python_text import characters, help_texts
from matrix_adagrad.demos.gpt import GPT, next_character_loss, windows

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 96, 4, 3, 16
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


def train(rules: str, lr: float, seed: int, steps: int, text: Tensor) -> tuple[float, int]:
    """The loss on the last tenth of the text, which is held out, and the number of scales."""
    torch.manual_seed(seed)
    model = GPT(int(text.max()) + 1, context=CONTEXT, width=WIDTH, heads=HEADS, layers=LAYERS)
    text, held_out = text.tensor_split([len(text) * 9 // 10])
    groups = geometry_groups(model, {"*": "entry"} if rules == "entry" else rules)
    optimizer = MatrixMomentum(groups, lr=lr, reduction="mean")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, cycle_momentum=False)
    for _ in range(steps):
        optimizer.zero_grad()
        _loss(model, text).backward()
        optimizer.step()
        schedule.step()
    torch.manual_seed(0)
    with torch.no_grad():
        loss = statistics.fmean(_loss(model, held_out).item() for _ in range(20))
    return loss, sum(state["exp_avg_sq"].numel() for state in optimizer.state.values())


def _loss(model: GPT, text: Tensor) -> Tensor:
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,))
    return next_character_loss(model, windows(text, starts, CONTEXT))


def main() -> None:
    """Print one line per rule set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    text = characters(help_texts())
    best: dict[str, list[float]] = {}
    for rules in ("entry", "balanced", "lean"):
        losses = {}
        for lr in RATES:
            runs = [train(rules, lr, seed, options.steps, text) for seed in range(options.seeds)]
            losses[lr] = [loss for loss, _ in runs]
            print(f"{rules:<10}lr {lr:<8g}{statistics.fmean(losses[lr]):.4f}", flush=True)
        lr = min(losses, key=lambda rate: statistics.fmean(losses[rate]))
        best[rules] = losses[lr]
        differences = [mine - entry for mine, entry in zip(best[rules], best["entry"], strict=True)]
        print(f"{rules:<10}best at {lr:g}: {statistics.fmean(best[rules]):.4f}, ", end="")
        print(f"minus entry's {statistics.fmean(differences):+.4f} ", end="")
        print(f"(seeds {', '.join(f'{d:+.4f}' for d in differences)}), {runs[0][1]:,} scales", flush=True)


if __name__ == "__main__":
    main()

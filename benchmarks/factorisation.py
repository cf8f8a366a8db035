"""Matrix factorisation of MovieLens 100K, compared with scikit-surprise's SVD in Cython: time and RMSE on one core.

Both use 20 factors, 30 epochs, no biases, and the same 80,000 training ratings of each fold. Surprise takes an SGD step
after every rating. Both learning rates are tuned for each fold on the next one, which is then held out of training too,
over the same number of values. Row-AdaGrad's time includes the final RMSE; Surprise's is for its fit alone.

    python -m benchmarks.factorisation
"""

from __future__ import annotations

import statistics
import time

import torch

from reproduction.movielens import factorisation
from reproduction.movielens.factorisation import FOLDS, Config, Run

ROUNDS, FACTORS, EPOCHS, DECAY = 3, 20, 30, 0.02
LRS = [10 ** (point / 8) for point in range(-10, -2)]
SURPRISE_LRS = [10 ** (point / 8) for point in range(-22, -14)]


def held_out(fold: int, validated: bool) -> tuple[int, ...]:
    """The folds that are not trained on: that whose RMSE is asked for comes first."""
    return ((fold + 1) % FOLDS, fold) if validated else (fold,)


def ours(lr: float, fold: int, validated: bool = False) -> tuple[float, float]:
    """The seconds, and the test or validation RMSE."""
    start = time.perf_counter()
    # the penalty once per rating, as Surprise has it
    result = factorisation.run(Config((Run("row", held_out(fold, validated), (lr,)),), per_rating=True))
    return time.perf_counter() - start, result.held_out[0][0][0][-1]


def surprise(lr: float, fold: int, validated: bool = False) -> tuple[float, float]:
    """The same for SVD(biased=False), whose gradient and penalty are half of ours."""
    from surprise import SVD
    from surprise.trainset import Trainset

    ratings = factorisation._ratings(None)
    train, asked, *_ = factorisation._split(ratings, held_out(fold, validated), centred=False)
    by_user: dict[int, list[tuple[int, float]]] = {}
    by_item: dict[int, list[tuple[int, float]]] = {}
    for user, item, value in zip(*train.rows.tolist(), train.values.tolist(), strict=True):
        by_user.setdefault(user, []).append((item, value))
        by_item.setdefault(item, []).append((user, value))
    users, items = (dict(zip(range(count), range(count), strict=True)) for count in (943, 1682))
    known = Trainset(by_user, by_item, 943, 1682, len(train), (1, 5), users, items)
    model = SVD(FACTORS, EPOCHS, biased=False, lr_all=lr, reg_all=DECAY / 2, init_std_dev=0.1, random_state=0)
    start = time.perf_counter()
    model.fit(known)
    seconds = time.perf_counter() - start
    u, v = torch.tensor(model.pu).float(), torch.tensor(model.qi).float()
    error = (u[asked.rows[0]] * v[asked.rows[1]]).sum(1) - asked.values
    return seconds, error.square().mean().sqrt().item()


def main() -> None:
    """Tune both, then run them alternately."""
    torch.set_num_threads(1)
    factorisation._ratings(None)
    peers = {"Row-AdaGrad": (ours, LRS), "scikit-surprise SVD": (surprise, SURPRISE_LRS)}
    chosen: dict[str, list[float]] = {}
    for name, (run, lrs) in peers.items():
        chosen[name] = []
        for fold in range(FOLDS):
            rmse = {lr: run(lr, fold, validated=True)[1] for lr in lrs}
            chosen[name].append(min(rmse, key=lambda lr: rmse[lr]))
        edge = " (at the edge of its grid)" if {lrs[0], lrs[-1]} & set(chosen[name]) else ""
        print(f"{name}: learning rates {', '.join(f'{lr:.4g}' for lr in chosen[name])} of {len(lrs)}{edge}")
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    final: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(ROUNDS):
        for fold in range(FOLDS):
            for name, (run, _lrs) in peers.items():
                took, rmse_of_fold = run(chosen[name][fold], fold)
                seconds[name].append(took)
                final[name].append(rmse_of_fold)
    print(f"\n{'':<22}{'seconds':>9}{'quartiles':>16}{'RMSE':>9}   ({FACTORS} factors, {EPOCHS} epochs, one core)")
    for name in peers:
        low, middle, high = statistics.quantiles(seconds[name], n=4)
        print(f"{name:<22}{middle:>9.2f}{f'{low:.2f}–{high:.2f}':>16}{statistics.fmean(final[name]):>9.4f}")


if __name__ == "__main__":
    main()

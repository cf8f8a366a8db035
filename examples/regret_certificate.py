"""A regret certificate for your own stream: daily orders of shops, compared with the best fixed rule in hindsight.

In each round, one shop orders ⟨X_i, v⟩ for a day with features v, and then learns the demand. Each leftover unit costs
1 and each missing unit costs 4: a convex loss with a kink. A decision X has one row per shop; big shops come up often.
"""

import torch
from torch import Tensor

from matrix_adagrad.domains import RowBalls
from matrix_adagrad.online import Game, MirrorDescent, RegretMeter, Solution, minimise

SHOPS, FEATURES, ROUNDS = 10, 4, 2000
LEFT_OVER, SHORT = 1.0, 4.0
torch.set_num_threads(1)  # on such small matrices, threads would only wait for each other
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

shop = torch.multinomial(1 / torch.arange(1.0, SHOPS + 1), ROUNDS, replacement=True)
day = torch.cat([torch.ones(ROUNDS, 1), 0.5 * torch.randn(ROUNDS, FEATURES - 1)], 1)
habit = torch.randn(SHOPS, FEATURES)
demand = (habit[shop] * day).sum(1) + torch.randn(ROUNDS)  # relative to an ordinary day


class Orders(Game):
    """f_t(X) = max{SHORT·e, -LEFT_OVER·e} with e = demand - ⟨X_i, v⟩."""

    domain, shape = RowBalls(3.0), (SHOPS, FEATURES)

    def loss(self, t: int, x: Tensor) -> tuple[float, Tensor]:
        error = demand[t] - x[shop[t]] @ day[t]
        slope = SHORT if error > 0 else -LEFT_OVER
        grad = torch.zeros_like(x)
        grad[shop[t]] = -slope * day[t]
        return float(slope * error), grad

    def best(self, rounds: int, gradients: Tensor) -> Solution:
        """Find it with `minimise`, with a lower bound on the cost of any rule."""
        who, v, wanted = shop[:rounds], day[:rounds], demand[:rounds]

        def total(x: Tensor, smoothing: float) -> tuple[float, float, Tensor]:
            error = wanted - (x[who] * v).sum(1)
            exact = torch.maximum(SHORT * error, -LEFT_OVER * error).sum()
            # max over slopes s of s·e - μ/2·s²: smooth, never above the loss, and converging to it as μ → 0
            slope = (error / smoothing).clamp(-LEFT_OVER, SHORT)
            smooth = (slope * error - smoothing / 2 * slope**2).sum()
            return float(exact), float(smooth), torch.zeros_like(x).index_add_(0, who, -slope[:, None] * v)

        return minimise(total, self.domain, torch.zeros_like(gradients), tolerance=0.1).certified()


game = Orders()
learner = MirrorDescent(torch.zeros(SHOPS, FEATURES), "row", game.domain)  # Row-AdaGrad, with η = D/√2
regret = RegretMeter(learner, bounds_for=("row", "entry")).play(game, ROUNDS)
print(regret.table())

bound, best = regret["regret ≤ √2 D Σ_b √V_b"].right, regret.best
most = regret.regret + best.gap
print(
    f"\nCertificate. In {ROUNDS:,} rounds Row-AdaGrad paid {regret.loss:,.1f}. No fixed rule would have paid less than "
    f"{best.value - best.gap:,.1f},\nso its regret is at most {most:,.1f}, {most / ROUNDS:.3f} per round. "
    f"Theorem 1 promised {bound:,.1f}."
)
assert regret.holds
assert regret.best.gap <= 0.1
assert 0 < most < bound

"""Games whose outcome is made up."""

import math

from reproduction.games import domains, hindsight, horizon, identities, motivating, theorems, tradeoff
from reproduction.games.analysis import BOUNDS, CONDITIONS, FINER

INEQUALITIES = (
    *("regret ≤ general bound", "Σ‖G_t‖²_{H_t⁻¹} ≤ 2 Σ‖G_t‖²_{H_T⁻¹}", "the same, with the stabilizer's term"),
    *("regret ≤ trace form", FINER, *BOUNDS),
)


class Fake:
    """Regrets, inequalities and identities as they are told.

    Args:
        regret: a function of a config of `motivating` to the aligned geometry's regret, where entries regret 1.
        control: a function of the same to the regret of the control, over that of the aligned geometry.
        bound_ratio: the ratio of the bounds, over the expected one.
        domain_ratio: a function of a config of `domains` to the ratio of the bounds.
        broken: a function of a config of `theorems` to whether its inequalities are broken.
        conditions: a function of the same to the conditions that are met.
        boundary: a function of the same to the share of iterates on the boundary.
        evolution: the measured cost of evolution as η doubles; the gradients' cost is its negative.
        promised: the bound's cost of evolution as η doubles; the gradients' cost is the same in reverse.
        off: how far the identities are off, and the least bound.
        excess: how far the scales that were used are from the best.
        competitive: the ratio of guarantees, and that of regrets.
        exponent: a function of a config of `horizon` to the exponent of the regret.
    """

    def __init__(
        self,
        regret=lambda _: 0.5,
        control=lambda _: 2.0,
        bound_ratio=1.0,
        domain_ratio=lambda config: 3.0 if config.structure == "row-sparse" else 2.0,
        broken=lambda _: False,
        conditions=lambda config: CONDITIONS.values() if config.delta < 10 else (),
        boundary=lambda config: 0.5 if config.learner == "row" else 0.0,
        evolution=range(7, 0, -1),
        promised=(30.0, 20.0, 10.0, 5.0, 4.0, 3.0, 2.0),
        off=0.0,
        excess=0.0,
        competitive=(1.4, 1.1),
        exponent=lambda _: 0.5,
    ):
        vars(self).update({name: value for name, value in locals().items() if name != "self"})

    def motivating(self, config):
        expected = math.sqrt(config.n if config.active == "row" else config.m)
        regret = 1.0 + self.off if expected == 1 else self.regret(config)
        ratio, control = expected * self.bound_ratio, self.control(config) * regret
        return motivating.Result(config, 1.0, ratio, expected, regret, 1.0, control, 1e-9, True)

    def domains(self, config):
        return domains.Result(config, 1.0, self.domain_ratio(config), 1.0, 1.0)

    def theorems(self, config):
        broken, met = self.broken(config), set(self.conditions(config))
        rows = [(name, "Thm 1", 2.0 if broken else 1.0, 1.5, not broken, bool(met), False) for name in INEQUALITIES]
        rows += [(name, "§4.2", 1.0, 2.0, name in met, True, True) for name in CONDITIONS.values()]
        return theorems.Result(config, self.boundary(config), tuple(rows))

    def tradeoff(self, config):
        falls, promised = tuple(map(float, self.evolution)), tuple(self.promised)
        measured = falls, tuple(-value for value in falls)
        return tradeoff.Result(config, *measured, promised, promised[::-1], falls, self.off, self.off, self.excess)

    def hindsight(self, config):
        guarantees, regrets = self.competitive
        return hindsight.Result(config, guarantees, 1.0, regrets, 1.0)

    def horizon(self, config):
        rounds = tuple(2**k for k in range(config.doublings + 1))
        regret = tuple(t ** self.exponent(config) for t in rounds)
        return horizon.Result(config, rounds, regret, tuple(2.0 * t**0.5 for t in rounds), config.delta)

    def identities(self, config):
        states = {"RowAdaGrad": 4 * config.m, "ColumnAdaGrad": 4 * config.n, "Adagrad": 4 * config.m * config.n}
        states = {name: round(size * (1 + self.off)) for name, size in states.items()}
        return identities.Result(config, self.off, self.off, tuple(states.items()))

"""§4.1 and §4.2: how the metric grows with the gradients, and why it is the best one."""

import itertools
import math

import torch

from matrix_adagrad.geometry import Row
from matrix_adagrad.online import TradeOff
from tests.online.paper.cases import dual2, largest, lengths2, numbers
from tests.online.paper.statements import identity, inequality


@identity("§4, Algorithms 1 and 2")
def the_scales_are_roots_of_sums_of_squares_and_delta(c):
    for _, psis, scales in c.adagrads:
        yield torch.stack([psi.scale.flatten() for psi in psis]), scales


@inequality("§4, monotone metrics")
def the_metric_never_falls(c):  # where a gradient is 0: equality
    for _, psis, _ in c.evolutions:
        values = numbers(psi.value(c.X) for psi in psis)
        yield values[:-1], values[1:]


def changes(c, psis):
    """B_{ψ_{t+1}}(X*; X_{t+1}) - B_{ψ_t}(X*; X_{t+1}) for t < T."""
    return numbers(b.value(gap) - a.value(gap) for a, b, gap in zip(psis, psis[1:], c.gaps[1:], strict=False))


@identity("§4.1")
def a_change_of_metric_costs_its_quadratic_form(c):
    for g, psis, scales in c.adagrads:
        weighted = (scales.diff(dim=0) * lengths2(g, c.gaps[1:-1])).sum(1) / 2
        yield changes(c, psis), weighted
        yield changes(c, psis).sum(), (scales.diff(dim=0) * lengths2(g, c.gaps[1:-1])).sum(0).sum() / 2
    for _, psis, _ in c.evolutions[-2:-1]:  # Tr(Zᵀ(H_{t+1} - H_t)Z)
        steps = zip(psis, psis[1:], c.gaps[1:], strict=False)
        yield changes(c, psis), numbers(0.5 * (Z.T @ (b.metric - a.metric) @ Z).trace() for a, b, Z in steps)


@inequality("§4.1")
def a_row_is_no_longer_than_the_mixed_norm_and_that_than_its_maximum_over_rounds(c):
    for g in c.geometries:
        yield lengths2(g, c.gaps[0]), numbers([g.norm(c.gaps[0]) ** 2])
        yield numbers(g.norm(gap) ** 2 for gap in c.gaps[:-1]), largest(g, c.gaps[:-1]) ** 2


@inequality("§4.1")
def the_middle_term_is_at_most_that_of_the_largest_distance(c):  # where all distances are equal: equality
    for g, psis, scales in c.adagrads:
        yield changes(c, psis).sum(), largest(g, c.gaps[:-1]) ** 2 / 2 * (scales[-1].sum() - scales[0].sum())


@inequality("§4.1")
def the_first_term_is_at_most_that_of_the_largest_distance(c):
    for g, psis, scales in c.adagrads:
        yield psis[0].value(c.gaps[0]), largest(g, c.gaps[:-1]) ** 2 / 2 * scales[0].sum()


@inequality("§4.1")
def both_are_at_most_half_the_squared_distance_times_the_trace(c):
    for g, psis, _ in c.adagrads:
        yield psis[0].value(c.gaps[0]) + changes(c, psis).sum(), largest(g, c.gaps[:-1]) ** 2 / 2 * psis[-1].trace()


@identity("§4.2")
def the_terminal_dual_norms_sum_by_blocks(c):
    for g, psis, scales in c.adagrads:
        terminal = dual2([psis[-1]] * c.rounds, c.grads)
        yield terminal, (lengths2(g, c.grads) / scales[-1]).sum(1)
        yield terminal.sum(), (lengths2(g, c.grads).sum(0) / scales[-1]).sum()


@identity("§4.2")
def the_trace_is_delta_a_block_and_the_sum_of_roots(c):
    for _, psis, scales in c.evolutions:
        yield psis[-1].trace(), scales[-1].numel() * c.delta + (scales[-1] - c.delta).sum()


def tradeoff(c, g):
    V = lengths2(g, c.grads).sum(0)
    return TradeOff(V, V.sqrt() + c.delta, largest(g, c.gaps), c.eta)


@inequality("§4.2, arithmetic and geometric mean")
def no_scale_makes_a_blocks_bound_less(c):  # at s*: equality
    for g in c.geometries:
        trade = tradeoff(c, g)
        tried = [trade.optimal * factor for factor in (0.1, 0.9, 1.0, 1.1, 10.0)]
        yield trade.least.expand(5, -1), torch.stack([trade.bound(s) for s in tried])


@identity("§4.2, arithmetic and geometric mean")
def at_the_best_scale_the_two_terms_are_equal_and_their_sum_is_least(c):
    for g in c.geometries:
        trade = tradeoff(c, g)
        yield trade.growing(trade.optimal), trade.falling(trade.optimal)
        yield trade.bound(trade.optimal), trade.least
        a, lam, V, far, eta = 2.0, 1.0, lengths2(g, c.grads).sum(0), largest(g, c.gaps), c.eta
        yield trade.optimal, eta * math.sqrt(a) / (far * math.sqrt(lam)) * V.sqrt()
        yield trade.least, far * math.sqrt(a / lam) * V.sqrt()
        yield trade.bound(trade.used), far**2 / (2 * eta) * trade.used + eta * a / (2 * lam) * V / trade.used


@identity("§4.2, arithmetic and geometric mean")
def the_same_for_any_a_and_lambda(c):
    V, far = lengths2(Row(), c.grads).sum(0), largest(Row(), c.gaps)
    for a, lam in itertools.product((1.5, 2.0, 7.0), (0.1, 1.0, 3.0)):
        s = (c.eta * math.sqrt(a) / (far * math.sqrt(lam)) * V.sqrt())[V > 0]
        bound = far**2 / (2 * c.eta) * s + c.eta * a / (2 * lam) * V[V > 0] / s
        yield bound.sum(), (far * math.sqrt(a / lam) * V.sqrt()).sum()


@inequality("Remark 1, the hindsight problem")
def no_scales_of_the_same_sum_do_better_than_those_in_proportion_to_the_roots(c):
    for g in c.geometries:
        V = lengths2(g, c.grads).sum(0)
        V, budget = V[V > 0], 3.0 * c.slope
        if not len(V):  # every gradient was 0
            continue
        shares = [V.sqrt(), V / V.max(), torch.ones_like(V), *c.draw("shares", 20, len(V)).abs()]
        tried = numbers((V / (budget * s / s.sum())).sum() for s in shares)
        yield V.sqrt().sum() ** 2 / budget, tried
        yield tried.min(), V.sqrt().sum() ** 2 / budget


@identity("Cor. 2, its proof")
def a_squared_gradient_is_a_difference_of_squared_scales(c):
    for g, _, scales in c.adagrads:
        yield lengths2(g, c.grads)[1:], (scales - c.delta).square().diff(dim=0), scales.max() ** 2


@inequality("Cor. 2, its proof", taken=0.05)  # 2 → 1.9: nearly tight where scales hardly change, at a loss of digits
def termwise(c):
    for _, _, scales in c.adagrads:
        s = torch.cat([torch.full_like(scales[:1], c.delta), scales])
        squares = (s - c.delta).square()
        yield squares.diff(dim=0) / s[1:], 2 * (squares / s).diff(dim=0), s.max()


@inequality("Cor. 2", taken=0.05)  # 2 → 1.9: it tends to 2 where many small gradients come one after the other
def the_dual_norms_sum_to_at_most_twice_those_of_the_last_metric(c):
    for _, psis, _ in c.evolutions:
        yield dual2(psis, c.grads).sum(), 2 * dual2([psis[-1]] * c.rounds, c.grads).sum()


@inequality("Cor. 2")
def those_are_at_most_twice_the_sum_of_roots(c):  # δ is 1e-8 of a gradient: nearly equality
    for _, psis, scales in c.evolutions:
        yield 2 * dual2([psis[-1]] * c.rounds, c.grads).sum(), 2 * (scales[-1] - c.delta).sum()

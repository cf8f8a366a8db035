"""The paper's claims about the regret analysis: the general bound, the trade-off, the theorems and their conditions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from reproduction.games import tradeoff
from reproduction.games.evidence import Evidence
from reproduction.games.horizon import SPAN
from reproduction.games.theorems import STUBBORN, Checked
from reproduction.verdict import Check, Claim

__all__ = ["CLAIMS", "ROUNDING"]

ROUNDING = 1e-9
SUBLINEAR = 0.75  # an exponent halfway from √T, which the theorems promise, to T
BOUNDS = ("regret ≤ (Δ²/2η + η) Σ_b √V_b", "regret ≤ √2 D Σ_b √V_b")  # of Theorems 1 and 2
GENERAL = ("regret ≤ general bound", "regret ≤ general bound, negative term dropped")
FINER = "2 Σ‖G_t‖²_{H_T⁻¹} ≤ 2 Σ_b √V_b"
CONDITIONS = {
    "§4.2's condition is met": "the stabilizer is absorbed: Δ² m δ ≤ 2 B_T",
    "App. E's is": "δ ≤ Σ_b √V_b ‖(X* - X_{T+1})_b‖² / m Δ²",
    "δ ≤ √V_b (2η²/Δ² - 1) for every b": "δ ≤ √V_b (2η²/Δ² - 1) for every b",
}


def _span(values: Iterable[float], form: str = ".2f") -> str:
    ordered = sorted(values)
    low, high = f"{ordered[0]:{form}}", f"{ordered[-1]:{form}}"
    return low if low == high else f"{low} to {high}"


def _judged(circumstances: str, found: Sequence[Checked]) -> Check:
    least = min((check.right - check.left) / max(abs(check.right), abs(check.left)) for check in found)
    broken = sum(not check.holds for check in found)
    slack = "the tightest is an equality" if abs(least) < ROUNDING else f"smallest relative slack {least:.1%}"
    return Check(circumstances, not broken, f"{broken} of {len(found)} broken; {slack}")


def _inequalities(*names: str) -> Callable[[Evidence], Iterator[Check]]:
    """Check the inequalities with these names in every game."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        yield _judged("", [check for game in evidence.theorems() for check in game.checked if check.name in names])

    return checks


def _general(evidence: Evidence) -> Iterator[Check]:
    for circumstances, touches in (("iterates in the interior", False), ("iterates on the boundary", True)):
        games = [game for game in evidence.theorems() if (game.boundary > 0) is touches]
        if found := [check for game in games for check in game.checked if check.name in GENERAL]:
            yield _judged(circumstances, found)


def _theorem(learner: str) -> Callable[[Evidence], Iterator[Check]]:
    def checks(evidence: Evidence) -> Iterator[Check]:
        games = [game for game in evidence.theorems() if game.config.learner == learner]
        found = [(game, check) for game in games for check in game.checked if check.name in BOUNDS]
        for circumstances, condition in CONDITIONS.items():
            met = [check for game, check in found if game.meets(condition)]
            if met:
                broken, worst = sum(not check.holds for check in met), max(check.left / check.right for check in met)
                figures = f"{broken} of {len(met)} broken; regret at most {worst:.2f} times its bound"
                yield Check(circumstances, not broken, figures)
        broken = sum(not check.holds for _, check in found)
        without = [check.holds for _, check in found if not check.is_guaranteed]
        figures = f"{broken} of {len(found)} broken; where no condition is met, {sum(without)} of {len(without)} hold"
        for check in (check for game, check in found if game.config.game == STUBBORN and check.name == BOUNDS[1]):
            figures += f"; {STUBBORN}, T = 3, δ = 10⁶: regret {check.left:.1f}, bound {check.right:.1f}"
        yield Check("as printed, without a condition", not broken, figures)

    return checks


def _finer(evidence: Evidence) -> Iterator[Check]:
    for delta in sorted({game.config.delta for game in evidence.theorems() if game.config.game != STUBBORN}):
        games = [game for game in evidence.theorems() if game.config.delta == delta]
        found = [check for game in games for check in game.checked if check.name == FINER]
        lower = [1 - check.left / check.right for check in found]
        yield Check(f"δ = {delta:g}", min(lower) > 0, f"lower by {_span(lower, '.2g')} of it in {len(found)} games")


def _tradeoff(evidence: Evidence) -> Iterator[Check]:
    games = evidence.tradeoffs()
    promised = [(game.promised_evolution, game.promised_gradients) for game in games]
    measured = [(game.evolution, game.gradients) for game in games]
    for circumstances, terms in (("the terms of the bound", promised), ("the terms of Cor. 1, measured", measured)):
        wrong = sum(not before > after for falls, _ in terms for before, after in itertools.pairwise(falls))
        wrong += sum(not before < after for _, rises in terms for before, after in itertools.pairwise(rises))
        steps = 2 * len(terms) * (len(tradeoff.FACTORS) - 1)
        yield Check(circumstances, not wrong, f"{wrong} of {steps} steps go the other way, in {len(terms)} games")


def _optimum(evidence: Evidence) -> Iterator[Check]:
    games = evidence.tradeoffs()
    off, gained = max(game.off for game in games), max(game.gained for game in games)
    figures = f"the least is off by {off:.1g}, and no multiple of s* gains more than {max(gained, 0):.1g}"
    yield Check("the scales s*", max(off, gained) < ROUNDING, figures)
    excess = max(game.excess for game in games)
    best = [tradeoff.FACTORS[min(range(len(game.bound)), key=game.bound.__getitem__)] for game in games]
    lowest = [tradeoff.FACTORS[min(range(len(game.regret)), key=game.regret.__getitem__)] for game in games]
    figures = f"AdaGrad's own scales exceed the least by {excess:.1g}; of all η, the bound is least at "
    figures += f"{_span(best, 'g')} times D/√2, and the regret at {_span(lowest, 'g')} times"
    yield Check("η = D/√2", excess < 1e-6 and set(best) == {1.0}, figures)


def _hindsight(evidence: Evidence) -> Iterator[Check]:
    games = evidence.hindsights()
    for circumstances, ratios in (
        ("the guarantees", [game.bound / game.fixed_bound for game in games]),
        ("the regrets", [game.regret / game.fixed_regret for game in games]),
    ):
        holds = max(ratios) <= math.sqrt(2) * (1 + ROUNDING)
        yield Check(circumstances, holds, f"{_span(ratios, '.3f')} times as much, in {len(games)} games")


def _sublinear(evidence: Evidence) -> Iterator[Check]:
    games = evidence.horizons(1e-8)
    exponents = [game.exponent for game in games]
    per_root = max(game.regret[-1] / game.bound[-1] for game in games)
    figures = f"T^{_span(exponents)} over the last {SPAN}-fold of {games[0].rounds[-1]:,} rounds, in {len(games)} games"
    yield Check("", max(exponents) < SUBLINEAR, f"{figures}; at most {per_root:.2f} times the bound in the end")


def _constant(evidence: Evidence) -> Iterator[Check]:
    games, large = evidence.horizons(1.0), evidence.horizons(1e3)
    exponents = [game.exponent for game in games]
    is_bounded = all(game.is_bounded for game in (*games, *large))
    share = max(game.stabilizer / (game.stabilizer + game.bound[-1]) for game in games)
    figures = f"T^{_span(exponents)}; its term is at most {share:.1%} of the bound in the end. With δ = 1000, T^"
    figures += f"{_span(game.exponent for game in large)}: {large[0].rounds[-1]:,} rounds are few against δ²"
    yield Check("", is_bounded and max(exponents) < SUBLINEAR, figures)


_NO_GAME = "no game breaks it"
_THEOREM_RULE = "no game breaks either bound: games that meet each condition, and all games"

CLAIMS = (
    Claim(
        "corollary-1",
        "Cor. 1",
        "The regret of mirror descent with an adaptive proximal function, whose iterates are in the interior, is at "
        "most the general bound.",
        "no game breaks it, with or without the last divergence; games whose iterates touch the boundary count apart",
        _general,
    ),
    Claim(
        "trace-forms",
        "§4.1",
        "The divergences sum to at most ½ Δ² Tr(H_T), and the regret is at most the trace form.",
        _NO_GAME,
        _inequalities(
            "divergences ≤ ½ Δ² Tr(H_T)", "regret ≤ trace form", "regret ≤ trace form, terminal metric (a = 2)"
        ),
    ),
    Claim(
        "trade-off",
        "Abstract, §4.2",
        "Larger scales lower the gradients' cost, and raise the cost of the geometry's evolution.",
        "each doubling of η, which halves all scales, lowers the second and raises the first, in every game",
        _tradeoff,
    ),
    Claim(
        "optimal-scale",
        "§4.2",
        "Each row's bound is least, Δ √(2 V_i), at s* = √2 η √V_i / Δ, in proportion to √V_i.",
        "to 1e-9, and no multiple of s* is better; with η = D/√2 and Δ = D, AdaGrad's own scales are s* to 1e-6, and "
        "no other η gives a lower bound",
        _optimum,
    ),
    Claim(
        "hindsight",
        "§1, §4.2",
        "AdaGrad is competitive with the best proximal function chosen in hindsight.",
        "its guarantee, and its regret, are at most √2 times those with the fixed scales s*, in every game",
        _hindsight,
    ),
    Claim(
        "corollary-2",
        "Cor. 2",
        "The sum of squared dual norms is at most twice that in the last metric, and at most 2 Σ_b √V_b.",
        _NO_GAME,
        _inequalities("Σ‖G_t‖²_{H_t⁻¹} ≤ 2 Σ‖G_t‖²_{H_T⁻¹}", FINER),
    ),
    Claim(
        "finer-form",
        "Remark 2",
        "The first of these bounds is finer than the second, which is that of AdaGrad's Lemma 4.",
        "it is lower in every game, for each δ",
        _finer,
    ),
    Claim(
        "stabilizer",
        "§4.2, App. E",
        "With the stabilizer's term the bound holds for any δ.",
        _NO_GAME,
        _inequalities("the same, with the stabilizer's term"),
    ),
    Claim(
        "theorem-1",
        "Thm 1",
        "Row-AdaGrad's regret is at most (Δ²/2η + η) Σ_i √(Σ_t ‖G_{t,i}‖²), and √2 D Σ_i √(Σ_t ‖G_{t,i}‖²) with η = "
        "D/√2.",
        _THEOREM_RULE,
        _theorem("row"),
    ),
    Claim(
        "theorem-2",
        "Thm 2",
        "Column-AdaGrad's regret has the bounds of Theorem 1 with columns instead of rows.",
        _THEOREM_RULE,
        _theorem("column"),
    ),
    Claim(
        "sublinear",
        "§3.1",
        "The regret is sublinear: R(T)/T goes to 0.",
        f"the largest regret so far grows by less than T^{SUBLINEAR} over the last {SPAN}-fold of rounds in any game",
        _sublinear,
    ),
    Claim(
        "stabilizer-is-constant",
        "App. E",
        "A stabilizer δ = O(1) adds O(1) to the regret, and does not change its order.",
        "the same with δ = 1, the size of a gradient; and for any δ, regret ≤ bound + D² m δ/2η after each doubling",
        _constant,
    ),
)

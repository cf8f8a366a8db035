"""The paper's claims about regret, its bounds, and the algorithms themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reproduction import motivating
from reproduction.claims.verdict import Check, Claim
from reproduction.evidence import Evidence

__all__ = ["CLAIMS"]

ROUNDING = 1e-9
BOUNDS = ("regret ≤ (Δ²/2η + η) Σ_b √V_b", "regret ≤ √2 D Σ_b √V_b")  # of Theorems 1 and 2


def _inequalities(*names: str) -> Callable[[Evidence], Iterator[Check]]:
    """Check the inequalities with these names in every game."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        found = [checked for game in evidence.theorems() for checked in game.checked if checked.name in names]
        least = min((checked.right - checked.left) / max(abs(checked.right), abs(checked.left)) for checked in found)
        broken = sum(not checked.holds for checked in found)
        slack = "the tightest is an equality" if abs(least) < ROUNDING else f"smallest relative slack {least:.1%}"
        figures = f"{broken} of {len(found)} broken; {slack}"
        yield Check("", not broken, figures)

    return checks


def _theorem(learner: str) -> Callable[[Evidence], Iterator[Check]]:
    def checks(evidence: Evidence) -> Iterator[Check]:
        games = [game for game in evidence.theorems() if game.config.learner == learner]
        found = [checked for game in games for checked in game.checked if checked.name in BOUNDS]
        for circumstances, met in (("δ meets the condition of App. E", True), ("δ does not", False)):
            some = [checked for checked in found if checked.is_guaranteed is met]
            if some:
                worst = max(checked.left / checked.right for checked in some)
                broken = sum(not checked.holds for checked in some)
                figures = f"{broken} of {len(some)} broken; regret at most {worst:.2f} times its bound"
                yield Check(circumstances, not broken, figures)

    return checks


def _bounds(active: str) -> Callable[[Evidence], Iterator[Check]]:
    def checks(evidence: Evidence) -> Iterator[Check]:
        games = [game for game in evidence.games() if game.config.active == active]
        off = max(abs(game.ratio / game.expected_ratio - 1) for game in games)
        figures = f"{min(g.ratio for g in games):.4g} to {max(g.ratio for g in games):.4g}"
        yield Check("", off < ROUNDING, f"ratios from {figures} in {len(games)} games, off by at most {off:.1g}")

    return checks


def _regrets(active: str) -> Callable[[Evidence], Iterator[Check]]:
    def kind(game: motivating.Result) -> str:
        config = game.config
        if config.K == 1:
            return "K = 1"
        count = config.m if active == "row" else config.n
        return "K ≥ 100" if config.K >= 100 else f"1 < K < 100, an {'odd' if count % 2 else 'even'} number of {active}s"

    def checks(evidence: Evidence) -> Iterator[Check]:
        games = [game for game in evidence.games() if game.config.active == active and game.expected_ratio > 1]
        for circumstances in sorted({kind(game) for game in games}):
            some = [game for game in games if kind(game) == circumstances]
            less = sum(game.regret < (1 - ROUNDING) * game.entry_regret for game in some)
            more = sum(game.regret > (1 + ROUNDING) * game.entry_regret for game in some)
            figures = f"less regret in {less} of {len(some)} games, more in {more}, equal in {len(some) - less - more}"
            yield Check(circumstances, less == len(some), figures)

    return checks


def _degeneration(evidence: Evidence) -> Iterator[Check]:
    for found in evidence.identities():
        figures = f"largest difference {found.degeneration:.1g} after {found.config.steps} steps"
        yield Check("", found.degeneration < ROUNDING, figures)


def _degenerate_bound(evidence: Evidence) -> Iterator[Check]:
    games = [game for game in evidence.games() if game.expected_ratio == 1]
    off = max(abs(1 - x / y) for g in games for x, y in ((g.bound, g.entry_bound), (g.regret, g.entry_regret)))
    yield Check("", off < ROUNDING, f"bounds and regrets of {len(games)} games differ by at most {off:.1g}")


def _transposition(evidence: Evidence) -> Iterator[Check]:
    for found in evidence.identities():
        figures = f"largest difference {found.transposition:.1g} after {found.config.steps} steps"
        yield Check("", found.transposition < ROUNDING, figures)


def _memory(evidence: Evidence) -> Iterator[Check]:
    for found in evidence.identities():
        m, n, states = found.config.m, found.config.n, dict(found.states)
        expected = {"RowAdaGrad": 4 * m, "ColumnAdaGrad": 4 * n, "Adagrad": 4 * m * n}
        figures = ", ".join(f"{name} {states[name]:,}" for name in expected)
        yield Check("", all(states[name] == size for name, size in expected.items()), f"bytes for {m}×{n}: {figures}")


CLAIMS = (
    Claim(
        "corollary-1",
        "Cor. 1",
        "The regret of mirror descent with an adaptive proximal function is at most the general bound.",
        "no game breaks it, with or without the last divergence",
        "examples",
        _inequalities("regret ≤ general bound", "regret ≤ general bound, negative term dropped"),
    ),
    Claim(
        "trace-forms",
        "§4.1",
        "The divergences sum to at most ½ Δ² Tr(H_T), and the regret is at most the trace form.",
        "no game breaks it",
        "examples",
        _inequalities(
            "divergences ≤ ½ Δ² Tr(H_T)", "regret ≤ trace form", "regret ≤ trace form, terminal metric (a = 2)"
        ),
    ),
    Claim(
        "corollary-2",
        "Cor. 2",
        "The sum of squared dual norms is at most twice that in the last metric, and at most 2 Σ_b √V_b.",
        "no game breaks it",
        "examples",
        _inequalities("Σ‖G_t‖²_{H_t⁻¹} ≤ 2 Σ‖G_t‖²_{H_T⁻¹}", "2 Σ‖G_t‖²_{H_T⁻¹} ≤ 2 Σ_b √V_b"),
    ),
    Claim(
        "theorem-1",
        "Thm 1",
        "Row-AdaGrad's regret is at most (Δ²/2η + η) Σ_i √(Σ_t ‖G_{t,i}‖²), and √2 D Σ_i √(Σ_t ‖G_{t,i}‖²) with η = "
        "D/√2.",
        "no game breaks either, with a stabilizer δ that meets App. E's condition and with one that does not",
        "examples",
        _theorem("row"),
    ),
    Claim(
        "degeneration",
        "Remark after Thm 1",
        "On a matrix with one column, Row-AdaGrad is AdaGrad.",
        "parameters agree with torch.optim.Adagrad's to 1e-9 in float64",
        "examples",
        _degeneration,
    ),
    Claim(
        "degeneration-of-the-bound",
        "Remark after Thm 1",
        "On a matrix with one column, the bound is AdaGrad's too.",
        "bounds and regrets agree to 1e-9 in games whose active rows, or columns, have one entry",
        "examples",
        _degenerate_bound,
    ),
    Claim(
        "ratio-of-rows",
        "§4.3",
        "With row-sparse gradients the bound of Row-AdaGrad is √n times lower than that of AdaGrad.",
        "the ratio of the bounds is √n to 1e-9 in every game",
        "examples",
        _bounds("row"),
    ),
    Claim(
        "regret-of-rows",
        "§4.3",
        "Row-AdaGrad performs better than AdaGrad in this row-sparse setting.",
        "its regret is lower in every game, from zero and from a random start",
        "examples",
        _regrets("row"),
    ),
    Claim(
        "transposition",
        "§4.4",
        "Column-AdaGrad is Row-AdaGrad on the transpose.",
        "parameters agree to 1e-9 in float64",
        "examples",
        _transposition,
    ),
    Claim(
        "theorem-2",
        "Thm 2",
        "Column-AdaGrad's regret has the bounds of Theorem 1 with columns instead of rows.",
        "no game breaks either, with a stabilizer δ that meets App. E's condition and with one that does not",
        "examples",
        _theorem("column"),
    ),
    Claim(
        "ratio-of-columns",
        "App. F",
        "With column-sparse gradients the bound of Column-AdaGrad is √m times lower than that of AdaGrad.",
        "the ratio of the bounds is √m to 1e-9 in every game",
        "examples",
        _bounds("column"),
    ),
    Claim(
        "regret-of-columns",
        "App. F",
        "Column-AdaGrad outperforms AdaGrad in this column-sparse setting.",
        "its regret is lower in every game, from zero and from a random start",
        "examples",
        _regrets("column"),
    ),
    Claim(
        "stabilizer",
        "§4.2, App. E",
        "With the stabilizer's term the bound holds for any δ.",
        "no game breaks it",
        "examples",
        _inequalities("the same, with the stabilizer's term"),
    ),
    Claim(
        "memory",
        "§5.1",
        "Row-AdaGrad keeps m numbers, Column-AdaGrad n, AdaGrad m·n.",
        "the bytes of the states in float32 are 4m, 4n and 4mn",
        "examples",
        _memory,
    ),
)

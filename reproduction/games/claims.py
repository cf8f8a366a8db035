"""All claims that games judge: the analysis, and those about the motivating examples and the algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reproduction.games import analysis, motivating
from reproduction.games.analysis import ROUNDING
from reproduction.games.domains import DOMAINS
from reproduction.games.evidence import Evidence
from reproduction.verdict import Check, Claim

__all__ = ["CLAIMS"]

SAME = 1e-6  # the stabilizer, 1e-8, makes runs differ by less than this that are otherwise the same


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
            figures += f"; AdaGrad with η/√{_members(active)} follows it to {max(game.apart for game in some):.0e}"
            yield Check(circumstances, less == len(some), figures)

    return checks


def _members(active: str) -> str:
    return "n" if active == "row" else "m"


def _beyond_a_step_size(evidence: Evidence) -> Iterator[Check]:
    for active in ("row", "column"):
        games = [game for game in evidence.games() if game.config.active == active and game.expected_ratio > 1]
        less = sum(game.regret < (1 - SAME) * game.control_regret for game in games)
        apart, off = (
            max(game.apart for game in games),
            max(abs(game.control_regret / game.regret - 1) for game in games),
        )
        figures = f"less regret in {less} of {len(games)} games; iterates differ by at most {apart:.0e} of the radius, "
        yield Check(f"{active}s", less == len(games), figures + f"regrets by {off:.0e}")


def _tighter(evidence: Evidence) -> Iterator[Check]:
    for domain in DOMAINS:
        games = [g for g in evidence.domains() if g.config.domain == domain and g.config.structure == "row-sparse"]
        ratios = [game.ratio for game in games]
        figures = ", ".join(f"{game.ratio:.2f} with n = {game.config.n}" for game in games)
        yield Check(domain, min(ratios) > 1 + ROUNDING, f"the ratio of the bounds is {figures}")


def _from_sparsity(evidence: Evidence) -> Iterator[Check]:
    for domain in DOMAINS:
        games = [game for game in evidence.domains() if game.config.domain == domain]
        n = games[0].config.n
        ratios = {(g.config.structure, g.config.m, g.config.n): g.ratio for g in games}
        shapes = {(g.config.m, g.config.n) for g in games}
        holds = all(ratios["row-sparse", *shape] > (1 + ROUNDING) * ratios["dense", *shape] for shape in shapes)
        figures = ", ".join(f"{structure} {ratio:.2f}" for (structure, _, width), ratio in ratios.items() if width == n)
        yield Check(domain, holds, f"ratios with n = {n}: {figures}")


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
    *analysis.CLAIMS,
    Claim(
        "degeneration",
        "Remark 3",
        "On a matrix with one column, Row-AdaGrad is AdaGrad.",
        "parameters agree with torch.optim.Adagrad's to 1e-9 in float64",
        _degeneration,
    ),
    Claim(
        "degeneration-of-the-bound",
        "Remark 3",
        "On a matrix with one column, the bound is AdaGrad's too.",
        "bounds and regrets agree to 1e-9 in games whose active rows, or columns, have one entry",
        _degenerate_bound,
    ),
    Claim(
        "ratio-of-rows",
        "§4.3",
        "With row-sparse gradients the bound of Row-AdaGrad is √n times lower than that of AdaGrad.",
        "the ratio of the bounds is √n to 1e-9 in every game",
        _bounds("row"),
    ),
    Claim(
        "tighter-if-row-sparse",
        "Abstract, §4.3",
        "With row-sparse gradients, Row-AdaGrad's guarantee is strictly tighter than AdaGrad's …",
        "the ratio of their bounds is above 1 for every shape, on each domain",
        _tighter,
    ),
    Claim(
        "ratio-from-sparsity",
        "§4.3",
        "… because its geometry is aligned with the row-wise sparsity of the gradients.",
        "the ratio is larger with row-sparse than with dense gradients, for every shape, on each domain",
        _from_sparsity,
    ),
    Claim(
        "regret-of-rows",
        "§4.3",
        "Row-AdaGrad performs better than AdaGrad in this row-sparse setting.",
        "its regret is lower in every game, from zero and from a random start; the control is AdaGrad with η/√n",
        _regrets("row"),
    ),
    Claim(
        "beyond-a-step-size",
        "§4.3, App. F",
        "Adaptivity aligned with the structure of the gradients is more effective than that of entries.",
        "the regret is lower by more than 1e-6 than AdaGrad's with η/√n (η/√m for columns) too, in every game",
        _beyond_a_step_size,
    ),
    Claim(
        "transposition",
        "§4.4",
        "Column-AdaGrad is Row-AdaGrad on the transpose.",
        "parameters agree to 1e-9 in float64",
        _transposition,
    ),
    Claim(
        "ratio-of-columns",
        "App. F",
        "With column-sparse gradients the bound of Column-AdaGrad is √m times lower than that of AdaGrad.",
        "the ratio of the bounds is √m to 1e-9 in every game",
        _bounds("column"),
    ),
    Claim(
        "regret-of-columns",
        "App. F",
        "Column-AdaGrad outperforms AdaGrad in this column-sparse setting.",
        "its regret is lower in every game, from zero and from a random start; the control is AdaGrad with η/√m",
        _regrets("column"),
    ),
    Claim(
        "memory",
        "§5.1",
        "Row-AdaGrad keeps m numbers, Column-AdaGrad n, AdaGrad m·n.",
        "the bytes of the states in float32 are 4m, 4n and 4mn",
        _memory,
    ),
)

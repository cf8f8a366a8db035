"""The section on games: the motivating examples and their controls, the theory as played, and optimizer states."""

from __future__ import annotations

import math

from matrix_adagrad.pages.document import Axis, Figure, Line, Panel, Section, Table
from reproduction.games.analysis import BOUNDS
from reproduction.games.evidence import Evidence
from reproduction.games.theorems import STUBBORN
from reproduction.games.tradeoff import FACTORS

__all__ = ["section"]


def section(evidence: Evidence) -> Section:
    """All results of the games."""
    return Section(
        "games",
        "The motivating examples, and the theorems (§3, §4, App. E and F)",
        (
            "One row, or one column, is active in each round, and its label alternates. We compare the bound of the "
            "geometry aligned with the gradients with that of entry-wise AdaGrad. Both algorithms also play, with "
            "exact projections in their own metrics, from zero and from a random point. Their actual regret need not "
            "be ordered like the bounds.",
            "There are two controls. First, AdaGrad with η/√n: all entries of an active row have the same gradient, so "
            "the row's scale is √n times that of its entries, and this AdaGrad makes the same steps. Second, other "
            "domains and other gradients: the ratio of the bounds depends on the domain, and is the same for dense and "
            "for row-sparse gradients.",
        ),
        (
            *(_games(evidence), _domains(evidence), _theorems(evidence), _conditions(evidence)),
            *(_tradeoffs(evidence), _growth(evidence), _hindsight(evidence), _memory(evidence)),
        ),
    )


def _games(evidence: Evidence) -> Table:
    rows = []
    for game in evidence.games():
        config = game.config
        rows.append(
            (
                *(config.active, config.m, config.n, config.K, config.start),
                *(f"{game.bound:.3f}", f"{game.entry_bound:.3f}", f"{game.ratio:.4f}", f"{game.expected_ratio:.4f}"),
                *(f"{game.regret:.3f}", f"{game.entry_regret:.3f}"),
                _lower(game.regret, game.entry_regret),
                *(f"{game.control_regret:.3f}", f"{game.apart:.0e}"),
            )
        )
    return Table(
        "games",
        "The motivating examples as games",
        "Bounds and regrets of the aligned geometry and of entry-wise AdaGrad, on an m×n matrix, with K rounds per "
        "row or column, and whose regret is lower. The control is entry-wise AdaGrad with η/√n (η/√m for columns): its "
        "regret, and the largest distance of an entry from the aligned geometry's, over the radius, in any round.",
        (
            *("active", "m", "n", "K", "start", "bound", "entry bound", "ratio", "paper's ratio"),
            *("regret", "entry regret", "lower regret", "control's regret", "control apart"),
        ),
        tuple(rows),
    )


def _domains(evidence: Evidence) -> Table:
    rows = []
    for game in evidence.domains():
        config = game.config
        rows.append(
            (
                *(config.domain, config.structure, config.m, config.n),
                *(f"{game.bound:.1f}", f"{game.entry_bound:.1f}", f"{game.ratio:.2f}"),
                *(f"{game.regret:.2f}", f"{game.entry_regret:.2f}", _lower(game.regret, game.entry_regret, "row")),
            )
        )
    return Table(
        "domains",
        "Where the ratio comes from: domains and gradients",
        "Bounds and regrets of Row-AdaGrad and of entry-wise AdaGrad, each with η = D/√2, over mn rounds from zero. "
        "Gradients are ±1 on the active entries. On Frobenius and row balls the ratio is at least 1, and on boxes and "
        "column balls at most 1, whatever the gradients.",
        (
            *("domain", "gradients", "m", "n", "row bound", "entry bound", "ratio"),
            *("row regret", "entry regret", "lower regret"),
        ),
        tuple(rows),
    )


def _lower(aligned: float, entry: float, name: str = "aligned") -> str:
    if math.isclose(aligned, entry, rel_tol=1e-6):
        return "equal"
    return name if aligned < entry else "entry"


def _theorems(evidence: Evidence) -> Table:
    found: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
    for game in evidence.theorems():
        for claim in game.checked:
            if not claim.is_condition:
                found.setdefault((claim.place, claim.name), []).append((claim.is_guaranteed, claim.holds))
    rows = []
    for (place, name), checks in found.items():
        promised, other = ([held for met, held in checks if met is is_met] for is_met in (True, False))
        rows.append((place, name, len(promised), promised.count(False), len(other), other.count(False)))
    return Table(
        "inequalities",
        "Every inequality, in every game",
        f"{len(evidence.theorems())} games, by Row-AdaGrad and Column-AdaGrad, with δ from 1e-8 to 10⁶. Theorems 1 and "
        "2 are guaranteed if δ meets one of the conditions in the next table, which their statements do not mention. "
        "The table counts the games that meet one, those that do not, and how many of each break the inequality.",
        ("place", "inequality", "a condition met", "broken", "none met", "broken if none met"),
        tuple(rows),
    )


def _conditions(evidence: Evidence) -> Table:
    names = [*dict.fromkeys(check.name for game in evidence.theorems() for check in game.checked if check.is_condition)]
    rows = []
    for game in evidence.theorems():
        bounds = {check.name: check for check in game.checked if check.name in BOUNDS}
        rows.append(
            (
                *(game.config.game, game.config.learner, f"{game.config.delta:g}", f"{game.boundary:.0%}"),
                *("met" if game.meets(name) else "–" for name in names),
                *(f"{check.left / check.right:.3f}" if (check := bounds.get(name)) else "–" for name in BOUNDS),
            )
        )
    return Table(
        "conditions",
        "The conditions on the stabilizer, game by game",
        "Each condition is sufficient for Theorems 1 and 2, and none is necessary. The first two are the paper's (§4.2 "
        "and App. E). The others follow from the finer form of Cor. 2, and need no X_{T+1}. The last columns have the "
        "regret over each bound: above 1, the theorem fails. In the game at the end, which meets no condition, it does "
        f"so by hand: {STUBBORN}. Also shown is how many of the iterates lie on the boundary of the domain.",
        ("game", "learner", "δ", "on the boundary", *names, "regret / first bound", "regret / second bound"),
        tuple(rows),
    )


def _tradeoffs(evidence: Evidence) -> Figure:
    panels, doublings = [], tuple(map(math.log2, FACTORS))
    for game in evidence.tradeoffs():
        curves = {
            "bound": game.bound,
            "its evolution term": game.promised_evolution,
            "its gradient term": game.promised_gradients,
            "evolution, measured": game.evolution,
            "gradients, measured": game.gradients,
            "regret": game.regret,
        }
        panels.append(Panel(game.config.game, tuple(Line(name, doublings, values) for name, values in curves.items())))
    return Figure(
        "tradeoff",
        "The trade-off of §4.2, played",
        "Curves of the two terms of the bound, of the measured terms of Corollary 1, and of the regret against the "
        "step size, for each game. One term falls and the other rises; the bound is least at D/√2.",
        "Row-AdaGrad with multiples of η = D/√2. To multiply all scales by c is to divide η by c.",
        Axis("log₂ of η / (D/√2)"),
        Axis("regret, and terms of its bound", log=True),
        tuple(panels),
        "game",
    )


def _growth(evidence: Evidence) -> Figure:
    panels = []
    for delta in (1e-8, 1.0, 1e3):
        games = evidence.horizons(delta)
        lines = [Line(game.config.game, tuple(map(float, game.rounds)), game.regret) for game in games]
        rounds = lines[0].x
        lines += [
            Line(name, rounds, tuple(t**power for t in rounds), reference=True)
            for name, power in (("√T", 0.5), ("T", 1.0))
        ]
        panels.append(Panel(f"δ = {delta:g}", tuple(lines)))
    return Figure(
        "growth",
        "Regret against the number of rounds",
        "Curves of Row-AdaGrad's regret against the rounds on logarithmic axes, for each game and stabilizer, beside "
        "lines of slope one half and one. With a small or moderate δ all curves have a slope of about one half.",
        "After each doubling of the rounds. A large δ delays the slope of one half until T is of the order of δ².",
        Axis("rounds", log=True),
        Axis("regret", log=True, floor=0.3),
        tuple(panels),
        "δ",
    )


def _hindsight(evidence: Evidence) -> Table:
    rows = []
    for game in evidence.hindsights():
        config = game.config
        rows.append(
            (
                *(config.domain, config.learner, f"{config.drift:g}"),
                *(f"{game.bound:.1f}", f"{game.fixed_bound:.1f}", f"{game.bound / game.fixed_bound:.3f}"),
                *(f"{game.regret:.2f}", f"{game.fixed_regret:.2f}", f"{game.regret / game.fixed_regret:.3f}"),
            )
        )
    return Table(
        "hindsight",
        "Against the best proximal function in hindsight",
        "Linear losses with random gradients of drifting entries. The best fixed scales, s* = η √V_b / D, are known "
        "once the game is over. AdaGrad, which has to learn them, promises √2 times their bound.",
        (
            *("domain", "learner", "drift", "bound", "bound in hindsight", "ratio"),
            *("regret", "regret in hindsight", "ratio of regrets"),
        ),
        tuple(rows),
    )


def _memory(evidence: Evidence) -> Table:
    rows = []
    for found in evidence.identities():
        numbers = found.config.m * found.config.n
        rows += [(name, f"{size:,}", f"{size / 4 / numbers:.4f}") for name, size in found.states]
    return Table(
        "memory",
        "Memory of optimizer states",
        "Bytes for a 943 × 20 matrix in float32, and numbers of state per parameter.",
        ("optimizer", "bytes", "numbers per parameter"),
        tuple(rows),
    )

"""The paper's claims, each with the rule for its verdict, which was fixed before anything was run.

A claim is checked under all circumstances in which it was tried: settings that the paper leaves open, kinds of games.
If it holds under all of them it holds; if under some, it holds only if …; if under none, it does not hold here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from matrix_adagrad.experiments import mlp, motivating
from matrix_adagrad.experiments.evidence import Evidence
from matrix_adagrad.experiments.intervals import Interval, interval
from matrix_adagrad.experiments.plan import DEFAULT

__all__ = ["CLAIMS", "Check", "Claim", "Verdict", "judge"]

ROUNDING = 1e-9
BOUNDS = ("regret ≤ (Δ²/2η + η) Σ_b √V_b", "regret ≤ √2 D Σ_b √V_b")  # of Theorems 1 and 2


@dataclass(frozen=True)
class Check:
    """Whether a claim held under some circumstances, and the figures that say so."""

    circumstances: str
    holds: bool
    figures: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it is judged.

    Args:
        id: a short name.
        place: where the paper says it.
        statement: what it says.
        rule: when it counts as true, in words; ``checks`` is the same in code.
        experiment: what has to be run.
        checks: under each of the circumstances.
    """

    id: str
    place: str
    statement: str
    rule: str
    experiment: str
    checks: Callable[[Evidence], Iterator[Check]]

    @property
    def command(self) -> str:
        """What reproduces it."""
        return f"matrix-adagrad reproduce {self.experiment}"


@dataclass(frozen=True)
class Verdict:
    """A claim, and what came out."""

    claim: Claim
    checks: tuple[Check, ...]

    @property
    def text(self) -> str:
        """holds, holds only if …, does not hold here, or not run."""
        good = [check.circumstances for check in self.checks if check.holds]
        if not self.checks:
            return "not run"
        if len(good) == len(self.checks):
            return "holds"
        return f"holds only if: {'; or '.join(good)}" if good else "does not hold here"

    @property
    def figures(self) -> str:
        """Of all circumstances, a line for each."""
        if len(self.checks) == 1:
            return self.checks[0].figures
        return "\n".join(
            f"{'✓' if check.holds else '✗'} {check.circumstances}: {check.figures}" for check in self.checks
        )

    def to_dict(self) -> dict[str, object]:
        """For claims.json."""
        claim = self.claim
        return {
            "id": claim.id,
            "place": claim.place,
            "statement": claim.statement,
            "rule": claim.rule,
            "figures": [{"if": c.circumstances, "holds": c.holds, "figures": c.figures} for c in self.checks],
            "verdict": self.text,
            "command": claim.command,
        }


def judge(evidence: Evidence) -> list[Verdict]:
    """All claims, in the order of the paper."""
    return [Verdict(claim, tuple(claim.checks(evidence))) for claim in CLAIMS]


# ------------------------------------------------------------------------------------------------ the theory, played


def _inequalities(*names: str, promised: bool = True) -> Callable[[Evidence], Iterator[Check]]:
    """Inequalities with one of these names in every game."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        found = [one for game in evidence.theorems() for one in game.checked if one.name in names]
        found = [one for one in found if one.is_promised or not promised]
        if found:
            least = min(one.right - one.left for one in found)
            broken = sum(not one.holds for one in found)
            yield Check("", not broken, f"{broken} of {len(found)} broken, least slack {least:.3g}")

    return checks


def _theorem(learner: str) -> Callable[[Evidence], Iterator[Check]]:
    def checks(evidence: Evidence) -> Iterator[Check]:
        games = [game for game in evidence.theorems() if game.config.learner == learner]
        found = [one for game in games for one in game.checked if one.name in BOUNDS]
        for circumstances, met in (("δ meets the condition of App. E", True), ("δ does not", False)):
            some = [one for one in found if one.is_promised is met]
            if some:
                worst = max(some, key=lambda one: one.left / one.right)
                broken = sum(not one.holds for one in some)
                figures = f"{broken} of {len(some)} broken; regret at most {worst.left / worst.right:.2f} of its bound"
                yield Check(circumstances, not broken, figures)

    return checks


def _bounds(active: str) -> Callable[[Evidence], Iterator[Check]]:
    def checks(evidence: Evidence) -> Iterator[Check]:
        games = [game for game in evidence.games() if game.config.active == active]
        if games:
            off = max(abs(game.ratio / game.expected_ratio - 1) for game in games)
            seen = f"{min(g.ratio for g in games):.4g} to {max(g.ratio for g in games):.4g}"
            yield Check("", off < ROUNDING, f"ratios from {seen} in {len(games)} games, off by {off:.1g}")

    return checks


def _regrets(active: str) -> Callable[[Evidence], Iterator[Check]]:
    def kind(game: motivating.Result) -> str:
        config = game.config
        length = "long games (K ≥ 100)" if config.K >= 100 else "short games"
        count = config.m if active == "row" else config.n
        return f"{length}, an {'odd' if count % 2 else 'even'} number of {active}s"

    def checks(evidence: Evidence) -> Iterator[Check]:
        games = [game for game in evidence.games() if game.config.active == active]
        for circumstances in sorted({kind(game) for game in games}):
            some = [game for game in games if kind(game) == circumstances]
            less = sum(game.regret < (1 - ROUNDING) * game.entry_regret for game in some)
            yield Check(circumstances, less == len(some), f"less regret in {less} of {len(some)} games")

    return checks


def _degeneration(evidence: Evidence) -> Iterator[Check]:
    for found in evidence.identities():
        figures = f"largest difference {found.degeneration:.1g} after {found.config.steps} steps"
        yield Check("", found.degeneration < ROUNDING, figures)


def _transposition(evidence: Evidence) -> Iterator[Check]:
    for found in evidence.identities():
        figures = f"largest difference {found.transposition:.1g} after {found.config.steps} steps"
        yield Check("", found.transposition < ROUNDING, figures)


def _memory(evidence: Evidence) -> Iterator[Check]:
    for found in evidence.identities():
        m, n, states = found.config.m, found.config.n, dict(found.states)
        expected = {"RowAdaGrad": 4 * m, "ColumnAdaGrad": 4 * n, "Adagrad": 4 * m * n}
        seen = ", ".join(f"{name} {states[name]:,}" for name in expected)
        yield Check("", all(states[name] == size for name, size in expected.items()), f"bytes for {m}×{n}: {seen}")


# --------------------------------------------------------------------------------------------------------- MovieLens


def _named(setting: str) -> str:
    return "the default setting" if setting == DEFAULT else setting


def _row_beats_entry(evidence: Evidence) -> Iterator[Check]:
    for setting in evidence.settings:
        by = evidence.advantage(setting, "row", "entry")
        yield Check(_named(setting), by.low > 0, f"RMSE lower by {by}")


def _column_is_worst(evidence: Evidence) -> Iterator[Check]:
    for setting in evidence.settings:
        over = {other: evidence.advantage(setting, other, "column") for other in ("row", "entry")}
        figures = ", ".join(f"{by} above {other}" for other, by in over.items())
        yield Check(_named(setting), all(by.low > 0 for by in over.values()), f"RMSE {figures}")


def _storage(evidence: Evidence) -> Iterator[Check]:
    mirrored = {geometry: evidence.transposed(geometry) for geometry in ("column", "row")}
    if all(mirrored.values()):
        rows = {geometry: evidence.factorised(DEFAULT, geometry) for geometry in ("row", "column")}
        pairs = [*zip(mirrored["column"], rows["row"], strict=True), *zip(mirrored["row"], rows["column"], strict=True)]
        off = max(abs(one.final - other.final) for one, other in pairs)
        by = interval(r.final - c.final for r, c in zip(mirrored["row"], mirrored["column"], strict=True))
        figures = f"as columns, Column-AdaGrad is ahead of Row-AdaGrad by {by}; largest difference to rows {off:.1g}"
        yield Check("", by.low > 0 and off < 1e-3, figures)


# -------------------------------------------------------------------------------------------------------------- MLPs

Networks = Callable[..., mlp.Result | None]


def _settings(evidence: Evidence, lr: float, depth: int) -> Iterator[tuple[str, Networks]]:
    """The settings that were run at this learning rate and depth, and what finds an optimizer's networks there."""
    for name, setting, eps in (
        ("setting A", "A", 1e-8),
        ("setting B with eps 1e-8", "B", 1e-8),
        ("setting B with eps 1e-16", "B", 1e-16),
    ):
        if evidence.networks(setting, eps, depth, lr, "Row-wise Momentum") is not None:

            def find(
                optimizer: str, depth: int = depth, lr: float = lr, setting: str = setting, eps: float = eps
            ) -> mlp.Result | None:
                return evidence.networks(setting, eps, depth, lr, optimizer)

            yield name, find


def _seen(result: mlp.Result, gain: Interval) -> str:
    below = sum(loss < linear for loss, linear in zip(result.losses, result.linear, strict=True))
    return f"{below} of {len(result.losses)} seeds below the linear fit, gain {gain}"


def _trains(optimizer: str, lr: float, depth: int, expected: bool = True) -> Callable[[Evidence], Iterator[Check]]:
    """Whether the gain over the linear fit is positive, or whether it is certain that there is none."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        for name, find in _settings(evidence, lr, depth):
            if (result := find(optimizer)) is not None:
                gain = evidence.gain(result)
                yield Check(name, gain.low > 0 if expected else gain.high <= 0, _seen(result, gain))

    return checks


def _unstable(evidence: Evidence) -> Iterator[Check]:
    for name, find in _settings(evidence, 0.01, 15):
        adam, row = find("Adam"), find("Row-wise Momentum")
        if adam and row:
            by = interval(a - r for a, r in zip(evidence.fluctuations(adam), evidence.fluctuations(row), strict=True))
            yield Check(name, by.low > 0, f"Adam's loss moves more from point to point, by {by} (of its logarithm)")


def _calmer(evidence: Evidence) -> Iterator[Check]:
    for name, find in _settings(evidence, 0.01, 15):
        found = []
        for optimizer in ("Adam", "Row-wise Momentum"):
            large, small = find(optimizer), find(optimizer, lr=0.001)
            if large and small:
                pairs = zip(evidence.fluctuations(large), evidence.fluctuations(small), strict=True)
                found.append((optimizer, interval(one - other for one, other in pairs)))
        if found:
            figures = ", ".join(f"{optimizer}: {by}" for optimizer, by in found)
            yield Check(name, all(by.low > 0 for _, by in found), f"less movement at lr 0.001, {figures}")


def _lower_loss(evidence: Evidence) -> Iterator[Check]:
    for name, find in _settings(evidence, 0.001, 15):
        adam, row = find("Adam"), find("Row-wise Momentum")
        if adam and row:
            by = evidence.excess(adam, row)
            yield Check(name, by.low > 0, f"Adam's loss over the linear fit's is above row's by {by}")


def _not_a_learning_rate(evidence: Evidence) -> Iterator[Check]:
    """Rows must beat entries at the rows' own size of step."""
    for name, find in _settings(evidence, 0.01, 25):
        adam, row, mean = find("Adam, lr/√width"), find("Row-wise Momentum"), find("Row-wise, mean")
        if adam and row and mean:
            by = evidence.excess(adam, row)
            other = f"rows at Adam's size of step (the mean): {_seen(mean, evidence.gain(mean))}"
            yield Check(name, by.low > 0, f"loss of Adam at lr/√width above row's by {by}; {other}")


def _ten_times(evidence: Evidence) -> Iterator[Check]:
    for name, find in _settings(evidence, 0.01, 25):
        row, adam = find("Row-wise Momentum"), find("Adam", lr=0.001)
        if row and adam:
            gains = evidence.gain(row), evidence.gain(adam)
            figures = f"rows at 0.01: {_seen(row, gains[0])}; Adam at 0.001: {_seen(adam, gains[1])}"
            yield Check(name, gains[0].low > 0 and gains[1].high <= 0, figures)


def _columns_alike(evidence: Evidence) -> Iterator[Check]:
    for lr in (0.01, 0.001):
        for depth in (15, 25):
            for name, find in _settings(evidence, lr, depth):
                column, row = find("Column-wise Momentum"), find("Row-wise Momentum")
                if column and row:
                    by = evidence.excess(column, row)
                    figures = f"loss above rows' by {by}; {_seen(column, evidence.gain(column))}"
                    yield Check(f"{name}, {depth} layers, lr {lr}", by.low <= 0 <= by.high, figures)


TRAINS = "trains: the mean over seeds of 1 - loss / (loss of the seed's best linear fit) has a 95 % interval above 0"
FAILS = "fails: the mean over seeds of 1 - loss / (loss of the seed's best linear fit) has a 95 % interval not above 0"
PAIRED = "the 95 % interval of the paired difference of test RMSE over folds, each with its own tuned learning rate"

CLAIMS = (
    Claim(
        "corollary-1",
        "Cor. 1",
        "The regret of mirror descent with an adaptive proximal function is at most the general bound.",
        "no game breaks it, with the last divergence and without",
        "examples",
        _inequalities("regret ≤ general bound", "regret ≤ general bound, negative term dropped"),
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
        "On a matrix of one column Row-AdaGrad is AdaGrad.",
        "parameters agree with torch.optim.Adagrad's to 1e-9 in float64",
        "examples",
        _degeneration,
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
        "its regret is the lower one in every game, from zero and from a random start",
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
        "its regret is the lower one in every game, from zero and from a random start",
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
        "rows-beat-entries",
        "§5.1, Fig. 1",
        "On MovieLens 100K, Row-AdaGrad substantially outperforms AdaGrad.",
        f"{PAIRED} (AdaGrad's minus Row-AdaGrad's) is above 0",
        "movielens",
        _row_beats_entry,
    ),
    Claim(
        "columns-are-worst",
        "§5.1, Fig. 1",
        "Column-AdaGrad performs the worst of the three.",
        f"{PAIRED} (Column-AdaGrad's minus each of the others') is above 0",
        "movielens",
        _column_is_worst,
    ),
    Claim(
        "storage",
        "§5.1",
        "With embeddings stored as columns, Row-AdaGrad and Column-AdaGrad change places.",
        "the interval of Row-AdaGrad's RMSE minus Column-AdaGrad's is above 0 there, and RMSEs agree to 0.001 with "
        "those "
        "of the mirror image",
        "movielens",
        _storage,
    ),
    Claim(
        "memory",
        "§5.1",
        "Row-AdaGrad keeps m numbers, Column-AdaGrad n, AdaGrad m·n.",
        "the bytes of the states in float32 are 4m, 4n and 4mn",
        "examples",
        _memory,
    ),
    Claim(
        "entries-oscillate-at-15",
        "§5.2, Fig. 2",
        "At 15 layers and lr 0.01, entry-wise scaling is highly unstable, with pronounced oscillations of the loss.",
        "the 95 % interval over seeds of Adam's mean movement of log loss minus row-wise's, in the last half, is "
        "above 0",
        "mlp",
        _unstable,
    ),
    Claim(
        "entries-fail-at-22",
        "§5.2",
        "At 22 layers and lr 0.01, entry-wise scaling fails already.",
        f"Adam {FAILS}",
        "mlp",
        _trains("Adam", 0.01, 22, expected=False),
    ),
    Claim(
        "entries-fail-at-25",
        "§5.2, Fig. 2",
        "At 25 layers and lr 0.01, entry-wise scaling is untrainable.",
        f"Adam {FAILS}",
        "mlp",
        _trains("Adam", 0.01, 25, expected=False),
    ),
    Claim(
        "rows-train-at-25",
        "§5.2, Fig. 2",
        "At 25 layers and lr 0.01, row-wise scaling trains.",
        f"Row-wise Momentum {TRAINS}",
        "mlp",
        _trains("Row-wise Momentum", 0.01, 25),
    ),
    Claim(
        "not-a-learning-rate",
        "§5.2",
        "Row-wise scaling has different dynamics, it is not merely a different learning rate.",
        "at 25 layers the 95 % interval over seeds of the loss of Adam at lr/√width, which is the size of step that "
        "rows "
        "give, minus that of Row-wise Momentum, is above 0",
        "mlp",
        _not_a_learning_rate,
    ),
    Claim(
        "calmer-at-0.001",
        "App. G, Fig. 3",
        "At 15 layers both methods fluctuate less with lr 0.001.",
        "the 95 % interval over seeds of the mean movement of log loss at 0.01 minus that at 0.001 is above 0 for both",
        "mlp",
        _calmer,
    ),
    Claim(
        "rows-lower-at-15",
        "App. G, Fig. 3",
        "At 15 layers and lr 0.001, row-wise scaling reaches a lower training loss than Adam.",
        "the 95 % interval over seeds of Adam's loss minus Row-wise Momentum's is above 0",
        "mlp",
        _lower_loss,
    ),
    Claim(
        "entries-fail-at-0.001",
        "§5.2, App. G, Fig. 3",
        "At 25 layers Adam fails with lr 0.001 too: a large learning rate is not the reason.",
        f"Adam {FAILS}",
        "mlp",
        _trains("Adam", 0.001, 25, expected=False),
    ),
    Claim(
        "rows-train-at-0.001",
        "App. G, Fig. 3",
        "At 25 layers and lr 0.001, row-wise scaling trains.",
        f"Row-wise Momentum {TRAINS}",
        "mlp",
        _trains("Row-wise Momentum", 0.001, 25),
    ),
    Claim(
        "ten-times",
        "App. G",
        "Row-wise scaling trains at a rate ten times larger than one at which entry-wise scaling fails.",
        f"at 25 layers Row-wise Momentum at 0.01 {TRAINS}; Adam at 0.001 {FAILS}",
        "mlp",
        _ten_times,
    ),
    Claim(
        "columns-alike",
        "§5.2, footnote",
        "Column-wise scaling gives similar results.",
        "the 95 % interval over seeds of Column-wise Momentum's loss minus Row-wise Momentum's contains 0",
        "mlp",
        _columns_alike,
    ),
)

"""The paper's claims about factorising MovieLens (§5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from matrix_adagrad.intervals import Interval, interval, nested_interval
from reproduction.movielens.evidence import Evidence, Factorised, after
from reproduction.movielens.sweep import DEFAULT, EARLY, GEOMETRIES
from reproduction.verdict import Check, Claim

__all__ = ["CLAIMS", "LEVEL"]

SUBSTANTIAL = 0.01  # of the RMSE
LEVEL = 1.01  # times the lowest final RMSE of the three
PAIRED = "(95 % interval of the paired difference over folds and starts; learning rates chosen by cross-validation)"
LEFT_OUT = "Settings in which no optimizer beats the mean of the training ratings support nothing, and do not count"


def _named(setting: str) -> str:
    return "the default setting" if setting == DEFAULT else setting


def _in_each(check: Callable[[Evidence, str], Check]) -> Callable[[Evidence], Iterator[Check]]:
    """A check of every setting. It counts where something was learned."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        for setting in evidence.size.settings:
            found = check(evidence, setting)
            if evidence.learns(setting):
                yield found
            else:
                why = f"; but no optimizer beats the mean of the training ratings, {evidence.constant(setting):.3f}"
                yield replace(found, figures=found.figures + why, counts=False)
        if not any(map(evidence.learns, evidence.size.settings)):
            yield Check("", None, "no optimizer beats the mean of the training ratings in any setting")

    return checks


def _all(signs: list[bool | None]) -> bool | None:
    """``True`` if all are, ``False`` if any is, ``None`` if that is not decided."""
    return False if False in signs else None if None in signs else True


def _row_beats_entry(least: float) -> Callable[[Evidence, str], Check]:
    """Check that Row-AdaGrad is ahead by more than this fraction of AdaGrad's RMSE."""

    def check(evidence: Evidence, setting: str) -> Check:
        folds = zip(evidence.models(setting, "entry"), evidence.models(setting, "row"), strict=True)
        by = nested_interval(
            [(e.final - r.final) / e.final - least for e, r in zip(*fold, strict=True)] for fold in folds
        )
        ahead = evidence.advantage(setting, "row", "entry")
        figures = f"AdaGrad's RMSE minus Row-AdaGrad's: {ahead}, {100 * (by.mean + least):+.2f} %"
        return Check(_named(setting), by.is_positive, figures)

    return check


def _column_is_worst(evidence: Evidence, setting: str) -> Check:
    over = {other: evidence.advantage(setting, other, "column") for other in ("row", "entry")}
    figures = ", ".join(f"{by} above {other}" for other, by in over.items())
    return Check(_named(setting), _all([by.is_positive for by in over.values()]), f"RMSE {figures}")


def _is_ahead(what: str, measure: Callable[[Factorised], float]) -> Callable[[Evidence, str], Check]:
    """Check that a measure of Row-AdaGrad's is below AdaGrad's."""

    def check(evidence: Evidence, setting: str) -> Check:
        by = evidence.advantage(setting, "row", "entry", measure)
        means = [evidence.mean(setting, geometry, measure) for geometry in ("row", "entry")]
        figures = f"{what} {means[0]:.3f} against {means[1]:.3f}; AdaGrad's minus Row-AdaGrad's: {by}"
        return Check(_named(setting), by.is_positive, figures)

    return check


def _is_faster(evidence: Evidence, setting: str) -> Check:
    level = LEVEL * min(evidence.mean(setting, geometry) for geometry in GEOMETRIES)
    by = evidence.advantage(setting, "row", "entry", lambda model: model.epochs_to(level))
    means = [evidence.mean(setting, geometry, lambda model: model.epochs_to(level)) for geometry in ("row", "entry")]
    figures = f"{means[0]:.1f} against {means[1]:.1f} epochs to {level:.3f}; AdaGrad's minus Row-AdaGrad's: {by}"
    return Check(_named(setting), by.is_positive, figures)


def _leads_early(evidence: Evidence) -> Iterator[Check]:
    yield from _in_each(_leads_early_in)(evidence)
    if evidence.learns(DEFAULT):
        by = [evidence.early_advantage("row", "entry", number) for number in range(len(EARLY))]
        yield _early("the default setting, each learning rate chosen for that epoch", by)


def _leads_early_in(evidence: Evidence, setting: str) -> Check:
    by = [evidence.advantage(setting, "row", "entry", after(epoch)) for epoch in EARLY]
    return _early(_named(setting), by)


def _early(circumstances: str, by: list[Interval]) -> Check:
    parts = [f"{each} after {epoch}" for epoch, each in zip(EARLY, by, strict=True)]
    figures = f"AdaGrad's RMSE minus Row-AdaGrad's: {', '.join(parts)} epochs"
    return Check(circumstances, _all([each.is_positive for each in by]), figures)


def _storage(evidence: Evidence) -> Iterator[Check]:
    mirrored = {geometry: evidence.transposed(geometry) for geometry in ("column", "row")}
    rows = {geometry: [fold[0].final for fold in evidence.models(DEFAULT, geometry)] for geometry in ("row", "column")}
    pairs = [*zip(mirrored["column"], rows["row"], strict=True), *zip(mirrored["row"], rows["column"], strict=True)]
    off = max(abs(left - right) for left, right in pairs)
    by = interval(r - c for r, c in zip(mirrored["row"], mirrored["column"], strict=True))
    figures = f"as columns, Column-AdaGrad is ahead of Row-AdaGrad by {by}; largest difference from rows {off:.1g}"
    yield Check("", bool(by.is_positive) and off < 1e-3, figures)


CLAIMS = (
    Claim(
        "rows-beat-entries",
        "§5.1, Fig. 1",
        "On MovieLens 100K, Row-AdaGrad outperforms AdaGrad …",
        f"after the last epoch, AdaGrad's test RMSE minus Row-AdaGrad's, relative to AdaGrad's, is above 0 {PAIRED}. "
        f"{LEFT_OUT}",
        _in_each(_row_beats_entry(0.0)),
    ),
    Claim(
        "rows-beat-entries-substantially",
        "§5.1, Fig. 1",
        "… substantially.",
        f"the same difference is above {SUBSTANTIAL:.0%}",
        _in_each(_row_beats_entry(SUBSTANTIAL)),
    ),
    Claim(
        "rows-lead-early",
        "Fig. 1",
        "Row-AdaGrad's curve is below AdaGrad's in early epochs.",
        f"AdaGrad's test RMSE minus Row-AdaGrad's is above 0 after {EARLY[0]}, {EARLY[1]} and {EARLY[2]} epochs "
        f"{PAIRED}, also if each learning rate is chosen for that epoch and not for the last one",
        _leads_early,
    ),
    Claim(
        "rows-have-less-area",
        "Fig. 1",
        "Row-AdaGrad's curve has the smaller area under it.",
        f"the mean over epochs of AdaGrad's test RMSE minus Row-AdaGrad's is above 0 {PAIRED}",
        _in_each(_is_ahead("mean RMSE over epochs", lambda model: model.area)),
    ),
    Claim(
        "rows-need-fewer-epochs",
        "Fig. 1",
        "Row-AdaGrad needs fewer epochs to a given RMSE.",
        f"the epochs until test RMSE is within {LEVEL - 1:.0%} of the lowest final mean of the three: AdaGrad's minus "
        f"Row-AdaGrad's is above 0 {PAIRED}. A model that never gets there counts as one epoch more than were run",
        _in_each(_is_faster),
    ),
    Claim(
        "rows-train-better",
        "abstract, §5.1",
        "Exploiting row-wise structure improves optimization performance: Row-AdaGrad's training error is lower.",
        f"after the last epoch, AdaGrad's RMSE on the training ratings minus Row-AdaGrad's is above 0 {PAIRED}",
        _in_each(_is_ahead("training RMSE", lambda model: model.trained)),
    ),
    Claim(
        "columns-are-worst",
        "§5.1, Fig. 1",
        "Column-AdaGrad performs the worst of the three.",
        f"Column-AdaGrad's test RMSE minus each of the others' is above 0 {PAIRED}. {LEFT_OUT}",
        _in_each(_column_is_worst),
    ),
    Claim(
        "storage",
        "§5.1",
        "With embeddings stored as columns, Row-AdaGrad and Column-AdaGrad trade places.",
        "with columns, the interval over folds of Row-AdaGrad's RMSE minus Column-AdaGrad's is above 0, and each RMSE "
        "agrees to 0.001 with that of the mirrored run with rows",
        _storage,
    ),
)

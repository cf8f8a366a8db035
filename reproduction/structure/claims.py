"""The paper's claims about when rows pay, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from matrix_adagrad.intervals import Interval
from reproduction.structure import cost
from reproduction.structure.evidence import LEVEL, Evidence
from reproduction.structure.planted import Structure
from reproduction.structure.sweep import NONE, PROPORTIONAL, STRUCTURES
from reproduction.verdict import Check, Claim

__all__ = ["CLAIMS"]

ROUNDING = 1e-6
SPARSE = ("one active row", "Zipf rows")
STRONG = {share: Structure(within_rows=share) for share in (0.75, 0.9)}


def _is_positive(advantage: Interval) -> bool | None:
    """Whether it is above 0 beyond noise. It is not if it is surely below `LEVEL`; between, it is not decided."""
    return True if advantage.low > ROUNDING else False if advantage.high < LEVEL else None


def _all(judged: Sequence[bool | None]) -> bool | None:
    return False if False in judged else None if None in judged else True


def _percent(found: Interval) -> str:
    return f"{found.mean:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"


def _advantage(structures: dict[str, Structure]) -> Callable[[Evidence], Iterator[Check]]:
    """Whether row-wise scaling has less regret or loss than entry-wise scaling, on all of these structures."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        for task in _tasks(evidence):
            found = {name: evidence.outcome(task, own).excess("entry", "row") for name, own in structures.items()}
            figures = ", ".join(f"{name}: {_percent(each)}" for name, each in found.items())
            yield Check(_circumstances(task), _all([_is_positive(each) for each in found.values()]), figures)

    return checks


def _reason(structures: dict[str, Structure]) -> Callable[[Evidence], Iterator[Check]]:
    """Whether that advantage is larger than without any structure."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        for task in _tasks(evidence):
            plain = evidence.outcome(task, NONE)
            without, found = plain.excesses("entry", "row"), {}
            for name, own in structures.items():
                outcome = evidence.outcome(task, own)
                gains = zip(outcome.excesses("entry", "row"), without, strict=True)
                found[name] = outcome.relative([mine - base for mine, base in gains])
            figures = ", ".join(f"{name}: {_percent(each)}" for name, each in found.items())
            figures += f" (the advantage without structure is {_percent(plain.excess('entry', 'row'))})"
            yield Check(_circumstances(task), _all([_is_positive(each) for each in found.values()]), figures)

    return checks


def _alignment(evidence: Evidence) -> Iterator[Check]:
    for task in evidence.tasks:
        for what, structures in (("frequency", ("Zipf rows", "Zipf columns")), ("size", ("row sizes", "column sizes"))):
            pairs = (("row", "column"), ("column", "row"))
            found = [
                evidence.outcome(task, name).excess(other, aligned)
                for name, (aligned, other) in zip(structures, pairs, strict=True)
            ]
            shown = zip(structures, pairs, found, strict=True)
            figures = [f"{name}, {other} over {aligned}: {_percent(each)}" for name, (aligned, other), each in shown]
            circumstances = f"{_circumstances(task)}, different {what}"
            yield Check(circumstances, _all([_is_positive(each) for each in found]), ", ".join(figures))


def _cheaper(evidence: Evidence) -> Iterator[Check]:
    for circumstances, pairs in (
        ("on the same side", {"row": "full, by row", "column": "full, by column"}),
        ("rows against a full metric of columns", {"row": "full, by column"}),
    ):
        judged, figures = [], []
        for result in evidence.costs():
            for mine, theirs in pairs.items():
                own, full = _of(result, mine), _of(result, theirs)
                judged.append(own[0] < full[0] and own[1:] == (0, 0) and full[2] > 0)
                figures.append(
                    f"{result.config.m} × {result.config.n}, {mine}: {own[0]:,} against {full[0]:,} bytes, "
                    f"{own[2]} against {full[2]} matrix roots"
                )
        yield Check(circumstances, all(judged), "; ".join(figures))


def _of(result: cost.Result, name: str) -> tuple[int, int, int]:
    at = list(cost.GEOMETRIES).index(name)
    return result.state[at], result.products[at], result.roots[at]


def _tasks(evidence: Evidence) -> Iterator[str]:
    return (task for task in evidence.tasks if task != PROPORTIONAL)


def _circumstances(task: str) -> str:
    return f"{task}: loss" if task.startswith("training") else f"regret on the {task}"


_FIGURES = (
    f"✓: a 95 % interval above 0, paired over seeds. ✗: an interval below {LEVEL:.0%}, so that a relevant advantage is "
    "ruled out. Each geometry has the best learning rate of its own, found on other seeds."
)

CLAIMS = (
    Claim(
        "sparse-rows",
        "§4.3",
        "We expect Row-AdaGrad to outperform entry-wise AdaGrad when the gradient matrices are concentrated on a few "
        "rows (row-wise sparsity).",
        "With one active row per round, drawn evenly and drawn with Zipf frequencies, entry-wise scaling has more loss "
        f"or regret. {_FIGURES}",
        _advantage({name: STRUCTURES[name] for name in SPARSE}),
    ),
    Claim(
        "sparsity-is-why",
        "§4.3",
        "Aligning the adaptivity with the structure of the gradients (here, row-wise sparsity) is more effective.",
        "The advantage of rows over entries is larger with one active row per round, of both kinds, than with dense "
        f"gradients of no structure. {_FIGURES}",
        _reason({name: STRUCTURES[name] for name in SPARSE}),
    ),
    Claim(
        "correlated-rows",
        "§4.3, §5.1",
        "We expect Row-AdaGrad to outperform entry-wise AdaGrad when the entries within each row are strongly "
        "correlated (intra-row dependency).",
        f"At correlations of 0.75 and 0.9 within rows, entry-wise scaling has more loss or regret. {_FIGURES}",
        _advantage({f"correlation {share}": own for share, own in STRONG.items()}),
    ),
    Claim(
        "correlation-is-why",
        "§4.3 (footnote), §5.1",
        "Exploiting intra-row dependency is what benefits Row-AdaGrad.",
        "The advantage of rows over entries is larger at correlations of 0.75 and 0.9 within rows than at none. "
        f"{_FIGURES}",
        _reason({f"correlation {share}": own for share, own in STRONG.items()}),
    ),
    Claim(
        "alignment",
        "§5.1",
        "What matters is the alignment of the geometry with the organization of the parameters, not the row-wise "
        "direction itself.",
        "If rows differ in frequency (Zipf), or in the size of their gradients, Column-AdaGrad has more loss or regret "
        f"than Row-AdaGrad; if columns do, less. {_FIGURES}",
        _alignment,
    ),
    Claim(
        "cheaper-than-shampoo",
        "§6",
        "Unlike one-sided Shampoo, it needs no matrix power, which substantially reduces computation and memory.",
        "In every shape, a step keeps fewer bytes, and takes no matrix product and no matrix root, where the full "
        "metric takes at least one. Counted, not timed.",
        _cheaper,
    ),
)

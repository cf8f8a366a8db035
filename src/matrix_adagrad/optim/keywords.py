"""Keywords that an optimizer does not have: what was probably meant, and what to do instead."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

__all__ = ["FOREIGN", "refuse_foreign", "refuse_unknown"]

# Options of other optimizers, or other names for ours; the families add each other's.
FOREIGN = {
    "alpha": "it is an option of RMSprop",
    "amsgrad": "it is an option of Adam",
    "dampening": "it is an option of SGD",
    "epsilon": "did you mean 'eps'?",
    "geometry": "its geometry is fixed; MatrixAdaGrad and MatrixMomentum take any",
    "learning_rate": "did you mean 'lr'?",
    "lr_decay": "use a scheduler",
    "momentum": "it is an option of SGD; MatrixMomentum has 'betas'",
    "wd": "did you mean 'weight_decay'?",
}


def refuse_unknown(
    name: str, given: Iterable[str], options: Collection[str], *, only_near_misses: bool = False
) -> None:
    """Raise an error for an option that the owner of this name does not have.

    With ``only_near_misses``, it must be another optimizer's option, or almost one of these. Other keys of a group are
    allowed, as in torch: schedulers, trainers and users keep notes of their own there.
    """
    for key in given:
        hint = _hint(key, options)
        if key not in options and (hint or not only_near_misses):
            raise TypeError(f"{name} got an unknown option {key!r}: {hint or f'it has {sorted(options)}'}")


def _hint(key: str, options: Collection[str]) -> str:
    near = difflib.get_close_matches(str(key), options, n=1, cutoff=0.8)
    if key in FOREIGN:
        return FOREIGN[key]
    if near and abs(len(near[0]) - len(key)) <= 2:  # longer names, like weight_decay_mult, are meant
        return f"did you mean {near[0]!r}?"
    return ""


def refuse_foreign(saved: Mapping[str, Any], options: Collection[str]) -> dict[str, Any]:
    """A saved group without other optimizers' options; an error for one in use, without which the run cannot go on."""
    for key in ("amsgrad", "lr_decay"):
        if key not in options and saved.get(key):
            raise ValueError(
                f"the saved run used {key}={saved[key]!r}, which is not supported: {FOREIGN[key]}; nothing was loaded"
            )
    return {key: value for key, value in saved.items() if key in options or key not in FOREIGN}

"""What each option of a parameter group may be, checked where it is given."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Literal, NamedTuple, TypedDict

from torch import Tensor

from matrix_adagrad import native
from matrix_adagrad.domains import Domain

__all__ = [
    "MUON_OPTIONS",
    "AdaGradOptions",
    "MomentumOptions",
    "check_options",
    "check_values",
    "refuse_foreign",
    "refuse_unknown",
    "refuse_unknown_keywords",
]

Reduction = Literal["sum", "mean"]


class CommonOptions(TypedDict, total=False):
    """The keywords that all optimizers of this package share, besides ``lr`` and ``geometry``."""

    reduction: Reduction
    eps: float
    weight_decay: float
    decoupled_weight_decay: bool
    domain: Domain | None
    project_start: bool
    stochastic_rounding: bool
    maximize: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


class AdaGradOptions(CommonOptions, total=False):
    """The keywords of `MatrixAdaGrad`, besides ``lr`` and ``geometry``."""

    initial_accumulator_value: float


class MomentumOptions(CommonOptions, total=False):
    """The keywords of `MatrixMomentum`, besides ``lr`` and ``geometry``."""

    betas: tuple[float, float]
    bias_correction: bool


class _Allowed(NamedTuple):
    words: str
    is_type: Callable[[Any], bool]
    is_value: Callable[[Any], bool] = lambda _: True


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_not_negative(value: Any) -> bool:
    return bool(math.isfinite(value) and value >= 0)


_FLAG = _Allowed("True or False", lambda value: isinstance(value, bool))
_CHOICE = _Allowed("True, False or None (to choose by itself)", lambda value: value is None or isinstance(value, bool))
_NOT_NEGATIVE = _Allowed("a finite number, at least 0", _is_number, _is_not_negative)

_RATE = _Allowed(
    "a finite number, at least 0, or a tensor with one such element",
    lambda value: _is_number(value) or isinstance(value, Tensor),
    lambda value: (
        value.numel() == 1 and _is_not_negative(value.detach().item())
        if isinstance(value, Tensor)
        else _is_not_negative(value)
    ),
)
_ALLOWED: dict[str, _Allowed] = {
    "lr": _RATE,
    "rows_lr": _RATE,  # of what is not Muon's
    "learning_rate": _NOT_NEGATIVE,  # JAX's name for it
    "reduction": _Allowed(
        "'sum' or 'mean'", lambda value: isinstance(value, str), lambda value: value in ("sum", "mean")
    ),
    "betas": _Allowed(
        "two numbers, each at least 0 and less than 1",
        lambda value: isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value)),
        lambda value: all(0 <= beta < 1 for beta in value),
    ),
    "eps": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "initial_accumulator_value": _NOT_NEGATIVE,
    "decoupled_weight_decay": _FLAG,
    "bias_correction": _FLAG,
    "domain": _Allowed(
        "a Domain, such as RowBalls(1.0), or None", lambda value: value is None or isinstance(value, Domain)
    ),
    "project_start": _FLAG,
    "stochastic_rounding": _FLAG,
    "maximize": _FLAG,
    "capturable": _FLAG,
    "differentiable": _FLAG,
    "foreach": _CHOICE,
    "fused": _CHOICE,
}
# The same for the options of torch.optim.Muon, which finds some of them wrong only in the middle of a step.
MUON_OPTIONS: dict[str, _Allowed] = {
    "weight_decay": _NOT_NEGATIVE,
    "momentum": _NOT_NEGATIVE,
    "nesterov": _FLAG,
    "ns_coefficients": _Allowed(
        "three numbers",
        lambda value: isinstance(value, tuple | list) and len(value) == 3 and all(map(_is_number, value)),
    ),
    "eps": _NOT_NEGATIVE,
    "ns_steps": _Allowed(
        "an int from 0 to 99",
        lambda value: isinstance(value, int) and not isinstance(value, bool),
        lambda value: 0 <= value < 100,
    ),
    "adjust_lr_fn": _Allowed(
        "'original', 'match_rms_adamw' or None",
        lambda value: value is None or isinstance(value, str),
        lambda value: value in (None, "original", "match_rms_adamw"),
    ),
}


def check_values(options: Mapping[str, Any], table: Mapping[str, _Allowed] = _ALLOWED, whose: str = "") -> None:
    """Raise an error that names the first option that is wrong by itself, its value, and what it may be."""
    for name, allowed in table.items():
        if name not in options:
            continue
        value = options[name]
        if not allowed.is_type(value):
            raise TypeError(f"{whose}{name} must be {allowed.words}, got {value!r}")
        if not allowed.is_value(value):
            raise ValueError(f"{whose}{name} must be {allowed.words}, got {value!r}")


def check_options(options: Mapping[str, Any]) -> None:
    """The same for all options of a group, which also have to go together."""
    if isinstance(options["lr"], Tensor) and options["lr"].numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got the shape {tuple(options['lr'].shape)}")
    check_values(options)
    if options["fused"] and native.missing():
        raise RuntimeError(f"fused=True needs the native kernels: {native.missing()}; or leave fused=None")
    if options["fused"] and options["foreach"]:
        raise ValueError("fused=True and foreach=True are two ways to run a step: choose one")
    if options["differentiable"] and options["domain"] is not None:
        raise ValueError(f"domain={options['domain']!r} cannot be differentiated through: leave one of both out")
    for other in ("foreach", "fused", "stochastic_rounding"):
        if options["differentiable"] and options[other]:
            raise ValueError(f"{other}=True cannot be differentiated through: leave it out, or differentiable=False")


# Options of other optimizers, or other names for options here, with what to do instead.
_FOREIGN = {
    "alpha": "it is an option of RMSprop",
    "amsgrad": "it is an option of Adam",
    "betas": "it is an option of MatrixMomentum",
    "bias_correction": "it is an option of MatrixMomentum",
    "dampening": "it is an option of SGD",
    "epsilon": "did you mean 'eps'?",
    "geometry": "its geometry is fixed; MatrixAdaGrad and MatrixMomentum take any",
    "initial_accumulator_value": "it is an option of MatrixAdaGrad",
    "learning_rate": "did you mean 'lr'?",
    "lr_decay": "use a scheduler",
    "momentum": "it is an option of SGD; MatrixMomentum has 'betas'",
    "nesterov": "it is an option of SGD",
    "wd": "did you mean 'weight_decay'?",
}


def refuse_unknown(given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise an error for a key of a group that is another optimizer's option, or almost one of these.

    Other keys stay allowed, as in torch: schedulers, trainers and users keep notes of their own in groups.
    """
    for key in given:
        hint = _hint(key, options)
        if key not in options and key not in ("params", "param_names") and hint:
            raise TypeError(f"unknown option {key!r} in a parameter group: {hint}")


def refuse_unknown_keywords(name: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise an error for a keyword that the optimizer of this name does not have."""
    for key in given:
        if key not in options:
            raise TypeError(
                f"{name} got an unknown option {key!r}: {_hint(key, options) or f'it has {sorted(options)}'}"
            )


def _hint(key: str, options: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(key), options, n=1, cutoff=0.8)
    if key in _FOREIGN:
        return _FOREIGN[key]
    if near and abs(len(near[0]) - len(key)) <= 2:  # longer names, like weight_decay_mult, are meant
        return f"did you mean {near[0]!r}?"
    return ""


def refuse_foreign(saved: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A saved group without other optimizers' options; an error for one in use, without which the run cannot go on."""
    for key in ("amsgrad", "lr_decay"):
        if key not in options and saved.get(key):
            raise ValueError(
                f"the saved run used {key}={saved[key]!r}, which is not here: {_FOREIGN[key]}; nothing was loaded"
            )
    return {key: value for key, value in saved.items() if key in options or key not in _FOREIGN}

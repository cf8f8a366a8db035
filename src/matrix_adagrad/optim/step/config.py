"""The configuration of an update. Each option is defined once, with its default and its valid values.

These dataclasses define the optimizers' signatures and defaults, the checks on parameter groups, the struct that the C
kernels read, and the arguments of the compiled operator.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, make_dataclass
from numbers import Real
from typing import Any, ClassVar, Concatenate, Literal, NamedTuple, ParamSpec, Self

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from matrix_adagrad import native
from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry, Partition, Shape
from matrix_adagrad.optim.keywords import FOREIGN, refuse_unknown

__all__ = [
    "RUN_OPTIONS",
    "AdaGradConfig",
    "Allowed",
    "Config",
    "MatrixAdaGradConfig",
    "MatrixMomentumConfig",
    "MomentumConfig",
    "Reduction",
    "SteepestConfig",
    "check_exact",
    "check_options",
    "check_values",
    "takes",
]

Reduction = Literal["sum", "mean"]


class Allowed(NamedTuple):
    """The valid values of an option: a description, a check of the type, and a check of the value."""

    words: str
    is_type: Callable[[Any], bool]
    is_value: Callable[[Any], bool] = lambda _: True


def is_number(value: Any) -> bool:
    """Whether a value is a real number and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_not_negative(value: Any) -> bool:
    return bool(math.isfinite(value) and value >= 0)


def one_of(*values: Any) -> Allowed:
    """One of these values."""
    words = f"{', '.join(map(repr, values[:-1]))} or {values[-1]!r}"
    return Allowed(words, lambda value: isinstance(value, tuple(map(type, values))), lambda value: value in values)


def numbers(words: str, count: int, is_value: Callable[[Any], bool] = lambda _: True) -> Allowed:
    """A tuple or list of so many numbers."""

    def is_type(value: Any) -> bool:
        return isinstance(value, tuple | list) and len(value) == count and all(map(is_number, value))

    return Allowed(words, is_type, is_value)


FLAG = one_of(True, False)
NOT_NEGATIVE = Allowed("a finite number, at least 0", is_number, _is_not_negative)
RATE = Allowed(
    "a finite number, at least 0, or a tensor with one such element",
    lambda value: is_number(value) or isinstance(value, Tensor),
    lambda value: (
        value.numel() == 1 and _is_not_negative(value.detach().item())
        if isinstance(value, Tensor)
        else _is_not_negative(value)
    ),
)
_CHOICE, _REDUCTION = one_of(True, False, None), one_of("sum", "mean")
_BETAS = numbers("two numbers, each at least 0 and less than 1", 2, lambda betas: all(0 <= beta < 1 for beta in betas))
_SCALE, _LAZY = one_of("rms", None), one_of("touched", "exact")
_MOMENTUM_DTYPE = one_of(None, torch.bfloat16)
_DECAY_RATE = Allowed("a number, at least 0 and less than 1", is_number, lambda value: 0 <= value < 1)
_PARTITION = Allowed("a partition, such as Row(), or None", lambda value: value is None or isinstance(value, Partition))
_DOMAIN = Allowed("a Domain, such as RowBalls(1.0), or None", lambda value: value is None or isinstance(value, Domain))


def _option(default: Any, allowed: Allowed, *, in_kernels: bool = False) -> Any:
    return field(default=default, metadata={"allowed": allowed, "in_kernels": in_kernels})


@dataclass(frozen=True)
class Config:
    r"""One update, for all parameters of a group.

    .. math::
        V_t = V_{t-1} + S(G_t), \quad D_t = G_t
        \qquad\text{or, with betas,}\qquad
        V_t = \beta_2 V_{t-1} + (1-\beta_2)\, S(G_t), \quad D_t = \beta_1 D_{t-1} + (1-\beta_1)\, G_t

    .. math:: X_{t+1} = X_t - \eta\, D_t / (\sqrt{V_t} + \epsilon)

    Here S is what the geometry measures, and the root is its scale.
    """

    lr: float | Tensor = _option(1e-2, RATE, in_kernels=True)
    _: KW_ONLY
    reduction: Reduction = _option("sum", _REDUCTION)
    betas: tuple[float, float] | None = field(default=None, init=False)  # None: sums, not running averages
    bias_correction: bool = field(default=False, init=False, metadata={"in_kernels": True})
    nesterov: bool = field(default=False, init=False, metadata={"in_kernels": True})
    momentum_dtype: torch.dtype | None = field(default=None, init=False)  # of the average of gradients; None: wide
    eps: float = _option(1e-10, NOT_NEGATIVE, in_kernels=True)
    weight_decay: float = _option(0, NOT_NEGATIVE, in_kernels=True)
    decoupled_weight_decay: bool = _option(False, FLAG, in_kernels=True)
    lazy: Literal["touched", "exact"] = _option("touched", _LAZY)
    domain: Domain | None = _option(None, _DOMAIN)
    project_start: bool = _option(False, FLAG)
    stochastic_rounding: bool = _option(False, FLAG)
    maximize: bool = _option(False, FLAG, in_kernels=True)
    foreach: bool | None = _option(None, _CHOICE)
    fused: bool | None = _option(None, _CHOICE)
    capturable: bool = _option(False, FLAG)
    differentiable: bool = _option(False, FLAG)
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # of backends

    OPTIONS: ClassVar[tuple[str, ...]]  # the keywords of the optimizer, and the keys of its parameter groups

    @classmethod
    def of_group(cls, group: Mapping[str, Any]) -> Self:
        """The current configuration of a parameter group, which users may edit."""
        return cls(**{name: group[name] for name in cls.OPTIONS})

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers that the arithmetic needs, by the kernels' names for them and in their order: flags come last."""
        beta1, beta2 = self.betas or (0.0, 0.0)
        numbers, flags = ({name: getattr(self, name) for name in names} for names in _IN_KERNELS)
        averages = {"beta1": beta1, "beta2": beta2, "momentum": self.betas is not None}
        return {**numbers, **averages, **flags, "steepest": 0.0}

    @property
    def keeps_average(self) -> bool:
        """Whether there is a running average of the gradients. At β₁ = 0, it would be the gradient."""
        return self.betas is not None and self.betas[0] != 0

    @property
    def kept(self) -> tuple[Any, ...]:
        """What determines the state that a step expects, and how it is described to a backend."""
        return self.reduction, self.keeps_average, self.momentum_dtype, self.keeps_last_steps, self.keeps_decays

    @property
    def keeps_last_steps(self) -> bool:
        """Whether each row has a counter for what a step without gradient does to averages."""
        return self.lazy == "exact" and self.betas is not None

    @property
    def keeps_decays(self) -> bool:
        """Whether each row has a counter for what a step without gradient does to the row."""
        return self.lazy == "exact" and self.decoupled_weight_decay

    @property
    def is_random(self) -> bool:
        """Whether a step may round at random."""
        return self.stochastic_rounding or self.momentum_dtype is not None

    @property
    def rate(self) -> float | Tensor:
        """η: a number or a zero-dimensional tensor."""
        return self.lr.reshape(()) if isinstance(self.lr, Tensor) else self.lr

    @property
    def l2(self) -> float:
        """The weight decay that is added to the gradient; 0 if it is decoupled."""
        return 0 if self.decoupled_weight_decay else self.weight_decay

    @property
    def decay(self) -> float | Tensor | None:
        """The factor that decoupled weight decay multiplies parameters by; None without it."""
        return 1 - self.rate * self.weight_decay if self.weight_decay != 0 and self.decoupled_weight_decay else None

    def corrections(self, step: Tensor) -> tuple[float | Tensor, float | Tensor]:
        """The bias corrections 1 - β₁ᵗ and 1 - β₂ᵗ, or 1 and 1 if there is nothing to correct."""
        if self.betas is None or not self.bias_correction:
            return 1.0, 1.0
        # Reading the value back is cheap on a CPU, but a captured or compiled graph must not depend on it.
        t = step if self.capturable or torch.compiler.is_compiling() else step.item()
        return _one_minus_power(self.betas[0], t), _one_minus_power(self.betas[1], t)

    def nesterov_weights(self, step: Tensor) -> tuple[float | Tensor, float]:
        """The weights of D_t and G_t in Nesterov's direction, before both are divided by the correction 1 - β₁ᵗ."""
        assert self.betas is not None
        beta1 = self.betas[0]
        if not self.bias_correction:
            return beta1, 1 - beta1
        return beta1 * self.corrections(step)[0] / self.corrections(step + 1)[0], 1 - beta1  # Dozat's NAdam


def _one_minus_power(beta: float, t: float | Tensor) -> float | Tensor:
    # In float32, 1 - 0.999 keeps four digits. expm1 keeps all of them.
    if beta == 0:
        return 1.0
    exponent = t * math.log(beta)
    return -torch.expm1(exponent) if isinstance(exponent, Tensor) else -math.expm1(exponent)


@dataclass(frozen=True, kw_only=True)
class AdaGradConfig(Config):
    """The options of `RowAdaGrad` and `ColumnAdaGrad`."""

    initial_accumulator_value: float = _option(0, NOT_NEGATIVE)


@dataclass(frozen=True, kw_only=True)
class MomentumConfig(Config):
    """The options of `RowMomentum` and `ColumnMomentum`."""

    betas: tuple[float, float] = _option((0.9, 0.999), _BETAS)
    bias_correction: bool = _option(True, FLAG, in_kernels=True)
    nesterov: bool = _option(False, FLAG, in_kernels=True)
    momentum_dtype: torch.dtype | None = _option(None, _MOMENTUM_DTYPE)
    eps: float = _option(1e-8, NOT_NEGATIVE, in_kernels=True)


@dataclass(frozen=True, kw_only=True)
class _AnyGeometry:
    geometry: Geometry | str = "row"


@dataclass(frozen=True, kw_only=True)
class MatrixAdaGradConfig(AdaGradConfig, _AnyGeometry):
    """The options of `MatrixAdaGrad`."""


@dataclass(frozen=True, kw_only=True)
class MatrixMomentumConfig(MomentumConfig, _AnyGeometry):
    """The options of `MatrixMomentum`."""


def _fixed(value: Any) -> Any:
    return field(default=value, init=False)


@dataclass(frozen=True, kw_only=True)
class SteepestConfig(Config, _AnyGeometry):
    """The options of `SteepestDescent`."""

    lr: float | Tensor = field(default=1e-3, kw_only=False, metadata={"allowed": RATE, "in_kernels": True})
    momentum: float = _option(0.9, _DECAY_RATE)
    nesterov: bool = _option(False, FLAG, in_kernels=True)
    momentum_dtype: torch.dtype | None = _option(None, _MOMENTUM_DTYPE)
    scale: Literal["rms"] | None = _option("rms", _SCALE)
    floor: float = _option(0.0, NOT_NEGATIVE)
    rescale: Partition | None = _option(None, _PARTITION)
    rescale_beta: float = _option(0.95, _DECAY_RATE)
    reduction: Reduction = _fixed("mean")
    eps: float = _fixed(1e-8)
    lazy: Literal["touched", "exact"] = _fixed("touched")
    domain: None = _fixed(None)
    project_start: bool = _fixed(False)
    foreach: bool | None = _fixed(None)

    RMS: ClassVar[float] = 0.2  # of a step with lr=1: AdamW's, as measured by Moonlight, and torch's Muon's

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", (self.momentum, self.rescale_beta))

    @property
    def numbers(self) -> dict[str, Any]:
        return {**super().numbers, "eps": 0.0, "steepest": 1.0 if self.scale is None else self.RMS}

    @property
    def kept(self) -> tuple[Any, ...]:
        return *super().kept, self.rescale, self.scale, self.floor > 0

    def size(self, geometry: Geometry, shape: Shape) -> float:
        """κ, which the direction of steepest descent is multiplied by."""
        return 1.0 if self.scale is None else self.RMS / geometry.steepest_rms(shape)


for _config in (Config, AdaGradConfig, MomentumConfig, MatrixAdaGradConfig, MatrixMomentumConfig, SteepestConfig):
    _config.OPTIONS = tuple(option.name for option in fields(_config) if option.init)
for _name, _config in (
    ("SteepestDescent", SteepestConfig),
    ("MatrixAdaGrad", AdaGradConfig),
    ("MatrixMomentum", MomentumConfig),
):
    FOREIGN |= dict.fromkeys({*_config.OPTIONS} - {*Config.OPTIONS, *FOREIGN}, f"it is an option of {_name}")

RUN_OPTIONS = ("foreach", "fused", "capturable", "differentiable")  # how a step is run, not what it does
_in_kernels = [option for option in fields(Config) if option.metadata.get("in_kernels")]
_IN_KERNELS = tuple(
    [
        tuple([option.name for option in _in_kernels if isinstance(option.default, bool) is flag])
        for flag in (False, True)
    ]
)
native.expect_config(
    {name: "int64_t" if isinstance(value, bool) else "double" for name, value in Config().numbers.items()}
    | {"seed": "uint64_t"}
)

# --------------------------------------------------------------------------------------------------------- the checks

# The valid values of each option. "learning_rate" is JAX's name for lr.
ALLOWED: dict[str, Allowed] = {
    option.name: option.metadata["allowed"]
    for config in (AdaGradConfig, MomentumConfig, SteepestConfig)
    for option in fields(config)
    if "allowed" in option.metadata
} | {"learning_rate": NOT_NEGATIVE}


def check_values(options: Mapping[str, Any], table: Mapping[str, Allowed] = ALLOWED, whose: str = "") -> None:
    """Raise an error that names the first invalid option, its value, and the valid values."""
    for name, allowed in table.items():
        if name not in options:
            continue
        value = options[name]
        if not allowed.is_type(value):
            raise TypeError(f"{whose}{name} must be {allowed.words}, got {value!r}")
        if not allowed.is_value(value):
            raise ValueError(f"{whose}{name} must be {allowed.words}, got {value!r}")


def check_options(options: Mapping[str, Any]) -> None:
    """Check all options of a group, each one and in combination."""
    if isinstance(options["lr"], Tensor) and options["lr"].numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got the shape {tuple(options['lr'].shape)}")
    check_values(options)
    options = {"domain": None, "foreach": None, "fused": None, **options}
    if options["fused"] and native.missing():
        raise RuntimeError(f"fused=True needs the native kernels: {native.missing()}; or leave fused=None")
    if options["fused"] and options["foreach"]:
        raise ValueError("fused=True and foreach=True name two backends: choose one")
    if options["differentiable"] and options["domain"] is not None:
        raise ValueError(f"domain={options['domain']!r} cannot be differentiated through: leave one of the two out")
    if options.get("lazy") == "exact":
        check_exact(options)
    for other in ("foreach", "fused", "stochastic_rounding", "momentum_dtype"):
        if options["differentiable"] and options.get(other):
            raise ValueError(
                f"{other}={options[other]} cannot be differentiated through: leave it out, or differentiable=False"
            )


def check_exact(options: Mapping[str, Any]) -> None:
    """Check that what a dense step does to rows without gradient can be caught up later."""
    if options["weight_decay"] != 0 and not options["decoupled_weight_decay"]:
        raise ValueError(
            f"lazy='exact' cannot catch up weight_decay={options['weight_decay']!r}: it is part of the gradient, and "
            "moves a row in every step by another amount; use decoupled_weight_decay=True, or lazy='touched'"
        )
    for other in ("capturable", "differentiable"):
        if options[other]:
            raise ValueError(f"lazy='exact' reads counters back, which {other}=True rules out: leave one of the two")


# ------------------------------------------------------------------------------------------------------ the signature

_P = ParamSpec("_P")
_Init = Callable[[Any, ParamsT, Any], None]


def takes(config: Callable[_P, Config]) -> Callable[[_Init], Callable[Concatenate[Any, ParamsT, _P], None]]:
    """Turn ``__init__(self, params, config)`` into one that takes the configuration's fields as arguments."""
    cls: Any = config
    shown = [(f.name, f.type, field(default=f.default, kw_only=f.kw_only)) for f in fields(cls) if f.init]

    def decorate(init: _Init) -> Callable[Concatenate[Any, ParamsT, _P], None]:
        # A dataclass with the same fields has the signature to show, and `wraps` points to it.
        signature: Any = make_dataclass(init.__qualname__.split(".")[0], [("params", "ParamsT"), *shown])

        @functools.wraps(signature.__init__)
        def constructor(self: Any, params: ParamsT, *args: _P.args, **options: _P.kwargs) -> None:
            refuse_unknown(type(self).__name__, options, cls.OPTIONS)
            init(self, params, config(*args, **options))

        return constructor  # type: ignore[return-value]

    return decorate

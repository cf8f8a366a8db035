"""A plan: which geometry for which parameter, and why; with which optimizer and rate. A file that people can read."""

from __future__ import annotations

import ast
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from matrix_adagrad.advisor.candidates import FAMILIES, make_groups, trained
from matrix_adagrad.files import write
from matrix_adagrad.geometry import Blocks, Geometry, as_geometry
from matrix_adagrad.optim.groups import unwrapped
from matrix_adagrad.text import columns, json_text, shape_text

__all__ = ["Choice", "Plan"]

BETAS = (0.9, 0.999)
YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Choice:
    """The geometry of one parameter, as text (``"row"``, ``"Blocks(rows=3)"``), and the reason for it."""

    name: str
    shape: tuple[int, ...]
    geometry: str
    reason: str

    def __post_init__(self) -> None:
        try:
            self.value.check_fits(self.name, self.shape)
        except (TypeError, ValueError) as error:
            raise ValueError(f"plan: {self.name}: {error}") from None

    @property
    def value(self) -> Geometry:
        """The geometry itself."""
        return _geometry(self.geometry)


@dataclass(frozen=True)
class Plan:
    """Which geometry for which parameter.

    Args:
        family: the update rule: ``"adagrad"`` for `MatrixAdaGrad`, ``"momentum"`` for `MatrixMomentum`.
        lr: the learning rate that the race chose, for squares that are averaged (``reduction="mean"``).
        choices: one for each parameter.
        verdict: what the race has shown, in a sentence.

    Example:
        >>> from torch import nn
        >>> from matrix_adagrad import MatrixAdaGrad
        >>> from matrix_adagrad.advisor import Choice, Plan
        >>> plan = Plan("adagrad", 0.1, (Choice("weight", (1000, 8), "row", "level with entry, less state"),))
        >>> model = nn.Embedding(1000, 8)
        >>> optimizer = MatrixAdaGrad(plan.groups(model), lr=plan.lr)
        >>> optimizer.param_groups[0]["geometry"], optimizer.param_groups[0]["reduction"]
        (Row(), 'mean')
    """

    family: str
    lr: float
    choices: tuple[Choice, ...]
    verdict: str = ""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"plan: family must be one of {', '.join(map(repr, FAMILIES))}, got {self.family!r}")
        if not isinstance(self.lr, int | float) or not 0 < self.lr < math.inf:
            raise ValueError(f"plan: lr must be a positive number, got {self.lr!r}")

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups for ``MatrixAdaGrad(plan.groups(model), lr=plan.lr)``, or `MatrixMomentum`, by ``family``.

        Raises:
            ValueError: if the model has other parameters than the plan; it says which.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a module, got {type(model).__name__}: give the model, not its parameters")
        self._check(model)
        groups = make_groups(model, {choice.name: choice.value for choice in self.choices})
        if self.family == "momentum":  # which MatrixAdaGrad refuses: the learning rate is not meant for it
            groups = [{**group, "betas": BETAS} for group in groups]
        return groups

    def optimizer(self, model: nn.Module, **options: Any) -> Optimizer:
        """The optimizer of the plan for this model; ``options`` are those of its class, ``lr`` too."""
        make: Any = FAMILIES[self.family].optimizer
        made: Optimizer = make(self.groups(model), **{"lr": self.lr, **options})
        return made

    def _check(self, model: nn.Module) -> None:
        planned, there = {choice.name: choice.shape for choice in self.choices}, trained(model)
        frozen = {name for name, param in unwrapped(model).named_parameters() if not param.requires_grad}
        differences = [
            f"{name} is {'frozen' if name in frozen else 'not'} in the model" for name in planned if name not in there
        ]
        differences += [f"{name} is not in the plan" for name in there if name not in planned]
        differences += [
            f"{name} has shape {tuple(param.shape)}, and {planned[name]} in the plan"
            for name, param in there.items()
            if name in planned and tuple(param.shape) != planned[name]
        ]
        if differences:
            shown = "; ".join(differences[:8]) + f"; and {len(differences) - 8} more" * (len(differences) > 8)
            raise ValueError(f"the plan does not fit this model: {shown}")

    @property
    def scales(self) -> int:
        """How many numbers of statistics it needs."""
        return sum(choice.value.scales(choice.shape) for choice in self.choices)

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The choices, for a terminal."""
        rows = [(one.name, shape_text(one.shape), one.geometry, one.reason) for one in self.choices]
        return columns(("parameter", "shape", "geometry", "why"), rows, left=(0, 1, 2, 3))

    def to_dict(self) -> dict[str, Any]:
        """For JSON and YAML."""
        parameters = {
            one.name: {"geometry": one.geometry, "shape": list(one.shape), "reason": one.reason} for one in self.choices
        }
        return {"family": self.family, "lr": self.lr, "verdict": self.verdict, "parameters": parameters}

    @classmethod
    def from_dict(cls, found: Any) -> Plan:
        """The plan that `to_dict` wrote, perhaps edited since."""
        if not isinstance(found, dict) or not isinstance(found.get("parameters"), dict):
            raise ValueError("plan: it needs family, lr and parameters")
        missing = [key for key in ("family", "lr") if key not in found]
        unknown = [key for key in found if key not in ("family", "lr", "verdict", "parameters")]
        if missing or unknown:
            said = [f"{key} is missing" for key in missing] + [f"{key} is not known" for key in unknown]
            raise ValueError(f"plan: {'; '.join(said)}")
        choices = []
        for name, one in found["parameters"].items():
            if not isinstance(one, dict) or "geometry" not in one or "shape" not in one:
                raise ValueError(f"plan: {name} needs a geometry and a shape, got {one!r}")
            choices.append(Choice(str(name), tuple(one["shape"]), one["geometry"], one.get("reason", "")))
        return cls(found["family"], found["lr"], tuple(choices), found.get("verdict", ""))

    def save(self, path: Path | str) -> Path:
        """Write the plan, as YAML if the name ends in ``.yaml`` or ``.yml``, else as JSON."""
        path = Path(path)
        if path.suffix in YAML:
            text = _yaml().safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=120)
        else:
            text = json_text(self.to_dict())
        return write(path, text)

    @classmethod
    def load(cls, path: Path | str) -> Plan:
        """Read a plan that `save` wrote, or a person."""
        path = Path(path)
        text = path.read_text(encoding="utf-8")
        try:
            return cls.from_dict(_yaml().safe_load(text) if path.suffix in YAML else json.loads(text))
        except ImportError:
            raise
        except Exception as error:  # a parser's errors are of many kinds
            raise ValueError(f"{path} is not a plan: {error}") from None


def _geometry(text: str) -> Geometry:
    """A geometry from the text that one would write for it."""
    if isinstance(text, str) and text.startswith("Blocks("):
        try:
            call = ast.parse(text, mode="eval").body
            assert isinstance(call, ast.Call)
            assert not call.args
            return Blocks(**{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})
        except (AssertionError, SyntaxError):
            raise ValueError(f"{text!r} is not a geometry: write Blocks(rows=3), for example") from None
    return as_geometry(text)


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError("YAML needs PyYAML: pip install pyyaml, or take .json") from None
    return yaml

"""A plan: a geometry for each parameter and the reason for it, an optimizer and a learning rate, in a readable file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from matrix_adagrad.advisor.candidates import FAMILIES, trainable_parameters
from matrix_adagrad.files import write
from matrix_adagrad.geometry import Geometry, Unscaled, as_geometry
from matrix_adagrad.optim.choices import unwrapped
from matrix_adagrad.text import columns, json_text, shape_text

__all__ = ["ParameterChoice", "Plan"]

YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class ParameterChoice:
    """The geometry of one parameter, as text (``"row"``, ``"Blocks(rows=3)"``), and the reason for it."""

    name: str
    shape: tuple[int, ...]
    geometry: str
    reason: str

    def __post_init__(self) -> None:
        try:
            if not isinstance(self.value.on(self.shape), Unscaled):  # SteepestDescent has its own check
                self.value.check_fits(self.name, self.shape)
        except (TypeError, ValueError) as error:
            raise ValueError(f"plan: {self.name}: {error}") from None

    @property
    def value(self) -> Geometry:
        """The geometry itself."""
        return as_geometry(self.geometry)

    @property
    def scales(self) -> int:
        """The number of scales."""
        return self.value.on(self.shape).scales(self.shape)


@dataclass(frozen=True)
class Plan:
    """A geometry for each parameter, an optimizer and a learning rate.

    Args:
        family: the update rule: ``"adagrad"`` for `MatrixAdaGrad`, ``"momentum"`` for `MatrixMomentum`,
            ``"no-momentum"`` for `MatrixMomentum` with ``betas=(0, 0.999)``, ``"steepest"`` for `SteepestDescent`, and
            ``"matrix_optimizer"`` for `matrix_optimizer` with these geometries as its rules.
        lr: the learning rate that the race chose, for ``reduction="mean"``.
        choices: one for each parameter.
        verdict: the result of the race, in a few sentences.
        steps: the length of the runs that the learning rate is for, if it is known.

    Example:
        >>> from torch import nn
        >>> from matrix_adagrad import MatrixAdaGrad
        >>> from matrix_adagrad.advisor import ParameterChoice, Plan
        >>> plan = Plan("adagrad", 0.1, (ParameterChoice("weight", (1000, 8), "row", "level with entry, less state"),))
        >>> model = nn.Embedding(1000, 8)
        >>> optimizer = MatrixAdaGrad(plan.groups(model), lr=plan.lr)
        >>> optimizer.param_groups[0]["geometry"], optimizer.param_groups[0]["reduction"]
        (Row(), 'mean')
    """

    family: str
    lr: float
    choices: tuple[ParameterChoice, ...]
    verdict: str = ""
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"plan: family must be one of {', '.join(map(repr, FAMILIES))}, got {self.family!r}")
        if not isinstance(self.lr, int | float) or not 0 < self.lr < math.inf:
            raise ValueError(f"plan: lr must be a positive number, got {self.lr!r}")

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups for ``MatrixAdaGrad(plan.groups(model), lr=plan.lr)``, or the optimizer of ``family``.

        Raises:
            ValueError: if the model's parameters differ from the plan's; it says which. Also if the family makes
                several optimizers.
        """
        return FAMILIES[self.family].groups(model, self._geometries(model))

    def optimizer(self, model: nn.Module, **options: Any) -> Optimizer:
        """The optimizer of the plan for this model; ``options`` are passed on to its class, and may override ``lr``."""
        return FAMILIES[self.family].make(model, self._geometries(model), **{"lr": self.lr, **options})

    def _geometries(self, model: nn.Module) -> dict[str, Geometry]:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"model must be an nn.Module, got {type(model).__name__}: give the model, not its parameters"
            )
        self._check(model)
        return {choice.name: choice.value for choice in self.choices}

    def _check(self, model: nn.Module) -> None:
        planned, params = {choice.name: choice.shape for choice in self.choices}, trainable_parameters(model)
        frozen = {name for name, param in unwrapped(model).named_parameters() if not param.requires_grad}
        differences = [
            f"{name} is {'frozen' if name in frozen else 'not'} in the model" for name in planned if name not in params
        ]
        differences += [f"{name} is not in the plan" for name in params if name not in planned]
        differences += [
            f"{name} has shape {tuple(param.shape)} in the model, and {planned[name]} in the plan"
            for name, param in params.items()
            if name in planned and tuple(param.shape) != planned[name]
        ]
        if differences:
            shown = "; ".join(differences[:8]) + f"; and {len(differences) - 8} more" * (len(differences) > 8)
            raise ValueError(f"the plan does not fit this model: {shown}")

    @property
    def scales(self) -> int:
        """The total number of scales."""
        return sum(choice.scales for choice in self.choices)

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The choices, for a terminal."""
        rows = [(choice.name, shape_text(choice.shape), choice.geometry, choice.reason) for choice in self.choices]
        return columns(("parameter", "shape", "geometry", "why"), rows, left=(0, 1, 2, 3))

    def to_dict(self) -> dict[str, Any]:
        """For JSON and YAML."""
        parameters = {
            choice.name: {"geometry": choice.geometry, "shape": list(choice.shape), "reason": choice.reason}
            for choice in self.choices
        }
        return {
            "family": self.family,
            "lr": self.lr,
            "steps": self.steps,
            "verdict": self.verdict,
            "parameters": parameters,
        }

    @classmethod
    def from_dict(cls, content: Any) -> Plan:
        """The plan from a dict that `to_dict` returned, possibly edited since."""
        if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
            raise ValueError("plan: it must have family, lr and parameters")
        missing = [key for key in ("family", "lr") if key not in content]
        unknown = [key for key in content if key not in ("family", "lr", "steps", "verdict", "parameters")]
        if missing or unknown:
            said = [f"{key} is missing" for key in missing] + [f"{key} is not known" for key in unknown]
            raise ValueError(f"plan: {'; '.join(said)}")
        choices = []
        for name, choice in content["parameters"].items():
            if not isinstance(choice, dict) or "geometry" not in choice or "shape" not in choice:
                raise ValueError(f"plan: {name} needs a geometry and a shape, got {choice!r}")
            choices.append(
                ParameterChoice(str(name), tuple(choice["shape"]), choice["geometry"], choice.get("reason", ""))
            )
        return cls(content["family"], content["lr"], tuple(choices), content.get("verdict", ""), content.get("steps"))

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
        """Read a plan that was saved or written by hand."""
        path = Path(path)
        text = path.read_text(encoding="utf-8")
        try:
            return cls.from_dict(_yaml().safe_load(text) if path.suffix in YAML else json.loads(text))
        except ImportError:
            raise
        except Exception as error:  # a parser's errors are of many kinds
            raise ValueError(f"{path} is not a plan: {error}") from None


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError("a .yaml plan needs PyYAML: pip install pyyaml, or use .json") from None
    return yaml

"""SteepestDescent: momentum, and the direction of steepest descent in a geometry's norm."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from matrix_adagrad.geometry import Geometry, Unscaled
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.step.config import SteepestConfig, takes

__all__ = ["SteepestDescent"]


class SteepestDescent(MatrixOptimizer):
    r"""Momentum, along the direction of steepest descent in a geometry's norm.

    .. math::
        M_t = \beta M_{t-1} + (1 - \beta)\, G_t, \qquad
        X_{t+1} = X_t - \eta\, \kappa \operatorname*{argmax}_{\|D\| \le 1} \langle M_t, D \rangle

    Every step has the same length in that norm, whatever the size of the gradient. By row, each row of the momentum is
    normalized. By entry, this is Signum. In the spectral norm, it is Muon.

    Each parameter's state is ``state["momentum_buffer"]``, of the parameter's shape, in float32 or wider unless
    ``momentum_dtype`` is narrower, and ``state["step"]``. With ``rescale``, there is ``state["exp_avg_sq"]`` too, one
    number per block.

    Args:
        params: parameters, named parameters, or groups of either with per-group options.
        lr: the step size η, a number or a tensor with one element.
        geometry: whose norm it is: ``"row"``, ``"column"``, ``"entry"``, ``"whole"``, a `Partition`, or `Spectral()`.
            Vectors and scalars move by entry unless it is ``"whole"``.
        momentum: the decay rate β of the average of gradients. Without momentum, nothing is kept.
        nesterov: take the direction of :math:`\beta M_t + (1 - \beta)\, G_t`.
        momentum_dtype: as in `MatrixMomentum`.
        scale: ``"rms"`` makes steps the size of AdamW's in every geometry: a root mean square of 0.2 η. Then one
            learning rate serves a whole model. ``None`` takes the direction as it is, κ = 1.
        floor: divide a block by no less than this many times the root mean square of all blocks' lengths. Without it, a
            block whose gradient has vanished keeps moving at full size, for as long as any momentum is left. Tables
            with rare rows need one, such as 0.1.
        rescale: a partition. The direction is divided by the root of its running mean square over each block, and then
            rescaled to its original length. In the spectral norm with `Row()`, this is NorMuon.
        rescale_beta: the decay rate of those running averages.
        weight_decay: as in `MatrixAdaGrad`. So are all arguments not listed here. The native kernels (``fused``) cover
            partitions without ``rescale``.

    Example:
        >>> import torch
        >>> from matrix_adagrad import Spectral, SteepestDescent
        >>> layer = torch.nn.Linear(16, 4, bias=False)
        >>> optimizer = SteepestDescent(layer.parameters(), lr=0.02, geometry=Spectral())
        >>> layer(torch.ones(1, 16)).sum().backward()
        >>> optimizer.step()
        >>> {name: tuple(value.shape) for name, value in optimizer.state[layer.weight].items()}
        {'step': (), 'momentum_buffer': (4, 16)}
    """

    CONFIG = SteepestConfig
    STATISTIC = "exp_avg_sq"
    AVERAGE = "momentum_buffer"

    @classmethod
    def _measured(cls, group: Mapping[str, Any], shape: torch.Size) -> Geometry:
        return Unscaled() if group["rescale"] is None else group["rescale"].on(shape)

    @classmethod
    def _check_geometry_fits(cls, name: str, param: Tensor, group: Mapping[str, Any]) -> None:
        try:
            _check_has_direction(group["geometry"].on(param.shape), param.shape, group["floor"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}, of shape {tuple(param.shape)}, does not fit its geometry: {error}") from None
        if group["rescale"] is not None:
            group["rescale"].check_fits(name, param.shape, param.dtype)

    @takes(SteepestConfig)
    def __init__(self, params: ParamsT, config: SteepestConfig) -> None:
        super().__init__(params, config)


@functools.lru_cache(maxsize=1 << 14)
def _check_has_direction(geometry: Geometry, shape: torch.Size, floor: float) -> None:
    geometry.steepest(torch.empty(shape, device="meta"), floor)

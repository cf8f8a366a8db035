"""Torch's operators on JAX arrays: JAX traces what is written for tensors, such as a geometry or a step.

Nothing of torch runs then but the names of its operators, which are looked up in a table.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from matrix_adagrad.torch_private import empty_wrapper, no_torch_function, returns_alias, tree_map, written_arguments

__all__ = ["JaxTensor", "twin"]


def twin(x: jax.Array) -> Tensor:
    """A meta tensor of the same shape and dtype: geometries and domains know what fits them."""
    return torch.empty(x.shape, dtype=_torch_dtype(x), device="meta")


_CPU = torch.device("cpu")


class JaxTensor(Tensor):
    """A JAX array, traced or not, that torch's operators take for a tensor.

    Operators that write to a tensor replace its array. A view has an array of its own, and cannot be written to.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from matrix_adagrad import Row
        >>> from matrix_adagrad.interop.optax.tensors import JaxTensor
        >>> norm = jax.jit(lambda x: Row().norm(JaxTensor(x)).array)
        >>> print(norm(jnp.array([[3.0, 4.0], [0.0, 2.0]])))
        5.0
    """

    array: jax.Array
    is_view: bool

    __torch_function__ = no_torch_function

    @staticmethod
    def __new__(cls, array: jax.Array, *, is_view: bool = False) -> JaxTensor:
        self: JaxTensor = empty_wrapper(cls, array.shape, _torch_dtype(array), _CPU)
        self.array, self.is_view = array, is_view
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"JaxTensor({self.array})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        name = func.overloadpacket.__name__
        if name == "_foreach_add_":
            for tensor in args[0]:
                tensor.add_(args[1])
            return None
        writes, operation = (
            bool(written_arguments(func, args)),
            _OPERATORS.get(name) or _OPERATORS.get(name.rstrip("_")),
        )
        if operation is None or (writes and not (type(args[0]) is cls and not args[0].is_view)):
            raise NotImplementedError(f"torch's operator {func} has no counterpart in JAX here: write it with others")
        result = operation(*tree_map(_as_array, args), **tree_map(_as_array, kwargs or {}))
        if writes:
            args[0].array = jnp.broadcast_to(result, args[0].shape).astype(args[0].array.dtype)
            return args[0]
        is_view = returns_alias(func)
        return tree_map(lambda x: cls(x, is_view=is_view) if isinstance(x, jax.Array) else x, result)


def _torch_dtype(x: jax.Array) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, x.dtype.name)
    return dtype


def _as_array(x: Any) -> Any:
    if isinstance(x, JaxTensor):
        return x.array
    if isinstance(x, Tensor):  # a constant; a single number takes on the dtype of what it meets
        return x.item() if x.dim() == 0 else jnp.asarray(x.numpy())
    return jnp.dtype(str(x).removeprefix("torch.")) if isinstance(x, torch.dtype) else x


# --------------------------------------------------------------------------------------------------- the operators


def _shape(x: jax.Array, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape in which -1 stands for the size that the array has."""
    own = (1,) * (len(shape) - x.ndim) + x.shape
    return tuple(have if size == -1 else size for size, have in zip(shape, own, strict=True))


def _slice(x: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> jax.Array:
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


def _pad(x: jax.Array, pad: Sequence[int], value: float = 0) -> jax.Array:
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]  # torch begins at the last dimension
    return jnp.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, constant_values=value)


def _cast(x: jax.Array, dtype: Any = None, **_: Any) -> jax.Array:
    return x if dtype is None else x.astype(dtype)


def _sum(x: jax.Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    return jnp.sum(x, _axes(dim), dtype, keepdims=keepdim)


def _reduced(reduce: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda x, dim=None, keepdim=False: reduce(x, axis=_axes(dim), keepdims=keepdim)


def _axes(dim: Any) -> Any:
    return tuple(dim) or None if isinstance(dim, list | tuple) else dim  # torch reads empty dims as all of them


def _vector_norm(x: jax.Array, order: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> jax.Array:
    return jnp.linalg.vector_norm(x, axis=_axes(dim), keepdims=keepdim, ord=order)


def _nan_to_num(x: jax.Array, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> jax.Array:
    return jnp.nan_to_num(x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


def _baddbmm(x: jax.Array, a: jax.Array, b: jax.Array, *, beta: float = 1, alpha: float = 1) -> jax.Array:
    return beta * x + alpha * (a @ b)


# By the names that torch's operators have below autograd, of all overloads.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "_conj": jnp.conj,
    "_linalg_eigh": lambda x, uplo="L", *_, **__: tuple(jnp.linalg.eigh(x, uplo, symmetrize_input=False)),
    "_linalg_svd": lambda x, full_matrices=False, *_, **__: tuple(jnp.linalg.svd(x, full_matrices)),
    "_local_scalar_dense": lambda x: x.item(),  # JAX says why it cannot while it traces
    "_to_copy": _cast,
    "_unsafe_view": jnp.reshape,
    "add": lambda x, y, *, alpha=1: x + (y if alpha == 1 else alpha * y),
    "alias": lambda x: x,
    "all": _reduced(jnp.all),
    "amax": _reduced(jnp.max),
    "amin": _reduced(jnp.min),
    "addmm": _baddbmm,  # jnp.matmul takes matrices and batches alike
    "baddbmm": _baddbmm,
    "bmm": operator.matmul,
    "clamp": jnp.clip,
    "clone": lambda x, **_: x,
    "constant_pad_nd": _pad,
    "copy": lambda _, y, *__: y,
    "detach": lambda x: x,
    "diagonal": jnp.diagonal,
    "div": operator.truediv,
    "expand": lambda x, shape, **_: jnp.broadcast_to(x, _shape(x, shape)),
    "lerp": lambda x, y, weight: x + weight * (y - x),
    "linalg_vector_norm": _vector_norm,
    "mean": _reduced(jnp.mean),
    "mm": operator.matmul,
    "nan_to_num": _nan_to_num,
    "permute": jnp.transpose,
    "rsub": lambda x, y, alpha=1: y - (x if alpha == 1 else alpha * x),
    "select": lambda x, dim, index: jnp.take(x, index, dim),
    "slice": _slice,
    "sub": lambda x, y, *, alpha=1: x - (y if alpha == 1 else alpha * y),
    "sum": _sum,
    "t": jnp.transpose,
    "transpose": jnp.swapaxes,
    "unsqueeze": jnp.expand_dims,
    "view": jnp.reshape,
    "where": jnp.where,
    **{name: getattr(operator, name) for name in ("eq", "ge", "gt", "le", "lt", "mul", "ne", "neg", "pow")},
    **{
        name: getattr(jnp, name)
        for name in (
            *("abs", "cos", "exp", "expm1", "isfinite", "log", "log1p", "logical_and", "logical_not", "logical_or"),
            *("maximum", "minimum", "reciprocal", "sign", "sin", "sqrt", "square", "squeeze", "tanh"),
        )
    },
}

"""All private torch APIs that this package uses, in one place.

Each has a name here that says what it is for. tests/test_torch_private.py checks what we expect of each, and names the
releases of torch that it was checked with.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo as without_compiling  # torch.compiler.disable would import the compiler
from torch.nn.modules.conv import _ConvNd as Convolution
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import _StridedShard as StridedShard

__all__ = [
    "Convolution",
    "StridedShard",
    "accumulates",
    "after_loading",
    "assert_async",
    "backward_pass",
    "before_loading",
    "called_by_metadata",
    "compiled_module",
    "default_store",
    "empty_wrapper",
    "foreach_add_",
    "foreach_clamp_max_",
    "foreach_div",
    "foreach_div_",
    "foreach_mul_",
    "foreach_reciprocal_",
    "foreach_sqrt",
    "gradient_hooks",
    "has_free_memory",
    "has_no_other_owner",
    "has_tensor_hooks",
    "is_transformed",
    "is_zero_tensor",
    "layout_guard",
    "mesh_without_groups",
    "no_torch_function",
    "returns_alias",
    "runs_step_hooks",
    "set_element",
    "sparse_indices",
    "sparse_values",
    "step_hooks",
    "storage_record",
    "stored_entries",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "version_of",
    "without_compiling",
    "without_step_hooks",
    "written_arguments",
]

# What torch.optim runs on lists of tensors.
foreach_add_, foreach_mul_, foreach_div_ = torch._foreach_add_, torch._foreach_mul_, torch._foreach_div_
foreach_reciprocal_, foreach_clamp_max_ = torch._foreach_reciprocal_, torch._foreach_clamp_max_
foreach_div, foreach_sqrt = torch._foreach_div, torch._foreach_sqrt


def __getattr__(name: str) -> Any:
    # FSDP2's placement of a dimension that tensor parallelism shards too. It takes a second to import.
    if name == "StridedShard":
        from torch.distributed.tensor.placement_types import _StridedShard

        return _StridedShard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ------------------------------------------------------------------------------------------------------------- tensors

no_torch_function: Any = torch._C._disabled_torch_function_impl  # for a subclass that overrides operators alone


def empty_wrapper(cls: type[Tensor], shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Any:
    """A tensor of a subclass that has a shape, but no memory: the subclass answers for all operators."""
    return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)


def written_arguments(operator: Any, args: Sequence[Any]) -> list[Any]:
    """The positional arguments that an operator writes to."""
    aliases = [argument.alias_info for argument in operator._schema.arguments]
    return [arg for arg, alias in zip(args, aliases, strict=False) if alias and alias.is_write]


def returns_alias(operator: Any) -> bool:
    """Whether an operator returns an argument, or a view of one."""
    return any(returned.alias_info is not None for returned in operator._schema.returns)


def assert_async(holds: Tensor, message: str) -> None:
    """Check a condition on its device, without waiting for it: if it does not hold, later work on the device fails."""
    torch._assert_async(holds, message)


def sparse_indices(x: Tensor) -> Tensor:
    """The indices of a sparse tensor; ``indices()`` refuses one that is not coalesced."""
    return x._indices()


def sparse_values(x: Tensor) -> Tensor:
    """The values of a sparse tensor; ``values()`` refuses one that is not coalesced."""
    return x._values()


def stored_entries(x: Tensor) -> int:
    """How many entries a sparse tensor stores."""
    return x._nnz()


def is_zero_tensor(x: Tensor) -> bool:
    """Whether a tensor represents zeros without memory, as autograd may create them."""
    return x._is_zerotensor()


def layout_guard(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """A function that says, of as many tensors, whether none is given twice and each is like one of these, in order.

    It compares their types, dtypes, devices, sizes and strides, whether autograd records them, and whether operators do
    more to them, as to views that negate.
    """
    guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check


def version_of(x: Tensor) -> int:
    """How many times a tensor has been written to."""
    return x._version


def has_no_other_owner(x: Tensor) -> bool:
    """Whether a gradient may be kept instead of copied: nobody else holds it, and it is not a view."""
    owners: int = x._use_count()  # type: ignore[attr-defined]
    return owners == _OWNERS_OF_ONE_IN_BACKWARD and not x._is_view()


# Torch 2.9's backward pass itself keeps the gradients that it gives to a function.
_OWNERS_OF_ONE_IN_BACKWARD = 2 if torch.__version__.startswith("2.9.") else 1


def has_free_memory(x: Tensor) -> bool:
    """Whether nobody else can see a tensor's memory: no tensor, no storage object, and no other process."""
    return _storage_references(x) == _references_of_one() and not x.untyped_storage().is_shared()


def _storage_references(x: Tensor) -> tuple[int, int]:
    """How many refer to a tensor's memory, and to its storage object, which is the same one for all who ask."""
    storage = x.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


@functools.cache
def _references_of_one() -> tuple[int, int]:
    return _storage_references(torch.empty(1, device="cpu"))


# -------------------------------------------------------------------------------------------------- what torch is doing


def backward_pass() -> int:
    """A number for the backward pass that runs in this thread; −1 if there is none."""
    number: int = torch._C._current_graph_task_id()
    return number


def accumulates(node: Any) -> bool:
    """Whether the running backward pass adds to the gradient of a leaf, given the node that stands for it.

    `torch.autograd.grad` adds to none, and ``backward(inputs=…)`` to these alone. A leaf that is frozen has no node.
    """
    try:
        return node is not None and bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # it refuses leaves that torch.autograd.grad returns the gradient of
        return False


def is_transformed() -> bool:
    """Whether operators are traced, transformed by torch.func, or run inside DistributedDataParallel."""
    return bool(
        torch._C._get_tracing_state()
        or DistributedDataParallel._get_active_ddp_module() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def compiled_module(model: nn.Module) -> nn.Module | None:
    """The module that ``torch.compile`` has wrapped, or ``None`` if this is not a compiled module."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else None


def default_store() -> Any:
    """The key-value store of the default process group, through which ranks agree on a seed without a collective."""
    import torch.distributed as dist

    return dist.distributed_c10d._get_default_store()


def mesh_without_groups(device_type: str, ranks: Tensor) -> DeviceMesh:
    """A device mesh that creates no process groups: it knows where shards lie, without a collective."""
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh(device_type, ranks, _init_backend=False)


def set_element(state: dict[str, Any], path: Sequence[Any], value: Any) -> None:
    """Set a value in nested dicts and lists, by its path in a distributed checkpoint."""
    from torch.distributed.checkpoint._traverse import set_element

    set_element(state, tuple(path), value)


def storage_record() -> type:
    """The class of a record in a distributed checkpoint's metadata: where in which file a value lies."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo


def called_by_metadata() -> Mapping[tuple[str, str], Callable[..., Any]]:
    """The functions that a distributed checkpoint's pickled metadata calls, by module and name, besides constructors.

    One returns a layout, such as ``torch.strided``, for its name. The other one returns a code for a memory format.
    """
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
    from torch.serialization import _get_layout

    return {
        ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"): _MEM_FORMAT_ENCODING,
        ("torch.serialization", "_get_layout"): _get_layout,
    }


# --------------------------------------------------------------------------------------------------------------- hooks


def runs_step_hooks(optimizer: Optimizer) -> bool:
    """Whether an optimizer runs the hooks on its steps: a wrapper that never called ``Optimizer.__init__`` does not."""
    return hasattr(optimizer, "_optimizer_step_pre_hooks")


def step_hooks(optimizer: Optimizer) -> tuple[Mapping[int, Any], Mapping[int, Any]]:
    """What runs before and after an optimizer's steps: two dicts that stay the same objects."""
    return optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks


def gradient_hooks(param: Tensor) -> Iterable[Callable[..., None]]:
    """The hooks that run once a parameter's gradient is complete."""
    return (param._post_accumulate_grad_hooks or {}).values()


def has_tensor_hooks(param: Tensor) -> bool:
    """Whether anything is to see, or to change, what is added to a parameter's gradient."""
    return bool(param._backward_hooks)


def without_step_hooks(optimizer: Optimizer) -> None:
    """Remove the hooks on an optimizer's steps."""
    optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = OrderedDict(), OrderedDict()


def before_loading(optimizer: Optimizer) -> Iterable[Callable[..., Any]]:
    """The hooks that may change a state dict before it is loaded."""
    return optimizer._optimizer_load_state_dict_pre_hooks.values()


def after_loading(optimizer: Optimizer) -> Iterable[Callable[..., Any]]:
    """The hooks that run after a state dict has been loaded."""
    return optimizer._optimizer_load_state_dict_post_hooks.values()

"""What is expected of torch where it has no public name: each was last seen to hold in torch 2.13.0.

A newer torch that changes one of them fails the test with its name, and `matrix_adagrad.torch_private` is the one place
to mend. (`default_store` needs several ranks: tests/distributed/test_streams.py.)
"""

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from matrix_adagrad import RowAdaGrad, torch_private

SEEN_WITH = "2.13.0"


def uncoalesced():
    values = torch.tensor([[1.0], [2.0], [3.0]])
    return torch.sparse_coo_tensor(torch.tensor([[2, 0, 2]]), values, (4, 1), check_invariants=True)


def test_the_version_that_these_were_seen_with():
    assert torch.__version__.split("+")[0] >= SEEN_WITH.rsplit(".", 1)[0]


def test_parts_of_a_sparse_tensor_that_is_not_coalesced():
    grad = uncoalesced()
    assert torch_private.sparse_indices(grad).tolist() == [[2, 0, 2]]
    assert torch_private.sparse_values(grad).flatten().tolist() == [1.0, 2.0, 3.0]
    assert torch_private.stored_entries(grad) == 3
    with pytest.raises(RuntimeError, match="uncoalesced"):
        grad.indices()


def test_zeros_without_memory():
    assert torch_private.is_zero_tensor(torch._efficientzerotensor((2, 2)))
    assert not torch_private.is_zero_tensor(torch.zeros(2, 2))


def test_the_version_of_a_tensor_counts_writes():
    x = torch.zeros(2)
    before = torch_private.version_of(x)
    x.add_(1)
    assert torch_private.version_of(x) == before + 1


class _Owners(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, found):
        ctx.found = found
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        ctx.found.append(torch_private.has_no_other_owner(grad))
        return grad, None


def test_a_gradient_that_nobody_else_holds_is_told_from_one_that_somebody_does():
    found, x = [], torch.ones(3, requires_grad=True)
    (_Owners.apply(x, found) * 2).sum().backward()
    kept = torch.ones(3)
    _Owners.apply(x, found).backward(kept)
    assert found == [True, False]


def test_operators_are_known_to_be_traced_or_transformed():
    assert not torch_private.is_transformed()
    inside = []
    torch.func.vmap(lambda x: inside.append(torch_private.is_transformed()) or x)(torch.ones(2, 3))
    torch.jit.trace(lambda x: inside.append(torch_private.is_transformed()) or x, torch.ones(2), check_trace=False)
    assert inside == [True, True]


def test_the_module_inside_of_a_compiled_one():
    model = nn.Linear(2, 2)
    assert torch_private.compiled_module(torch.compile(model)) is model
    assert torch_private.compiled_module(model) is None


def test_hooks_on_gradients_steps_and_loading():
    x = nn.Parameter(torch.ones(2, 2))
    assert not list(torch_private.gradient_hooks(x))
    x.register_post_accumulate_grad_hook(print)
    assert list(torch_private.gradient_hooks(x)) == [print]

    optimizer, calls = RowAdaGrad([x]), []
    optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("after"))
    for hook in (*torch_private.before_loading(optimizer), *torch_private.after_loading(optimizer)):
        hook(optimizer, {})
    torch_private.without_step_hooks(optimizer)
    optimizer.step()
    assert calls == ["before", "after"]


def test_trees_of_tensors():
    leaves, spec = torch_private.tree_flatten({"a": [1, 2], "b": (3,)})
    assert leaves == [1, 2, 3] == torch_private.tree_leaves({"a": [1, 2], "b": (3,)})
    doubled = torch_private.tree_unflatten([2 * leaf for leaf in leaves], spec)
    assert doubled == torch_private.tree_map(lambda leaf: 2 * leaf, {"a": [1, 2], "b": (3,)})


def test_a_subclass_may_leave_functions_to_torch():
    class Plain(torch.Tensor):
        __torch_function__ = torch_private.no_torch_function

    assert type(torch.ones(2).as_subclass(Plain) + 1) is torch.Tensor


def test_a_function_is_left_out_of_compiled_graphs():
    @torch_private.without_compiling
    def function(x):
        return x + 1

    assert function(1) == 2


def test_a_dimension_that_is_sharded_twice_has_a_placement_of_its_own():
    placement = torch_private.StridedShard(0, split_factor=2)
    assert (placement.dim, placement.split_factor) == (0, 2)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = torch_private.Nothing

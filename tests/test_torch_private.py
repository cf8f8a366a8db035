"""What we expect of torch's private APIs. All of it was checked with torch 2.9.1 and 2.13.0.

If a newer torch changes one of them, the test that is named after it fails, and the only place to fix is
`matrix_adagrad.torch_private`. (`default_store` needs several ranks: tests/distributed/test_streams.py.)
"""

import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed import checkpoint

from matrix_adagrad import RowAdaGrad, torch_private

CHECKED_WITH = ("2.9.1", "2.13.0")


def release(version):
    """The first two numbers of a version."""
    return tuple(map(int, version.split(".")[:2]))


def uncoalesced():
    values = torch.tensor([[1.0], [2.0], [3.0]])
    return torch.sparse_coo_tensor(torch.tensor([[2, 0, 2]]), values, (4, 1), check_invariants=True)


def test_torch_is_at_least_the_oldest_that_these_were_checked_with():
    assert release("2.9.1") < release("2.13.0+cpu") == release("2.13.1a0")
    assert release(torch.__version__) >= release(CHECKED_WITH[0])


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


def test_a_guard_knows_all_that_a_layout_consists_of():
    x, g = nn.Parameter(torch.ones(3, 4)), torch.ones(3, 4)
    is_alike = torch_private.layout_guard([x, g])
    assert is_alike(x, g)
    assert is_alike(nn.Parameter(torch.zeros(3, 4)), torch.zeros(3, 4))
    others = {
        "nothing": None,
        "a type": nn.Parameter(g, requires_grad=False),
        "a subclass": g.as_subclass(type("Other", (torch.Tensor,), {})),
        "a dtype": g.double(),
        "a size": torch.ones(3, 5),
        "a dimension": torch.ones(1, 3, 4),
        "strides": torch.ones(4, 3).T,
        "gaps": torch.ones(3, 8)[:, ::2],
        "a negated view": torch.ones(3, 4, dtype=torch.complex64).conj().imag,
        "zeros without memory": torch._efficientzerotensor((3, 4)),
        "sparse": g.to_sparse(),
        "another device": g.to("meta"),
        "recorded by autograd": torch.ones(3, 4, requires_grad=True),
        "given twice": x,
    }
    assert [what for what, other in others.items() if is_alike(x, other)] == []
    assert others["a negated view"].is_neg()


def test_a_guard_follows_a_tensor_that_changes():
    x = torch.ones(3, 4)
    for change in (lambda: x.resize_(4, 3), lambda: x.t_(), lambda: setattr(x, "data", x.double())):
        is_alike = torch_private.layout_guard([x])
        assert is_alike(x)
        change()
        assert not is_alike(x)


def test_the_version_of_a_tensor_counts_writes():
    x = torch.zeros(2)
    before = torch_private.version_of(x)
    x.add_(1)
    assert torch_private.version_of(x) == before + 1


@pytest.mark.parametrize(
    "share",
    [lambda x: x[1:], lambda x: x.numpy(), lambda x: x.untyped_storage()],
    ids=["a view", "an array", "a storage"],
)
def test_memory_is_free_once_no_tensor_and_no_storage_shares_it(share):
    x = torch.zeros(4)
    assert torch_private.has_free_memory(x)
    other = share(x)
    assert not torch_private.has_free_memory(x)
    del other
    assert torch_private.has_free_memory(x)


def test_memory_that_another_process_may_see_is_not_free():
    x = torch.zeros(4)
    x[1:].share_memory_()
    assert not torch_private.has_free_memory(x)


def test_a_backward_pass_adds_to_the_leaves_that_are_asked_for():
    found = []

    class Add(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):  # noqa: ARG004 (torch's signature)
            return x + y

        @staticmethod
        def backward(ctx, grad):
            found.append([torch_private.accumulates(node) for node, _ in ctx.next_functions])
            return grad, grad

    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    Add.apply(x, y).sum().backward()
    Add.apply(x, y).sum().backward(inputs=[y])
    torch.autograd.grad(Add.apply(x, y).sum(), x)
    Add.apply(x.requires_grad_(False), y).sum().backward()
    assert found == [[True, True], [False, True], [False, False], [False, True]]


def test_hooks_on_what_is_added_to_a_gradient():
    x = torch.ones(2, requires_grad=True)
    assert not torch_private.has_tensor_hooks(x)
    handle = x.register_hook(lambda grad: grad)
    assert torch_private.has_tensor_hooks(x)
    handle.remove()
    assert not torch_private.has_tensor_hooks(x)


def test_each_backward_pass_has_a_number_of_its_own():
    numbers, x = [], torch.zeros(2, requires_grad=True)
    x.register_hook(lambda _: numbers.append(torch_private.backward_pass()))
    for _ in range(2):
        x.sum().backward()
    assert len({*numbers, -1}) == 3
    assert torch_private.backward_pass() == -1


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


def test_a_gradient_that_nobody_else_holds_differs_from_one_that_somebody_does():
    found, x = [], torch.ones(3, requires_grad=True)
    (_Owners.apply(x, found) * 2).sum().backward()
    kept = torch.ones(3)
    _Owners.apply(x, found).backward(kept)
    assert found == [True, False]


def test_traced_and_transformed_operators_are_recognised():
    assert not torch_private.is_transformed()
    inside = []
    torch.func.vmap(lambda x: inside.append(torch_private.is_transformed()) or x)(torch.ones(2, 3))
    torch.jit.trace(lambda x: inside.append(torch_private.is_transformed()) or x, torch.ones(2), check_trace=False)
    assert inside == [True, True]


def test_the_module_inside_a_compiled_one():
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


def test_hooks_on_steps_are_kept_in_two_dicts_that_stay():
    optimizer = RowAdaGrad([nn.Parameter(torch.zeros(2))])
    before, after = torch_private.step_hooks(optimizer)
    assert not before
    assert not after
    handle = optimizer.register_step_post_hook(lambda *_: None)
    assert after
    handle.remove()
    assert not after


def test_a_wrapper_of_an_optimizer_without_its_own_hooks_is_recognised():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))])
    assert torch_private.runs_step_hooks(optimizer)
    assert not torch_private.runs_step_hooks(Wrapper(optimizer))


def test_an_element_is_set_in_nested_dicts_and_lists():
    state = {"a": {"b": [1, 2]}}
    torch_private.set_element(state, ("a", "b", 1), 3)
    torch_private.set_element(state, ("a", "c"), 4)
    assert state == {"a": {"b": [1, 3], "c": 4}}


def test_the_metadata_of_a_checkpoint_names_the_class_of_its_records_and_calls_two_functions(tmp_path):
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save({"weight": torch.ones(2)}, checkpoint_id=tmp_path)
    pickled = (tmp_path / ".metadata").read_bytes()
    (record,) = pickle.loads(pickled).storage_data.values()
    assert type(record) is torch_private.storage_record()
    assert (tmp_path / record.relative_path).stat().st_size >= record.offset + record.length > 0
    calls = torch_private.called_by_metadata()
    assert all(name.encode() in pickled for _, name in calls)
    named = {name: call for (_, name), call in calls.items()}
    assert named["_get_layout"]("torch.strided") is torch.strided
    assert named["_MEM_FORMAT_ENCODING"](0).name == "TORCH_CONTIGUOUS_FORMAT"


def test_a_mesh_without_process_groups_has_none():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch_private.mesh_without_groups("cpu", torch.tensor([[0]]))
        assert (mesh.shape, mesh.device_type) == ((1, 1), "cpu")
        with pytest.raises(RuntimeError, match="process groups not initialized"):
            mesh.get_group(0)
    finally:
        dist.destroy_process_group()


def test_a_wrapper_has_a_shape_and_no_memory():
    operators = []

    class Wrapper(torch.Tensor):
        __torch_function__ = torch_private.no_torch_function

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            operators.append(func)
            return args[0]

    x = torch_private.empty_wrapper(Wrapper, (1 << 40, 2), torch.float64, torch.device("cpu"))
    assert (type(x), x.shape, x.dtype) == (Wrapper, (1 << 40, 2), torch.float64)
    assert torch.neg(x) is x
    assert operators == [torch.ops.aten.neg.default]


def test_the_arguments_that_an_operator_writes_to():
    x, y = torch.ones(2), torch.zeros(2)
    assert torch_private.written_arguments(torch.ops.aten.add.Tensor, (x, y)) == []
    (written,) = torch_private.written_arguments(torch.ops.aten.add_.Tensor, (x, y))
    assert written is x


def test_all_convolutions_have_one_base():
    layers = nn.Conv1d(1, 1, 1), nn.Conv3d(1, 1, 1), nn.ConvTranspose2d(1, 1, 1)
    assert all(isinstance(layer, torch_private.Convolution) for layer in layers)
    assert not isinstance(nn.Linear(1, 1), torch_private.Convolution)


def test_trees_of_tensors():
    leaves, spec = torch_private.tree_flatten({"a": [1, 2], "b": (3,)})
    assert leaves == [1, 2, 3] == torch_private.tree_leaves({"a": [1, 2], "b": (3,)})
    doubled = torch_private.tree_unflatten([2 * leaf for leaf in leaves], spec)
    assert doubled == torch_private.tree_map(lambda leaf: 2 * leaf, {"a": [1, 2], "b": (3,)})


def test_a_subclass_can_leave_functions_to_torch():
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


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("foreach_add_", (3.0,), 7.0),
        ("foreach_add_", ([torch.tensor(2.0)],), 6.0),
        ("foreach_mul_", (3.0,), 12.0),
        ("foreach_div_", ([8.0],), 0.5),
        ("foreach_reciprocal_", (), 0.25),
        ("foreach_clamp_max_", ([3.0],), 3.0),
    ],
)
def test_a_list_of_tensors_is_changed_in_place(name, arguments, expected):
    x = torch.tensor(4.0)
    getattr(torch_private, name)([x], *arguments)
    assert x == expected


def test_a_list_of_tensors_becomes_another():
    x = torch.tensor(4.0)
    assert torch_private.foreach_sqrt([x])[0] == 2.0
    assert torch_private.foreach_div([x], [8.0])[0] == 0.5
    assert x == 4.0


def test_operators_that_return_an_argument_or_a_view():
    operators = torch.ops.aten.relu.default, torch.ops.aten.relu_.default, torch.ops.aten.view.default
    assert list(map(torch_private.returns_alias, operators)) == [False, True, True]


def test_a_condition_is_checked_where_it_is():
    torch_private.assert_async(torch.tensor(True), "never")
    with pytest.raises(RuntimeError, match="a row is out of range"):
        torch_private.assert_async(torch.tensor(False), "a row is out of range")

"""Nothing reaches the kernels that is not what it seems: parameters, gradients and state, on every step."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.masked import masked_tensor
from torch.nn import Parameter

from matrix_adagrad import ColumnAdaGrad, RowAdaGrad, RowMomentum
from matrix_adagrad.optim import state
from tests.optim.training import assert_bitwise

every_class = pytest.mark.parametrize("cls", [RowAdaGrad, ColumnAdaGrad, RowMomentum])


def a_parameter(m=6, n=4):
    x = Parameter(torch.randn(m, n))
    x.grad = torch.randn(m, n)
    return x


@every_class
@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of MaskedTensors", "ignore:It is not recommended to create", "ignore:lerp_ is not"
)
def test_a_masked_gradient_of_a_plain_parameter_is_an_error_and_moves_nothing(cls):
    w = Parameter(torch.randn(6, 4))
    (masked_tensor(torch.randn(6, 4), torch.rand(6, 4) > 0.5) * w).sum().backward()
    before, optimizer = w.detach().clone(), cls([w], lr=0.1)
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        optimizer.step()
    assert torch.equal(w, before)
    assert optimizer.state[w]["step"] == 0


def test_a_fake_gradient_of_a_plain_parameter_is_an_error():
    w = Parameter(torch.randn(6, 4))
    with FakeTensorMode(allow_non_fake_inputs=True):
        grad = torch.empty(6, 4)
    w._grad = grad
    with pytest.raises(RuntimeError, match="fused=True is not possible here: .*its gradient is a FakeTensor"):
        RowAdaGrad([w], fused=True).step()


class Logged(torch.Tensor):
    """A subclass that has a say in torch's functions, and whose memory is its own affair."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


@every_class
@pytest.mark.parametrize("what", ["gradient", "statistic", "step"])
def test_subclasses_take_the_reference_path_whatever_of_a_parameter_they_are(cls, what):
    ours, plain = a_parameter(), None
    plain = Parameter(ours.detach().clone())
    plain.grad = ours.grad.clone()
    optimizers = cls([ours], lr=0.1), cls([plain], lr=0.1)
    for optimizer in optimizers:
        optimizer.step()
    if what == "gradient":
        ours.grad = ours.grad.as_subclass(Logged)
    else:
        state = optimizers[0].state[ours]
        key = optimizers[0].STATISTIC if what == "statistic" else "step"
        state[key] = state[key].as_subclass(Logged)
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(ours.detach(), plain.detach())
    optimizers[0].param_groups[0]["fused"] = True
    with pytest.raises(RuntimeError, match="fused=True is not possible here: .*is a Logged"):
        optimizers[0].step()


@pytest.mark.parametrize("shape", [(0,), (3,)])
def test_a_step_count_that_is_no_single_number_never_reaches_the_kernels(shape):
    x = a_parameter()
    optimizer = RowMomentum([x], fused=True)
    optimizer.step()
    optimizer.state[x]["step"] = torch.zeros(shape)
    with pytest.raises(RuntimeError, match="fused=True is not possible here"):
        optimizer.step()


@every_class
@pytest.mark.parametrize("whose", ["gradient", "parameter", "statistic"])
def test_memory_that_was_given_back_is_an_error(cls, whose):
    x = a_parameter()
    optimizer = cls([x])
    optimizer.step()
    lost = {"gradient": x.grad, "parameter": x, "statistic": optimizer.state[x][cls.STATISTIC]}[whose]
    lost.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"the memory of a parameter of shape \(6, 4\), .* has been freed"):
        optimizer.step()


# ------------------------------------------------------------------------------------------------- overlapping memory


@every_class
def test_a_gradient_that_is_the_parameter_in_another_order_is_an_error_and_moves_nothing(cls):
    x = Parameter(torch.randn(6, 6))
    x.grad = x.detach().T
    before, optimizer = x.detach().clone(), cls([x])
    with pytest.raises(RuntimeError, match="shares memory with its gradient, in another order: .*clone"):
        optimizer.step()
    assert torch.equal(x, before)
    assert not optimizer.state[x][cls.STATISTIC].any()


@every_class
def test_a_gradient_that_is_the_parameter_itself_is_one_as_any(cls):
    x = Parameter(torch.randn(6, 6))
    apart = Parameter(x.detach().clone())
    x.grad, apart.grad = x.detach(), apart.detach().clone()
    for param in (x, apart):
        cls([param], lr=0.1).step()
    assert torch.equal(x, apart)


@every_class
def test_a_gradient_between_the_parameters_entries_is_one_as_any(cls):
    memory = torch.randn(6, 8)
    x, apart = Parameter(memory[:, ::2]), Parameter(memory[:, ::2].clone())
    x.grad, apart.grad = memory[:, 1::2], memory[:, 1::2].clone()
    for param in (x, apart):
        cls([param], lr=0.1).step()
    torch.testing.assert_close(x.detach(), apart.detach())


# --------------------------------------------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("cls", [RowAdaGrad, ColumnAdaGrad, RowMomentum])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("backend", [{}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize(
    ("before", "after"),
    [(torch.float32, torch.float64), (torch.bfloat16, torch.float64), (torch.float64, torch.float32)],
    ids=str,
)
def test_state_follows_a_parameter_that_gets_another_dtype(cls, sparse, backend, before, after):
    table = nn.Embedding(10, 4, sparse=sparse).to(before)
    optimizer = cls(table.parameters(), lr=0.1, **backend)

    def step():
        optimizer.zero_grad()
        table(torch.tensor([1, 2, 2])).square().sum().backward()
        optimizer.step()

    step()
    table.to(after)
    made_anew = nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False, sparse=sparse)
    saved = copy.deepcopy(optimizer.state_dict())
    step()
    weight, state = table.weight, optimizer.state[table.weight]
    assert {value.dtype for key, value in state.items() if key != "step"} == {after}

    table, optimizer = made_anew, cls(made_anew.parameters(), lr=0.1, **backend)
    optimizer.load_state_dict(saved)
    step()
    assert_bitwise([table.weight, *optimizer.state[table.weight].values()], [weight, *state.values()])


@every_class
def test_a_step_count_whose_memory_was_given_back_is_an_error(cls):
    x = a_parameter()
    optimizer = cls([x])
    optimizer.step()
    optimizer.state[x]["step"].untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="has been freed"):
        optimizer.step()


def test_rows_of_a_sparse_gradient_that_are_the_parameters_own_memory_are_an_error():
    x = Parameter(torch.randn(50, 8))
    x.grad = torch.sparse_coo_tensor(torch.arange(49, -1, -1)[None], x.data, x.shape, check_invariants=False)
    with pytest.raises(RuntimeError, match="shares memory with its gradient"):
        RowAdaGrad([x]).step()


def test_a_parameter_whose_entries_share_their_memory_is_not_for_the_kernels():
    x = Parameter(torch.ones(5).as_strided((3, 3), (1, 1)))
    x.grad = torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="some of its entries share memory"):
        RowAdaGrad([x], fused=True).step()


# ------------------------------------------------------------------------------------ what is kept from step to step


@every_class
@pytest.mark.parametrize("overlap", [lambda x: x.view(-1)[3:27].view(4, 6), lambda x: x.view(-1)[:24].view(4, 6)])
def test_a_later_gradient_in_the_memory_of_the_parameter_is_an_error_and_moves_nothing(cls, overlap):
    memory = torch.randn(6, 6)
    x = Parameter(memory.view(-1)[6:30].view(4, 6))
    y = a_parameter(4, 6)
    optimizer = cls([y, x])
    for _ in range(3):
        x.grad = torch.randn(4, 6)
        optimizer.step()
    x.grad = overlap(memory)
    before = memory.clone(), y.detach().clone()
    with pytest.raises(RuntimeError, match="shares memory with its gradient"):
        optimizer.step()
    assert_bitwise([memory, y], before)


def moved(x, state):
    x.data = x.data.clone()
    for value in state.values():
        value.data = value.data.clone()


def transposed(x, _):
    x.data = x.data.T.contiguous().T


def replaced(_, state):
    state.update({key: value.clone() for key, value in state.items()})


@every_class
@pytest.mark.parametrize("change", [moved, transposed, replaced])
def test_tensors_that_change_between_steps_are_followed(cls, change):
    changed, plain = a_parameter(), None
    plain = Parameter(changed.detach().clone())
    optimizers = cls([changed], lr=0.1), cls([plain], lr=0.1)
    for step in range(5):
        changed.grad = torch.randn(6, 4)
        plain.grad = changed.grad.clone()
        if step == 3:
            state = optimizers[0].state[changed]
            before = [changed.data, *[value.data for value in state.values()]]
            copies = [value.clone() for value in before]
            change(changed, state)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(changed, plain)
    assert optimizers[0].state[changed]["step"] == 5
    if change is moved:
        assert_bitwise(before, copies)  # nothing is written where they were


@every_class
def test_a_parameter_of_another_shape_does_not_take_the_old_state(cls):
    x = a_parameter()
    optimizer = cls([x])
    for _ in range(3):
        optimizer.step()
    x.data, x.grad = torch.randn(4, 6), torch.randn(4, 6)
    with pytest.raises((RuntimeError, ValueError)):
        optimizer.step()


def test_gradients_of_a_kept_step_may_be_where_they_like():
    """As many parameters with new gradients at each step, one of them empty."""
    params = [a_parameter(), Parameter(torch.empty(0, 4)), Parameter(torch.randn(5)), Parameter(torch.randn(3, 2).T)]
    others = [Parameter(param.detach().clone()) for param in params]
    kept, anew = RowAdaGrad(params, lr=0.1), RowAdaGrad(others, lr=0.1)
    for _ in range(4):
        for param, other in zip(params, others, strict=True):
            param.grad = torch.randn_like(param)
            other.grad = param.grad.clone()
        kept.step()
        anew.forget_last_step()
        anew.step()
    assert_bitwise(params, others)


def freed(make):
    """Whether what ``make`` returns a weak reference to is gone."""
    reference = make()
    gc.collect()
    return reference() is None


@every_class
def test_gradients_are_not_kept(cls):
    x = a_parameter()
    optimizer = cls([x])

    def step():
        x.grad = torch.randn(6, 4)
        gone = weakref.ref(x.grad)
        optimizer.step()
        x.grad = None
        return gone

    assert freed(step)
    assert freed(step)


@every_class
def test_gradients_of_a_step_that_is_refused_are_not_kept(cls):
    x = a_parameter()
    y = Parameter(torch.randn(10, 4))
    optimizer = cls([{"params": [x]}, {"params": [y]}])

    def bad_index():
        x.grad = torch.randn(6, 4)
        y.grad = torch.sparse_coo_tensor(torch.tensor([[3]]), torch.ones(1, 4), (10, 4), check_invariants=True)
        y.grad._indices()[0, 0] = 99
        gone = weakref.ref(x.grad)
        with pytest.raises(IndexError):
            optimizer.step()
        x.grad = y.grad = None
        return gone

    assert freed(bad_index)


@every_class
def test_a_parameter_that_is_replaced_is_not_kept(cls):
    """As methods do that grow and prune their parameters."""
    optimizer = cls([a_parameter()])
    optimizer.step()

    def replace():
        old = optimizer.param_groups[0]["params"][0]
        optimizer.state.pop(old)
        optimizer.param_groups[0]["params"][0] = a_parameter(8)
        gone = weakref.ref(old)
        del old
        optimizer.step()
        return gone

    assert freed(replace)


def test_two_threads_never_share_a_gradient():
    x = a_parameter(300, 200)
    optimizer, errors = RowAdaGrad([x], lr=1e-3), []

    def work():
        try:
            for _ in range(200):
                x.grad = torch.ones(300, 200)
                optimizer.step()
        except Exception as error:  # a thread's own would only be printed
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_thread_never_sees_half_of_a_state(monkeypatch):
    """A second thread takes its whole first step while the first one still makes the state."""
    x = a_parameter()
    optimizer, errors, make = RowAdaGrad([x], lr=0.1), [], state._empty_statistics

    def step():
        try:
            optimizer.step()
        except Exception as error:  # a thread's own would only be printed
            errors.append(error)

    def interrupted(*arguments):
        monkeypatch.setattr(state, "_empty_statistics", make)
        other = threading.Thread(target=step)
        other.start()
        other.join()
        return make(*arguments)

    monkeypatch.setattr(state, "_empty_statistics", interrupted)
    step()
    assert not errors
    assert optimizer.state[x]["step"] == 2


@every_class
def test_a_group_that_is_edited_between_steps_is_followed(cls):
    """As a fresh optimizer that goes on from the same state."""
    edited, fresh = a_parameter(), None
    optimizer = cls([edited], lr=0.1)
    optimizer.step()
    fresh = Parameter(edited.detach().clone())
    fresh.grad = edited.grad.clone()
    other = cls([fresh], lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    options = {"lr": 0.01, "weight_decay": 0.1, "maximize": True}
    for group in (optimizer.param_groups[0], other.param_groups[0]):
        group.update(options)
    for each in (optimizer, other):
        each.step()
    assert_bitwise([edited, *optimizer.state[edited].values()], [fresh, *other.state[fresh].values()])


@pytest.mark.parametrize("cls", [RowAdaGrad, RowMomentum])
def test_a_geometry_that_is_fixed_cannot_be_edited(cls):
    x = a_parameter()
    optimizer = cls([x])
    optimizer.step()
    optimizer.param_groups[0]["geometry"] = "column"
    with pytest.raises(ValueError, match="scales by row, and a group asks for column"):
        optimizer.step()


class Betas(list):
    """A list by another name, as some readers of YAML return."""


def test_betas_that_are_edited_in_place_are_followed():
    x = a_parameter()
    optimizer = RowMomentum([x], betas=Betas([0.9, 0.99]), bias_correction=False)
    optimizer.step()
    optimizer.param_groups[0]["betas"][0] = 1e-30
    optimizer.step()
    assert torch.equal(optimizer.state[x]["exp_avg"], x.grad)


def test_momentum_that_is_switched_off_and_on_in_place_neither_crashes_nor_stays():
    x = a_parameter()
    optimizer = RowMomentum([x], betas=Betas([0.9, 0.99]))
    for beta1, keys in ((0.9, {"step", "exp_avg", "exp_avg_sq"}), (0.0, {"step", "exp_avg_sq"})) * 2:
        optimizer.param_groups[0]["betas"][0] = beta1
        optimizer.step()
        assert set(optimizer.state[x]) == keys


def test_capturable_steps_on_a_cpu_draw_new_random_numbers():
    x, y = (Parameter(torch.ones(64, 64, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = RowAdaGrad([x, y], lr=2**-8, reduction="mean", stochastic_rounding=True, capturable=True)
    ends = []
    for _ in range(2):
        for param in (x, y):
            param.data.fill_(1.0)
            param.grad = torch.full_like(param, -1)
        optimizer.state.clear()
        optimizer.step()
        ends += [x.detach().clone(), y.detach().clone()]
    for i, end in enumerate(ends):
        assert all(0.4 < (end == other).float().mean() < 0.6 for other in ends[:i])

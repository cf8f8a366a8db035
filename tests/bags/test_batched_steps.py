"""`optimizer.step()` takes the gradients of a batch of bags in one native call, and is the step of each by itself."""

import copy

import numpy as np
import pytest
import torch

from matrix_adagrad import MatrixAdaGrad, RowAdaGrad, RowMomentum, SteepestDescent, clip_grad_norm_, native
from matrix_adagrad.domains import RowBalls
from matrix_adagrad.optim.step import native as steps
from tests.bags.tables import TABLES, bags_of, batch, copies
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")

THREE = {"user": (50, 8), "item": (30, 4), "type": (20, 6)}  # one feature reads each


def three(seed, size=6):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (3, size), generator=random)
    ids = [torch.randint(20, (int(own.sum()),), generator=random) for own in lengths]
    return torch.cat(ids), torch.nn.functional.pad(lengths.reshape(-1).cumsum(0), (1, 0))


def backward(bags, seed, **options):
    bags(*three(seed, **options)).square().sum().backward()


def apart(tables):
    """The same gradients, none of which says that it is from a batch."""
    for table in tables:
        if table.grad is not None:
            table.grad = table.grad.to_sparse()


def both(make, edit=lambda _bags, _optimizer, _t: None, steps=6, of_step=backward):
    """Tables trained with the gradients of batches, and with the same gradients as plain sparse tensors."""
    ends = []
    for is_apart in (False, True):
        torch.manual_seed(1)
        bags = bags_of(THREE)
        optimizer = make(bags)
        for t in range(steps):
            bags.zero_grad()
            of_step(bags, t)
            edit(bags, optimizer, t)
            if is_apart:
                apart(bags.parameters())
            optimizer.step()
        state = [value for table in bags.parameters() for value in optimizer.state[table].values()]
        ends.append([*map(torch.Tensor.detach, bags.parameters()), *state])
    assert_bitwise(*ends)


@pytest.fixture
def calls(monkeypatch):
    """The kernels that are called."""
    found, run = [], steps._with_room
    monkeypatch.setattr(
        steps, "_with_room", lambda kernel, *given: found.append(kernel.__name__) or run(kernel, *given)
    )
    return found


MAKERS = [
    lambda bags: RowAdaGrad(bags.parameters(), lr=0.1),
    lambda bags: RowMomentum(bags.parameters(), lr=0.1),
    lambda bags: MatrixAdaGrad(bags.parameters(), lr=0.1, geometry="column"),
    lambda bags: SteepestDescent(bags.parameters(), lr=0.1, geometry="row"),
    lambda bags: RowAdaGrad(bags.parameters(), lr=torch.tensor(0.1)),
    lambda bags: RowAdaGrad([{"params": [own]} for own in bags.parameters()], lr=0.1),
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_step_is_one_call_for_all_tables_of_a_group(make, calls):
    bags = bags_of(THREE)
    optimizer = make(bags)
    for t in range(3):
        optimizer.zero_grad()
        backward(bags, t)
        optimizer.step()
    assert calls == ["matrix_adagrad_bags_step"] * len(optimizer.param_groups) * 3


@pytest.mark.parametrize("make", MAKERS)
def test_the_tables_move_as_by_plain_sparse_gradients(make):
    both(make)


def scale_one(bags, _optimizer, t):
    if t % 2:
        bags.tables["item"].grad.mul_(0.5)


def drop_one(bags, _optimizer, t):
    if t % 3 == 1:
        bags.tables["item"].grad = None


def clip(bags, _optimizer, t):
    if t > 2:
        clip_grad_norm_(bags.parameters(), 0.1)


def bound(_bags, optimizer, t):
    optimizer.param_groups[0]["domain"] = RowBalls(0.5) if t in (2, 3) else None


def use_torch(_bags, optimizer, t):
    optimizer.param_groups[0]["fused"] = t < 3 and None


def change_rate(_bags, optimizer, t):
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + t)


def load(_bags, optimizer, t):
    if t == 3:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def move(bags, _optimizer, t):
    if t == 3:
        bags.tables["user"].data = bags.tables["user"].detach().clone()


@pytest.mark.parametrize("edit", [scale_one, drop_one, clip, bound, use_torch, change_rate, load, move])
def test_what_is_edited_between_steps_counts(edit):
    both(lambda bags: RowAdaGrad(bags.parameters(), lr=0.1, project_start=True), edit)


def twice(bags, t):
    backward(bags, t)
    if t % 2:
        backward(bags, t + 10)


def of_another_size(bags, t):
    backward(bags, t, size=1 + t)


def with_weights(bags, t):
    index, offsets = three(t)
    weights = torch.rand(len(index), generator=torch.Generator().manual_seed(t)) if t % 2 else None
    bags(index, offsets, weights).square().sum().backward()


def without_bags(bags, t):
    backward(bags, t, size=6 * (t % 2))


@pytest.mark.parametrize("of_step", [twice, of_another_size, with_weights, without_bags])
def test_batches_of_any_kind_follow_each_other(of_step):
    both(MAKERS[0], of_step=of_step)


def test_tables_that_share_a_batch_with_others_are_stepped_by_their_own_optimizers():
    def make(bags):
        own = list(bags.parameters())
        one, other = RowAdaGrad(own[:2], lr=0.1), RowAdaGrad(own[2:], lr=0.2)
        one.register_step_post_hook(lambda *_: other.step())
        one.add_param_group({"params": [torch.zeros(3, requires_grad=True)]})
        one.state.update({own[2]: other.state[own[2]]})
        return one

    both(make)


@pytest.mark.parametrize("what", ["indices", "offsets"])
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("in_groups", [True, False])
def test_lists_that_are_written_to_before_the_step_move_nothing(what, seen, in_groups):
    bags = bags_of(THREE)
    own = list(bags.parameters())
    optimizer = RowAdaGrad([{"params": own[:1]}, {"params": own[1:]}] if in_groups else own)
    for is_known in (False, True):
        lists = {"indices": np.array([1, 2, 3, 4]), "offsets": np.array([0, 1, 2, 4])}
        given = {name: torch.from_numpy(array) for name, array in lists.items()}
        optimizer.zero_grad()
        bags(*given.values()).sum().backward()
        before = copies(bags)
        if seen:
            given[what][2:].mul_(1000)
        else:
            lists[what][2:] *= 1000
        with pytest.raises(RuntimeError if seen else (IndexError, ValueError)):
            optimizer.step()
        assert_bitwise(own, list(before.values()))
        if not is_known:
            optimizer.zero_grad()
            backward(bags, 0)
            optimizer.step()


def test_no_gradient_is_kept_after_a_step():
    bags = bags_of()
    optimizer = RowAdaGrad(bags.parameters())
    for t in range(2):
        bags(*batch(t)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(optimizer._kept) == 1
    assert all(update.grad is None for update in optimizer._kept[0].updates)
    assert len(TABLES) == len(optimizer._kept[0].updates) or not optimizer._kept[0].updates


class WithGradient(torch.autograd.Function):
    """The identity, with a gradient in memory that somebody else has."""

    @staticmethod
    def forward(ctx, x, memory):
        ctx.memory = memory
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.empty(0).set_(ctx.memory.untyped_storage(), 0, grad.shape, (grad.shape[1], 1)), None


def test_gradients_that_lie_in_a_table_are_refused():
    bags, memory = bags_of({"user": (20, 4), "item": (10, 4)}), torch.zeros(20, 4)
    bags.tables["user"].data = memory
    optimizer = RowAdaGrad(bags.parameters())
    lists = torch.arange(10).repeat(2), torch.arange(21)
    bags(*lists).sum().backward()
    optimizer.step()
    before = memory.clone()
    optimizer.zero_grad()
    WithGradient.apply(bags(*lists), memory).sum().backward()
    with pytest.raises(RuntimeError, match="shares memory with its gradient"):
        optimizer.step()
    assert_bitwise([memory], [before])

"""The gradient by bags is, to everything that looks at it, the sparse gradient that it stands for."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adagrad, SparseAdam

from matrix_adagrad import (
    EmbeddingBag,
    Factored,
    MatrixAdaGrad,
    MatrixMomentum,
    RowAdaGrad,
    RowMomentum,
    native,
    step_in_backward,
)
from matrix_adagrad.bags import BagGradient
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")

ROWS, WIDTH = 12, 4


def a_gradient(seed=0):
    random = torch.Generator().manual_seed(seed)
    index = torch.randint(ROWS, (9,), generator=random)
    offsets = torch.tensor([0, 3, 3, 8, 9])  # one of them is empty
    values = torch.randn(4, WIDTH, generator=random, dtype=torch.float64)
    return BagGradient(index, offsets, values, (ROWS, WIDTH))


def dense_by_hand(gradient):
    index, offsets, _, values = gradient.entries()
    dense = torch.zeros(gradient.shape, dtype=gradient.dtype)
    for b in range(len(values)):
        for k in range(offsets[b], offsets[b + 1]):
            dense[index[k]] += values[b]
    return dense


def equal(gradient, dense):
    assert gradient.is_sparse
    torch.testing.assert_close(gradient.to_dense(), dense, rtol=1e-14, atol=1e-14)


def test_it_stands_for_a_sparse_tensor():
    gradient = a_gradient()
    dense = dense_by_hand(gradient)
    equal(gradient, dense)
    assert (gradient.layout, gradient.sparse_dim(), gradient.dense_dim(), gradient._nnz()) == (
        torch.sparse_coo,
        1,
        1,
        9,
    )
    assert not gradient.is_coalesced()
    torch.testing.assert_close(gradient.coalesce().to_dense(), dense)
    torch.testing.assert_close(torch.zeros_like(dense) + gradient, dense)
    rebuilt = torch.sparse_coo_tensor(gradient._indices(), gradient._values(), gradient.shape, check_invariants=True)
    torch.testing.assert_close(rebuilt.to_dense(), dense)


def test_sums_and_multiples_stay_small():
    gradient, other = a_gradient(0), a_gradient(1)
    dense, more = gradient.to_dense(), other.to_dense()
    for result, expected in (
        (gradient + other, dense + more),
        (gradient * 2, 2 * dense),
        (gradient / torch.tensor(4.0), dense / 4),
        (gradient.detach(), dense),
        (gradient.clone(), dense),
    ):
        assert isinstance(result, BagGradient)
        assert result.entries()[1] is not None
        equal(result, expected)
    kept = gradient.clone()
    for change in (
        lambda: gradient.mul_(3),
        lambda: gradient.div_(2),
        lambda: gradient.add_(other),
        lambda: gradient.__iadd__(other),
    ):
        assert change() is gradient
        assert gradient.entries()[1] is not None
    equal(gradient, 1.5 * dense + 2 * more)
    equal(kept, dense)


def test_other_operators_see_the_sparse_tensor_and_may_write_to_it():
    gradient = a_gradient()
    dense = gradient.to_dense()
    assert torch.equal((-gradient).to_dense(), -dense)
    torch.testing.assert_close(gradient + dense, 2 * dense)
    torch.testing.assert_close(dense + gradient, 2 * dense)
    gradient.neg_()
    equal(gradient, -dense)
    gradient.mul_(2).add_(a_gradient())
    equal(gradient, -dense)
    torch._foreach_mul_([gradient], 3.0)
    equal(gradient, -3 * dense)
    gradient.zero_()
    equal(gradient, torch.zeros_like(dense))


def test_who_writes_to_its_values_changes_it():
    gradient = a_gradient()
    dense = gradient.to_dense()
    gradient._values().mul_(2)
    equal(gradient, 2 * dense)


def test_it_can_be_copied_and_pickled():
    gradient = a_gradient()
    for other in (copy.deepcopy(gradient), pickle.loads(pickle.dumps(gradient))):
        assert torch.equal(other.to_dense(), gradient.to_dense())
    twin = copy.deepcopy(gradient)
    twin._values().mul_(2)
    equal(gradient, dense_by_hand(gradient))


def test_the_norm_is_that_of_the_dense_gradient_and_clipping_works():
    bag = EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True, dtype=torch.float64)
    bag(torch.tensor([[1, 2, 2], [2, 3, 1]])).square().sum().backward()
    dense = bag.weight.grad.to_dense()
    for order in (1, 2, torch.inf):
        torch.testing.assert_close(
            torch.linalg.vector_norm(bag.weight.grad, order), torch.linalg.vector_norm(dense, order)
        )
    norm = nn.utils.clip_grad_norm_(bag.parameters(), 0.1)
    torch.testing.assert_close(norm, dense.norm())
    equal(bag.weight.grad, dense * (0.1 / (norm + 1e-6)))


# ---------------------------------------------------------------------------------------------------- in training


def after(train, cls, optimizer, dtype=torch.float64):
    torch.manual_seed(0)
    bag = cls(ROWS, WIDTH, mode="sum", sparse=True, dtype=dtype)
    train(bag, optimizer(bag.parameters()))
    return bag.weight.detach()


def same_as_torchs_module(train, optimizer, dtype=torch.float64):
    ours, theirs = (after(train, cls, optimizer, dtype) for cls in (EmbeddingBag, nn.EmbeddingBag))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert not torch.equal(ours, after(lambda *_: None, EmbeddingBag, optimizer, dtype))


def loss_of(bag, seed):
    random = torch.Generator().manual_seed(seed)
    index = torch.randint(ROWS, (5, 3), generator=random)
    return (bag(index) * torch.randn(5, WIDTH, generator=random, dtype=bag.weight.dtype)).sum()


OPTIMIZERS = {
    "ours, by row": lambda p: RowAdaGrad(p, lr=0.1),
    "ours, with momentum": lambda p: RowMomentum(p, lr=0.1),
    "ours, by column": lambda p: MatrixAdaGrad(p, lr=0.1, geometry="column"),
    "ours, factored": lambda p: MatrixMomentum(p, lr=0.1, geometry=Factored(), betas=(0.0, 0.9)),
    "SGD": lambda p: SGD(p, lr=0.1),
    "Adagrad": lambda p: Adagrad(p, lr=0.1),
    "SparseAdam": lambda p: SparseAdam(p, lr=0.1),
}
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


@every_optimizer
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_our_optimizers_and_torchs_take_it(optimizer):
    def train(bag, optimizer):
        for t in range(3):
            optimizer.zero_grad()
            loss_of(bag, t).backward()
            optimizer.step()

    same_as_torchs_module(train, optimizer)


@pytest.mark.parametrize("together", [False, True])
def test_gradients_accumulate_over_backward_passes_and_within_one(together):
    def train(bag, optimizer):
        for t in range(3):
            optimizer.zero_grad()
            if together:
                (loss_of(bag, t) + loss_of(bag, t + 10)).backward()
            else:
                loss_of(bag, t).backward()
                loss_of(bag, t + 10).backward()
            optimizer.step()

    same_as_torchs_module(train, lambda p: RowAdaGrad(p, lr=0.1))


def test_zeros_that_are_kept_are_zeros():
    def train(bag, optimizer):
        for t in range(3):
            optimizer.zero_grad(set_to_none=False)
            loss_of(bag, t).backward()
            optimizer.step()

    same_as_torchs_module(train, lambda p: RowAdaGrad(p, lr=0.1))


def test_a_table_that_is_used_densely_too_has_the_sum_of_both_gradients():
    def train(bag, optimizer):
        (loss_of(bag, 0) + bag.weight.square().sum()).backward()
        optimizer.step()

    same_as_torchs_module(train, lambda p: RowAdaGrad(p, lr=0.1))


@pytest.mark.parametrize("dense_first", [False, True])
def test_gradients_of_both_kinds_add_up_over_backward_passes(dense_first):
    def train(bag, optimizer):
        losses = [loss_of(bag, 0), bag.weight.square().sum()]
        for loss in losses[::-1] if dense_first else losses:
            loss.backward()
        optimizer.step()

    same_as_torchs_module(train, lambda p: RowAdaGrad(p, lr=0.1))


def test_a_gradient_that_a_hook_keeps_is_another_than_the_parameters():
    kept = []

    def train(bag, optimizer):
        bag.weight.register_hook(kept.append)
        for t in range(2):
            loss_of(bag, t).backward()
        optimizer.step()

    same_as_torchs_module(train, lambda p: RowAdaGrad(p, lr=0.1))
    assert kept[0].to_dense().abs().sum() > 0


def test_a_gradient_scaler_unscales_it():
    def train(bag, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for t in range(2):
            optimizer.zero_grad()
            scaler.scale(loss_of(bag, t)).backward()
            scaler.step(optimizer)
            scaler.update()

    ours, theirs = (
        after(train, cls, lambda p: RowMomentum(p, lr=0.1), torch.float32) for cls in (EmbeddingBag, nn.EmbeddingBag)
    )
    torch.testing.assert_close(ours, theirs)


def test_steps_in_the_backward_pass_take_it():
    def train(bag, optimizer):
        with step_in_backward(optimizer):
            for t in range(3):
                loss_of(bag, t).backward()
        assert bag.weight.grad is None

    same_as_torchs_module(train, lambda p: RowAdaGrad(p, lr=0.1))


# ------------------------------------------------------------------------------------- what belongs to others


def test_indices_that_were_changed_since_are_found_out_before_anything_moves():
    bag = EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)
    optimizer = RowAdaGrad(bag.parameters())
    index, before = torch.tensor([[1, 2], [3, 4]]), bag.weight.detach().clone()
    bag(index).sum().backward()
    index.fill_(10**6)
    with pytest.raises(RuntimeError, match="the indices of an EmbeddingBag, .* were changed in place"):
        optimizer.step()
    assert_bitwise([bag.weight], [before])


def test_indices_that_were_changed_before_the_backward_pass_are_found_out():
    bag = EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)
    loss = bag(index := torch.tensor([[1, 2], [3, 4]])).sum()
    index.fill_(5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("cls", [EmbeddingBag, nn.EmbeddingBag], ids=lambda cls: cls.__module__)
def test_writes_that_torch_does_not_see_change_the_gradient_here_as_in_torchs_module_but_not_that_of_a_copy(cls):
    for given, touched in ((lambda index: index, [5]), (torch.clone, [1, 2, 3, 4])):
        bag = cls(ROWS, WIDTH, mode="sum", sparse=True)
        before, index = bag.weight.detach().clone(), torch.tensor([[1, 2], [3, 4]])
        bag(given(index)).sum().backward()
        index.numpy().fill(5)
        RowAdaGrad(bag.parameters()).step()
        assert (bag.weight != before).any(1).nonzero().view(-1).tolist() == touched


def test_offsets_may_be_used_again_and_rows_that_vanish_are_found_out_before_anything_moves():
    bag = EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True, include_last_offset=True)
    optimizer = RowAdaGrad(bag.parameters())
    index, offsets, before = torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]), bag.weight.detach().clone()
    bag(index, offsets).sum().backward()
    offsets.fill_(10**9)
    assert bag.weight.grad.to_dense().sum() == 3 * WIDTH
    index.data.fill_(10**6)  # which torch does not see
    with pytest.raises(IndexError, match="parameter 0 has 12 rows, and its sparse gradient has rows 1000000 to"):
        optimizer.step()
    assert_bitwise([bag.weight], [before])


def test_what_was_given_to_backward_may_be_used_again():
    bag = EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)
    upstream = torch.ones(2, WIDTH)
    for view in (lambda out: out, lambda out: out.view(-1)):
        bag.weight.grad = None
        view(bag(torch.tensor([[1, 2], [3, 4]]))).backward(view(upstream))
        upstream.fill_(7)
        assert bag.weight.grad.to_dense().max() == 1
        bag.weight.grad.mul_(2)
        assert upstream.eq(7).all()
        upstream.fill_(1)


def test_a_gradient_that_a_hook_kept_and_changed_is_found_out():
    bag, kept = EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True), []
    out = bag(torch.tensor([[1, 2], [3, 4]]))
    out.register_hook(kept.append)
    (out * 2).sum().backward()
    kept[0].zero_()
    with pytest.raises(RuntimeError, match="or the gradient of its output, were changed in place"):
        RowAdaGrad(bag.parameters()).step()


def test_parts_that_do_not_belong_together_are_refused():
    index, offsets, values = torch.tensor([3, 0, 3]), torch.tensor([0, 2, 3]), torch.ones(2, WIDTH)
    for wrong, error, message in (
        ((index, offsets, torch.ones(2, 5)), ValueError, "values of shape .2, 5. do not match the rows"),
        ((index.float(), offsets, values), ValueError, "index must be a list of int64"),
        ((index, offsets[:2], values), ValueError, "offsets must be a list of int64, one more than the 2 bags"),
        ((index, torch.tensor([0, 4, 3]), values), ValueError, "offsets must go from 0 to the 3 entries"),
        ((index, torch.tensor([0, 2, 4]), values), ValueError, "offsets must go from 0 to the 3 entries"),
        ((index, None, values), ValueError, "without offsets each of the 3 rows has values, and there are 2"),
        ((index.to("meta"), offsets, values), ValueError, "must be on one device"),
        ((index + 9, offsets, values), IndexError, "the table has 12 rows, and the index has rows 9 to 12"),
        ((index - 1, offsets, values), IndexError, "the table has 12 rows, and the index has rows -1 to 2"),
    ):
        with pytest.raises(error, match=message):
            BagGradient(*wrong, (ROWS, WIDTH))


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_what_it_cannot_do_is_refused():
    bag = EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)
    bag(torch.tensor([[1, 2]])).square().sum().backward(create_graph=True)
    with pytest.raises(RuntimeError, match="the gradient of an EmbeddingBag cannot be differentiated"):
        bag.weight.grad.to_dense()
    gradient = a_gradient()
    with pytest.raises(NotImplementedError, match="has no storage"):
        gradient.share_memory_()
    with pytest.raises(NotImplementedError, match="has no storage"):
        gradient.data_ptr()


def test_a_gradient_that_is_only_read_stays_small_and_one_that_is_written_to_has_rows_of_its_own():
    gradient = a_gradient()
    torch.zeros(ROWS, WIDTH, dtype=torch.float64).add_(gradient)
    index, offsets, *_ = gradient.entries()
    assert offsets is not None
    gradient.neg_()
    dense = gradient.to_dense()
    index.zero_()
    assert torch.equal(gradient.to_dense(), dense)


def test_it_cannot_be_sent_for_what_came_back_would_be_lost():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="a BagGradient cannot be sent"):
            dist.all_reduce(a_gradient())
    finally:
        dist.destroy_process_group()

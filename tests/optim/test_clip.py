"""Clipping by the norm is torch's on the dense gradients, whatever the gradients are stored as."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.nn import Parameter

from matrix_adagrad import Embedding, EmbeddingBag, RowAdaGrad, clip_grad_norm_, native
from matrix_adagrad.bags import BagGradient
from tests.optim.training import assert_bitwise, make_grads, make_params

ROWS, WIDTH = 12, 4
ORDERS = [2.0, 1.0, 3, 0.5, 0, torch.inf, "inf", -1, -torch.inf]


class Model(nn.Module):
    """Torch's sparse tables, ours, and dense layers."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        options = {"sparse": True, "dtype": dtype}
        self.theirs = nn.Embedding(ROWS, WIDTH, **options)
        self.ours = Embedding(ROWS, WIDTH, **options)
        self.their_bags = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", **options)
        self.our_bags = EmbeddingBag(ROWS, WIDTH, mode="sum", **options)
        self.unused = EmbeddingBag(ROWS, WIDTH, **options)
        self.dense = nn.Linear(WIDTH, 3, dtype=dtype)

    def loss(self, ids):
        rows = (self.theirs(ids) + self.ours(ids).flip(2)).sum(1) + self.their_bags(ids) + self.our_bags(ids)
        return self.dense(rows.square()).square().sum()


def trained(dtype=torch.float64):
    """A model with gradients: rows repeat, within bags and between them."""
    torch.manual_seed(0)
    model = Model(dtype)
    for _ in range(1 if dtype == torch.float16 else 2):  # torch cannot add sparse gradients in float16
        model.loss(torch.randint(ROWS - 2, (7, 3))).backward()
    return list(model.parameters())


def densified(params):
    return [with_grad(param, None if param.grad is None else param.grad.to_dense()) for param in params]


def with_grad(param, grad):
    twin = Parameter(param.detach().clone())
    twin.grad = None if grad is None else grad.clone()
    return twin


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("max_norm", [1e-3, 1e9])
def test_sparse_and_bag_gradients_are_clipped_like_dense_ones(order, max_norm):
    params = trained()
    dense = densified(params)
    norm = clip_grad_norm_(params, max_norm, order)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(dense, max_norm, order))
    for param, expected in zip(params, dense, strict=True):
        if expected.grad is not None:
            torch.testing.assert_close(param.grad.to_dense(), expected.grad)


def test_gradients_stay_what_they_are():
    params = trained()
    before = [param.grad for param in params]
    clip_grad_norm_(params, 0.1)
    assert all(param.grad is grad for param, grad in zip(params, before, strict=True))
    theirs, ours, their_bags, our_bags, unused, *_ = before
    assert [type(grad) for grad in (theirs, ours, their_bags, our_bags)] == [
        *(torch.Tensor, BagGradient),
        *(torch.Tensor, BagGradient),
    ]
    assert len(our_bags.entries()[-1]) == 14 < our_bags._nnz() == 42
    assert unused is None


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("order", [2.0, torch.inf])
def test_dense_models_are_clipped_as_by_torch_to_the_bit(order, foreach):
    params = make_params(torch.float32)
    for param, grad in zip(params, make_grads(params, 1), strict=True):
        param.grad = grad
    theirs = copy.deepcopy(params)
    for param, twin in zip(params, theirs, strict=True):
        twin.grad = param.grad.clone()
    norms = [
        clip(p, 0.5, order, foreach=foreach)
        for clip, p in ((clip_grad_norm_, params), (nn.utils.clip_grad_norm_, theirs))
    ]
    assert_bitwise([norms[0], *(p.grad for p in params)], [norms[1], *(p.grad for p in theirs)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_keep_their_dtypes(dtype):
    params = trained(dtype) + trained()
    dense = densified(params)
    norm = clip_grad_norm_(params, 0.1)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(dense, 0.1), rtol=1e-2, atol=0)
    assert [p.grad.dtype for p in params if p.grad is not None] == [p.grad.dtype for p in dense if p.grad is not None]


def test_tables_that_share_the_gradient_of_their_output_are_scaled_once():
    tables = [nn.Embedding(ROWS, WIDTH, sparse=True), nn.Embedding(ROWS, WIDTH, sparse=True)]
    ids, upstream = torch.tensor([1, 2]), torch.ones(2, WIDTH)
    (tables[0](ids) + tables[1](ids)).backward(upstream)
    params = [table.weight for table in tables]
    norm = clip_grad_norm_(params, 1.0)
    torch.testing.assert_close(norm, torch.tensor(4.0))
    for param in params:
        torch.testing.assert_close(param.grad._values(), torch.full((2, WIDTH), 0.25))
    assert upstream.eq(1).all()


def test_one_parameter_and_generators_are_accepted():
    params = trained()
    dense = densified(params)
    torch.testing.assert_close(clip_grad_norm_(params[0], 1.0), nn.utils.clip_grad_norm_(dense[0], 1.0))
    torch.testing.assert_close(clip_grad_norm_(iter(params), 0.1), nn.utils.clip_grad_norm_(iter(dense), 0.1))
    assert clip_grad_norm_([params[4]], 1.0) == clip_grad_norm_([], 1.0) == 0
    with pytest.warns(UserWarning, match="empty generator"):
        clip_grad_norm_((param for param in []), 1.0)


@pytest.mark.parametrize("order", ORDERS)
def test_a_sparse_gradient_without_rows_is_zero(order):
    bag = EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)
    bag(torch.zeros(3, 0, dtype=torch.long)).sum().backward()
    sparse = with_grad(bag.weight, torch.sparse_coo_tensor(size=(ROWS, WIDTH), check_invariants=True))
    for param in (bag.weight, sparse):
        assert clip_grad_norm_([param], 1.0, order) == 0
        assert param.grad._nnz() == 0


def test_entries_of_a_sparse_matrix_are_clipped_too():
    param = Parameter(torch.zeros(3, 3))
    param.grad = torch.sparse_coo_tensor([[0, 0, 2], [1, 1, 0]], [1.0, 2.0, 4.0], (3, 3), check_invariants=True)
    assert clip_grad_norm_(param, 1.0) == 5
    torch.testing.assert_close(param.grad.to_dense()[[0, 2], [1, 0]], torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
def test_a_norm_that_is_not_finite_is_an_error_only_if_asked_for(wrong):
    params = trained()
    params[0].grad._values()[0] = wrong
    before = [param.grad.to_dense() for param in params if param.grad is not None]
    with pytest.raises(RuntimeError, match="the gradients|total norm of order 2.0 for gradients .* is non-finite"):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    after = [param.grad.to_dense() for param in params if param.grad is not None]
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(after, before, strict=True))
    assert not clip_grad_norm_(params, 1.0).isfinite()


@pytest.mark.skipif(bool(native.missing()), reason="without native kernels, bags have torch's gradient")
def test_the_norm_of_bags_takes_no_memory_for_each_row():
    from benchmarks.measure import peak_extra_bytes

    bag = EmbeddingBag(100, 256, mode="sum", sparse=True)
    bag(torch.randint(100, (20, 200))).square().sum().backward()
    assert peak_extra_bytes(lambda: clip_grad_norm_(bag.parameters(), 1.0))[0] < 4000 * 256 * 4 / 5


def test_a_clipped_step_is_that_of_the_dense_gradients():
    params = trained()
    dense = densified(params)
    nn.utils.clip_grad_norm_(dense, 0.1)
    clip_grad_norm_(params, 0.1)
    for some in (params, dense):
        RowAdaGrad(some, lr=0.1).step()
    torch.testing.assert_close(params, dense)


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_dtensors_are_torchs_and_not_mixed_with_sparse_gradients(mesh):
    def sharded(placement):
        param = Parameter(DTensor.from_local(torch.ones(4, 4), mesh, [placement]))
        param.grad = torch.ones_like(param)
        return param

    params = [sharded(Shard(0)), sharded(Replicate())]
    norm = clip_grad_norm_(params, 1.0)
    assert norm.full_tensor() == 32**0.5
    torch.testing.assert_close(params[0].grad.full_tensor(), torch.full((4, 4), 32**-0.5))
    with pytest.raises(TypeError, match="parameters has both DTensors and sparse gradients"):
        clip_grad_norm_([*params, *trained()], 1.0)

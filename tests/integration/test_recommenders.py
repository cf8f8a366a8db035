"""TorchRec's and FBGEMM's row-wise AdaGrad are RowAdaGrad with the mean: same numbers, on random rows."""

import pytest
import torch
from torch.nn import Parameter

from matrix_adagrad import RowAdaGrad

ROWS, WIDTH = 50, 8


pytestmark = pytest.mark.filterwarnings("ignore")  # of the peers' own


def rowwise_adagrad():
    return pytest.importorskip(
        "torchrec.optim.rowwise_adagrad", reason="TorchRec is not installed: make test-integrations"
    ).RowWiseAdagrad


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1}, {"initial_accumulator_value": 0.5}, {"maximize": True}, {"eps": 1e-2}],
    ids=str,
)
def test_torchrec_rowwise_adagrad(options, random):
    theirs = Parameter(torch.randn(ROWS, WIDTH, generator=random))
    ours = Parameter(theirs.detach().clone())
    peer = rowwise_adagrad()([theirs], lr=0.1, **options)
    optimizer = RowAdaGrad([ours], lr=0.1, reduction="mean", **options)
    for _ in range(10):
        theirs.grad = torch.randn(ROWS, WIDTH, generator=random) * torch.rand(ROWS, WIDTH, generator=random)
        ours.grad = theirs.grad.clone()
        peer.step()
        optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert optimizer.state[ours]["sum"].shape == peer.state[theirs]["sum"].shape == (ROWS, 1)
    torch.testing.assert_close(optimizer.state[ours]["sum"], peer.state[theirs]["sum"], rtol=1e-6, atol=0)


def test_a_torchrec_run_continues_here_from_its_state_dict(random):
    weight = Parameter(torch.randn(ROWS, WIDTH, generator=random))
    twin = Parameter(weight.detach().clone())
    peer, unbroken = (rowwise_adagrad()([p], lr=0.1) for p in (weight, twin))
    grads = [torch.randn(ROWS, WIDTH, generator=random) for _ in range(6)]
    optimizer = RowAdaGrad([weight], lr=0.1, reduction="mean")
    for t, grad in enumerate(grads):
        weight.grad, twin.grad = grad, grad.clone()
        if t == 3:
            optimizer.load_state_dict(peer.state_dict())
        (peer if t < 3 else optimizer).step()
        unbroken.step()
    torch.testing.assert_close(weight, twin, rtol=1e-6, atol=1e-6)


def test_fbgemm_exact_rowwise_adagrad(random):
    pytest.importorskip("fbgemm_gpu", reason="FBGEMM is not installed: make test-integrations")
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    peer = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.1,
        eps=1e-3,
    )
    start = torch.randn(ROWS, WIDTH, generator=random)
    peer.split_embedding_weights()[0].data.copy_(start)
    table = torch.nn.EmbeddingBag.from_pretrained(start.clone(), freeze=False, mode="sum")
    optimizer = RowAdaGrad(table.parameters(), lr=0.1, eps=1e-3, reduction="mean")
    for _ in range(10):
        bags = torch.randint(ROWS, (16, 4), generator=random)
        target = torch.randn(16, WIDTH, generator=random)
        offsets = torch.arange(0, bags.numel() + 1, 4)
        (peer(bags.flatten(), offsets) * target).sum().backward()
        optimizer.zero_grad()
        (table(bags) * target).sum().backward()
        optimizer.step()
    torch.testing.assert_close(table.weight.detach(), peer.split_embedding_weights()[0], rtol=1e-5, atol=1e-6)
    (statistic,) = peer.split_optimizer_states()[0]
    torch.testing.assert_close(optimizer.state[table.weight]["sum"].flatten(), statistic, rtol=1e-5, atol=1e-6)

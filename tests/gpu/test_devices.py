"""Steps on a GPU: the same numbers as the reference, no synchronisation, captured in a CUDA graph, compiled.

The bodies are those of every device. On a CPU, where the C kernels take the steps, they run too.
"""

import contextlib

import pytest
import torch
import torch._dynamo.testing
from torch import nn

from benchmarks.gpu.checks import captured, distance
from benchmarks.gpu.options import FAMILIES, GEOMETRIES, is_possible, make, parameter
from matrix_adagrad import RowAdaGrad, RowMomentum
from tests.gpu.launched import launched

device = pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))],
)
every_pair = pytest.mark.parametrize(
    ("geometry", "family"),
    [
        (geometry, family)
        for geometry in GEOMETRIES
        for family in FAMILIES
        if is_possible({"geometry": geometry, "family": family})
    ],
)
SHAPE = (40, 48)


def reference_of(chosen, device, seeds=(0,)):
    of_torch = {"fused": False} if chosen["family"].startswith("Steepest") else {"foreach": False}
    return make(chosen, [parameter(chosen, device, seed) for seed in seeds], **of_torch)


def on(device, chosen, seeds=(0,), **options):
    return make(chosen, [parameter(chosen, device, seed) for seed in seeds], **options)


@device
@every_pair
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_is_that_of_the_reference(device, geometry, family, dtype):
    chosen = {"geometry": geometry, "family": family, "shape": SHAPE, "dtype": dtype}
    with launched() as names:
        own, reference = on(device, chosen, range(3)), reference_of(chosen, device, range(3))
        for _ in range(3 if dtype is torch.float32 else 1):
            own.step()
            reference.step()
    assert distance(own, reference, chosen) <= 1
    assert names or device == "cpu"


@device
@pytest.mark.parametrize("gradient", ["sparse", "coalesced"])
@pytest.mark.parametrize("geometry", ["row", "column", "factored"])
def test_a_sparse_step_is_that_of_the_reference(device, gradient, geometry):
    chosen = {"geometry": geometry, "family": "AdaGrad", "shape": SHAPE, "gradient": gradient}
    with launched() as names:
        own, reference = on(device, chosen), reference_of(chosen, device)
        for _ in range(3):
            own.step()
            reference.step()
    assert distance(own, reference, chosen) <= 1
    assert names or device == "cpu"


@contextlib.contextmanager
def no_synchronisation(device):
    """The CPU waits for nothing in here: torch raises an error where it would."""
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@device
@pytest.mark.parametrize("gradient", ["dense", "sparse", "coalesced"])
@pytest.mark.parametrize("family", ["AdaGrad", "Momentum"])
@pytest.mark.parametrize("capturable", [False, True])
def test_a_step_does_not_wait_for_the_device(device, gradient, family, capturable):
    chosen = {"geometry": "row", "family": family, "shape": SHAPE, "gradient": gradient, "capturable": capturable}
    optimizer = on(device, {**chosen, "lr": "tensor" if capturable else "number"})
    optimizer.step()  # makes the state, and compiles the kernels
    with no_synchronisation(device):
        optimizer.step()


@device
@every_pair
def test_a_captured_step_follows_gradients_and_rates_that_are_written_in_place(device, geometry, family):
    chosen = {"geometry": geometry, "family": family, "shape": SHAPE, "capturable": True, "lr": "tensor"}
    if not is_possible(chosen):
        pytest.skip("not capturable in this norm")
    own, plain = on(device, chosen, range(2)), reference_of(chosen, device, range(2))
    own.step()
    plain.step()
    replay = captured(own.step)
    replay()  # a step is not taken while it is captured
    plain.step()
    for number in range(3):
        for optimizer in (own, plain):
            optimizer.param_groups[0]["lr"].mul_(0.5)
            for param in optimizer.param_groups[0]["params"]:
                param.grad.copy_(torch.full_like(param.grad, number - 0.5))
        replay()
        plain.step()
    assert distance(own, plain, chosen) <= 1


@device
def test_a_step_of_eager_kernels_after_a_replay_goes_on_from_there(device):
    chosen = {"geometry": "row", "family": "Momentum", "shape": SHAPE, "capturable": True, "lr": "tensor"}
    own, plain = on(device, chosen), reference_of(chosen, device)
    own.step()
    replay = captured(own.step)
    replay()
    own.step()
    replay()
    for _ in range(4):
        plain.step()
    assert distance(own, plain, chosen) <= 1


@device
@pytest.mark.parametrize("cls", [RowAdaGrad, RowMomentum])
def test_the_same_steps_have_the_same_bits(device, cls):
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        table = nn.Embedding(1000, 64, sparse=True).to(device)
        matrix = nn.Linear(1000, 300, bias=False).to(device)
        optimizer = cls([*table.parameters(), *matrix.parameters()], lr=0.1)
        for step in range(3):
            ids = torch.randint(100, (512,), generator=torch.Generator().manual_seed(step)).to(device)
            optimizer.zero_grad()
            matrix.weight.grad = torch.randn(300, 1000, generator=torch.Generator().manual_seed(step)).to(device)
            index, values = ids[None], torch.randn(512, 64, generator=torch.Generator().manual_seed(step)).to(device)
            table.weight.grad = torch.sparse_coo_tensor(index, values, (1000, 64), check_invariants=False)
            optimizer.step()
        ends.append([table.weight.detach().clone(), matrix.weight.detach().clone()])
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


@device
@pytest.mark.parametrize("cls", [RowAdaGrad, RowMomentum])
def test_a_compiled_step_is_one_graph(device, cls):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor" if device == "cuda" else "eager")
    ends = []
    for wrap in (lambda step: step, lambda step: torch.compile(step, backend=counter, fullgraph=True)):
        chosen = {"geometry": "row", "family": "AdaGrad", "shape": SHAPE}
        param = parameter(chosen, device)
        optimizer = cls([param], lr=torch.tensor(0.1, device=device), capturable=device == "cuda")
        step = wrap(optimizer.step)
        for _ in range(3):
            step()
        ends.append(param.detach())
    torch.testing.assert_close(*ends, rtol=3e-6, atol=1e-6)
    assert counter.frame_count <= 2  # the first step makes the state

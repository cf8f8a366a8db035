"""Steps on a GPU, without one: fake CUDA tensors have a device, a shape and a dtype, but no values."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.optim.table import TABLE, settings


class OneDevice(TorchDispatchMode):
    """No operator takes arrays of two devices; numbers, without dimensions, may be anywhere."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves = tree_leaves((args, kwargs))
        devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()}
        assert len(devices) <= 1, f"{func} takes arrays of {devices}"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("entrant", TABLE, ids=str)
@pytest.mark.parametrize("capturable", [False, True])
def test_on_a_gpu_a_step_stays_there_and_reads_nothing_back_if_it_is_capturable(entrant, capturable):
    for options in settings(entrant):
        with FakeTensorMode(), OneDevice():
            params = [torch.nn.Parameter(torch.empty(shape, device="cuda")) for shape in ((6, 4), (5,), (4, 2, 3, 3))]
            optimizer = entrant(params, foreach=True, **{**options, "capturable": capturable, "lr": 0.1})
            if capturable:
                optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device="cuda")
            for _ in range(2):
                for param in params:
                    param.grad = torch.empty_like(param)
                optimizer.step()
        for param in params:
            state = dict(optimizer.state[param])
            assert state.pop("step").device.type == ("cuda" if capturable else "cpu")
            assert all(value.device.type == "cuda" for value in state.values())

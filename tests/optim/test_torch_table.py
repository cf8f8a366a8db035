"""The questions that PyTorch asks of every optimizer in its own table, asked of these classes through the same table.

PyTorch's test file itself does not come with its wheel: `tests/integration/test_pytorch_suite.py` runs it where there
is a copy.
"""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import SGD
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal.common_optimizers import (
    OptimizerErrorEnum,
    OptimizerInput,
    _get_optim_inputs_including_global_cliquey_kwargs,
)

from tests.optim.table import OPTIMIZER_INFOS
from tests.optim.training import assert_bitwise, assert_same, make_params, train

every_info = pytest.mark.parametrize("info", OPTIMIZER_INFOS, ids=lambda info: info.name)


def inputs(info, skip=()):
    """Every setting of the table in every way of running it; PyTorch itself tries foreach on a GPU only."""
    given = _get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float64, info, skip=skip)
    return [
        OptimizerInput(params=None, kwargs={**case.kwargs, **choice}, desc=case.desc)
        for case in given
        for choice in (
            [{}] if {"differentiable", "fused"} & set(case.kwargs) else [{"foreach": False}, {"foreach": True}]
        )
    ]


@every_info
def test_the_table_leaves_the_ways_of_running_to_the_tests(info):
    for case in info.optim_inputs_func(device="cpu"):
        assert not {"foreach", "fused", "differentiable"} & set(case.kwargs)


@every_info
def test_every_error_of_the_table_is_raised(info):
    for case in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        given = case.optimizer_error_input
        assert case.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
        params = given.params if given.params is not None else [Parameter(torch.ones(2, 2))]
        expect = pytest.warns if issubclass(case.error_type, Warning) else pytest.raises
        with expect(case.error_type, match=case.error_regex):
            info.optim_cls(params, **given.kwargs)


@every_info
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("scheduled", [True, False])
def test_twenty_steps_go_the_right_way(info, contiguous, scheduled):
    for case in inputs(info):
        if case.kwargs.get("differentiable"):
            continue
        for make_schedulers in info.scheduler_inputs if scheduled else ([],):
            torch.manual_seed(0)
            weight, bias = torch.randn(10, 5), torch.randn(10)
            if not contiguous:
                weight, bias = torch.randn(10, 5, 2)[..., 0], torch.randn(10, 2)[..., 0]
            weight, bias, x = Parameter(weight), Parameter(bias), torch.randn(5)
            optimizer = info.optim_cls([weight, bias], **case.kwargs)
            schedulers = [make(optimizer) for make in make_schedulers]

            def closure(weight=weight, bias=bias, x=x, optimizer=optimizer):
                optimizer.zero_grad()
                loss = (weight.mv(x) + bias).square().sum()
                loss.backward()
                return loss.detach()

            first = closure()
            for _ in range(20):
                loss = optimizer.step(closure)
                for scheduler in schedulers:
                    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                        scheduler.step(loss)
                    else:
                        scheduler.step()
            assert (closure() > first) if case.kwargs.get("maximize") else (closure() < first)


@every_info
def test_no_gradient_and_zero_gradients_are_no_steps(info):
    for case in inputs(info):
        param = torch.randn(5, 1, dtype=torch.float64)
        optimizer = info.optim_cls([param], **case.kwargs)
        before = param.clone()
        optimizer.step(lambda: torch.tensor(1.0))
        assert torch.equal(param, before)
        param.grad = torch.zeros_like(param)
        optimizer.step()
        assert torch.equal(param, before) or case.kwargs.get("weight_decay")


@every_info
def test_foreach_matches_the_loop_when_gradients_come_and_go(info):
    for case in info.optim_inputs_func(device="cpu"):
        ends = []
        for foreach in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(10, 4), nn.Sigmoid(), nn.Linear(4, 1), nn.Sigmoid()).double()
            model.scalar = Parameter(torch.rand((), dtype=torch.float64))
            optimizer = info.optim_cls(model.parameters(), **case.kwargs, foreach=foreach)
            for t in range(7):
                optimizer.zero_grad()
                model[2].requires_grad_(t not in (3, 4))
                (model.scalar * model(torch.ones(2, 10, dtype=torch.float64)).sum()).backward()
                if t == 2:
                    optimizer.zero_grad()
                optimizer.step()
            ends.append((list(model.parameters()), [optimizer.state[p] for p in model.parameters()]))
        (loop, loop_state), (fast, fast_state) = ends
        assert_same(fast, loop, rtol=1e-7, atol=1e-7)
        for mine, other in zip(fast_state, loop_state, strict=True):
            assert_same(list(mine.values()), list(other.values()), rtol=1e-7, atol=1e-7)


@every_info
@pytest.mark.parametrize("saved_named", [True, False])
@pytest.mark.parametrize("loaded_named", [True, False])
def test_state_moves_between_named_and_unnamed_runs(info, saved_named, loaded_named):
    def given(params, named):
        return [(f"p{i}", p) for i, p in enumerate(params)] if named else params

    for case in inputs(info, skip=("differentiable",)):
        kwargs = {**case.kwargs}
        params, optimizer = train(lambda p, kwargs=kwargs: info.optim_cls(given(p, saved_named), **kwargs), steps=3)
        twins = [Parameter(p.detach().clone()) for p in params]
        heir = info.optim_cls(given(twins, loaded_named), **kwargs)
        heir.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(None, params, steps=3, start=3, optimizer=optimizer)
        train(None, twins, steps=3, start=3, optimizer=heir)
        assert_bitwise(params, twins)
        names = [f"p{i}" for i in range(len(params))]
        assert heir.param_groups[0].get("param_names") == (names if saved_named or loaded_named else None)
        ours, theirs = heir.state_dict()["param_groups"][0], optimizer.state_dict()["param_groups"][0]
        assert {**ours, "param_names": 0} == {**theirs, "param_names": 0}


@every_info
def test_files_with_weights_only_steps_as_numbers_and_without_later_options(info):
    for case in inputs(info, skip=("differentiable",)):
        _, optimizer = train(lambda p, case=case: info.optim_cls(p, **case.kwargs))
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        assert saved["param_groups"] == optimizer.state_dict()["param_groups"]
        for state in saved["state"].values():
            state["step"] = state["step"].item()
        for flag in info.not_og_supported_flags:
            saved["param_groups"][0].pop(flag, None)
        params = make_params()
        heir = info.optim_cls(params, **case.kwargs)
        heir.load_state_dict(saved)
        train(None, params, optimizer=heir)


@every_info
def test_hooks_around_state_dicts_may_add_and_replace_entries(info):
    params, optimizer = train(info.optim_cls)
    optimizer.register_state_dict_pre_hook(lambda o: o.state.update(test=1))
    assert optimizer.state_dict()["state"]["test"] == 1
    optimizer.register_state_dict_post_hook(lambda _, saved: {**saved, "note": "by a hook"})
    saved = optimizer.state_dict()
    assert saved["note"] == "by a hook"
    heir = info.optim_cls(params)
    order = []
    heir.register_load_state_dict_pre_hook(lambda *_: order.append("second"))
    heir.register_load_state_dict_pre_hook(lambda *_: order.append("first"), prepend=True)
    heir.register_load_state_dict_post_hook(lambda o: order.append(o.state["test"]))
    heir.load_state_dict(saved)
    assert order == ["first", "second", 1]


@every_info
def test_step_hooks_run_in_torchs_order_next_to_another_optimizer(info):
    optimizer, other = info.optim_cls([Parameter(torch.ones(2, 2))]), SGD([Parameter(torch.ones(1))], lr=1.0)
    order = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: order.append("all before")),
        register_optimizer_step_post_hook(lambda *_: order.append("all after")),
        optimizer.register_step_pre_hook(lambda *_: order.append("before")),
        optimizer.register_step_post_hook(lambda *_: order.append("after")),
    ]
    try:
        optimizer.step()
        other.step()
    finally:
        for handle in handles:
            handle.remove()
    assert order == ["all before", "before", "after", "all after", "all before", "all after"]
    optimizer.step()
    assert len(order) == 6


@every_info
def test_copies_have_all_public_attributes_and_every_state_is_filled(info):
    for case in inputs(info):
        optimizer = info.optim_cls([Parameter(torch.ones(2, 2))], **case.kwargs)
        public = {name for name in optimizer.__dict__ if not name.startswith("_")}
        assert public == {name for name in copy.deepcopy(optimizer).__dict__ if not name.startswith("_")}
        assert case.desc is not None
        assert info.name in repr(optimizer)
    params, optimizer = train(info.optim_cls, steps=1)
    assert all(optimizer.state[p] for p in params)

"""Gradients are seen as they are stepped along, in every kind of training loop."""

import math

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad import RowAdaGrad
from matrix_adagrad.advisor import Probe
from tests.advisor.network import Network, adagrad, loss_of, probed, train


@pytest.fixture(scope="module")
def expected():
    model = Network()
    return probed(model, adagrad(model)).to_dict()


def accumulating(model, optimizer):
    for t in range(6):
        optimizer.zero_grad()
        for _ in range(4):
            (loss_of(model, t) / 4).backward()
        optimizer.step()


def with_closure(model, optimizer):
    for t in range(6):

        def closure(t=t):
            optimizer.zero_grad()
            loss = loss_of(model, t)
            loss.backward()
            return loss

        optimizer.step(closure) if t % 2 else optimizer.step(closure=closure)


def scaled(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    for t in range(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, t)).backward()
        scaler.step(optimizer)
        scaler.update()


def compiled_model(model, optimizer):
    train(torch.compile(model, backend="eager"), optimizer)


def compiled_step(model, optimizer):
    step = torch.compile(optimizer.step, backend="eager")
    for t in range(6):
        optimizer.zero_grad()
        loss_of(model, t).backward()
        step()


@pytest.mark.filterwarnings("ignore:.*Dynamo.*:UserWarning")
@pytest.mark.parametrize(
    "loop", [accumulating, with_closure, scaled, compiled_model, compiled_step], ids=lambda f: f.__name__
)
def test_every_loop_is_observed_like_the_plain_loop_with_the_same_steps(loop, expected):
    model = Network()
    found = probed(model, adagrad(model), loop).to_dict()
    for name, summary in expected.items():
        for key in ("steps", "observed", "nonfinite", "dead"):
            assert found[name][key] == summary[key] == (6 if key in ("steps", "observed") else summary[key])
        for key in ("gradient_norm", "weight_norm", "agreement", "update_ratio"):
            assert found[name][key] == pytest.approx(summary[key], rel=1e-4), (name, key)


@pytest.mark.parametrize("fused", [False, True], ids=["the scaler unscales", "the optimizer unscales"])
def test_gradients_are_observed_unscaled_and_skipped_steps_not_at_all(fused):
    plain, model = Network(), Network()
    unscaled = probed(plain, torch.optim.Adam(plain.parameters(), fused=fused))
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    assert getattr(optimizer, "_step_supports_amp_scaling", False) == fused
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    with Probe(model, optimizer, every=1) as probe:
        for t in (0, 1, None, 2, 3, None, 4, 5):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, t or 0)).backward()
            if t is None:
                model.hidden.weight.grad[0, 0] = math.inf
            if t == 3:
                scaler.unscale_(optimizer)  # by the user, to clip
            scaler.step(optimizer)
            scaler.update()
    for mine, theirs in zip(probe.report(), unscaled, strict=True):
        assert (mine.steps, mine.observed, mine.nonfinite) == (6, 6, 0)
        assert mine.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)
        assert mine.update_ratio == pytest.approx(theirs.update_ratio, rel=1e-3)


def test_clipped_gradients_are_observed_after_clipping():
    model = Network()
    optimizer = adagrad(model)
    with Probe(model, optimizer, every=1) as probe:
        for t in range(4):
            optimizer.zero_grad()
            (1000 * loss_of(model, t)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert math.hypot(*(summary.gradient_norm["whole"] for summary in probe.report())) == pytest.approx(
        2.0, rel=1e-4
    )  # √4 steps


def test_a_line_search_is_observed_at_its_start():
    param = Parameter(torch.tensor([[3.0, 4.0]]))
    model = nn.ParameterList([param])
    optimizer = torch.optim.LBFGS([param], lr=0.1, max_iter=5)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        calls.append(param.grad.norm().item())
        return loss

    with Probe(model, optimizer, every=1) as probe:
        optimizer.step(closure)
    assert len(calls) > 1
    summary = probe.report()["0"]
    assert summary.observed == 1
    assert summary.gradient_norm["whole"] == pytest.approx(10.0)
    assert summary.update_ratio > 0


def test_steps_in_the_backward_pass_are_observed(expected):
    model = Network()
    optimizers = {param: RowAdaGrad([param], lr=0.1) for param in model.parameters()}

    def step(param):
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(step)
    with Probe(model, optimizers.values(), every=1) as probe:
        for t in range(6):
            loss_of(model, t).backward()
    assert probe.report().to_dict() == expected


class Wrapper(torch.optim.Optimizer):
    """An optimizer by name only, as Accelerate makes it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        return self.optimizer.step()

    def zero_grad(self):
        return self.optimizer.zero_grad()


def test_a_wrapper_is_observed_through_what_it_wraps(expected):
    model = Network()
    assert probed(model, Wrapper(adagrad(model))).to_dict() == expected
    with pytest.raises(TypeError, match="optimizer must be a torch.optim.Optimizer"):
        Probe(model, Wrapper(None))


def test_a_parameter_of_two_alternating_optimizers_is_observed_at_all_steps():
    model = Network()
    both = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(model.out.parameters(), lr=0.01)]
    with Probe(model, both, every=1) as probe:
        for t in range(6):
            train(model, both[t % 2], steps=1, start=t)
    report = probe.report()
    assert [summary.steps for summary in report] == [summary.observed for summary in report] == [3, 3, 3, 6, 6]
    assert len(report.parameters) == 5

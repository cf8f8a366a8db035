"""A probe changes nothing, and takes little time and little memory."""

import contextlib
import copy
import io
import json
import math
import time

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from benchmarks.measure import peak_extra_bytes
from matrix_adagrad import RowAdaGrad
from matrix_adagrad.advisor import Probe
from matrix_adagrad.advisor.squared_gradients import SquaredGradients
from tests.advisor.network import Network, adagrad, probed, train

# ------------------------------------------------------------------------------------------------ it changes nothing


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "make", [adagrad, lambda model: torch.optim.SGD(model.parameters(), lr=0.1)], ids=["ours", "SGD"]
)
def test_a_run_with_a_probe_is_bit_identical_to_one_without(make, sparse):
    alone, watched = Network(sparse=sparse), Network(sparse=sparse)
    train(alone, make(alone))
    optimizer = make(watched)
    seeds = torch.get_rng_state()
    probed(watched, optimizer)
    assert torch.equal(torch.get_rng_state(), seeds)
    for mine, theirs in zip(alone.parameters(), watched.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(mine.grad.to_dense(), theirs.grad.to_dense())
        assert mine.grad.is_coalesced() == theirs.grad.is_coalesced() if sparse and mine.grad.is_sparse else True
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_an_error_in_the_loop_detaches_the_probe_and_keeps_its_observations():
    model = Network()
    optimizer = adagrad(model)
    probe = Probe(model, optimizer, every=1)
    with contextlib.suppress(KeyboardInterrupt), probe:
        train(model, optimizer, steps=2)
        raise KeyboardInterrupt
    train(model, optimizer)
    assert {summary.observed for summary in probe.report()} == {2}
    probe.attach()
    train(model, optimizer)
    with pytest.raises(RuntimeError, match="already attached"):
        probe.attach()
    assert {summary.observed for summary in probe.report()} == {8}
    probe.detach()
    probe.detach()


@pytest.mark.parametrize("make", [adagrad, lambda model: torch.optim.Adam(model.parameters())], ids=["ours", "Adam"])
def test_copies_and_checkpoints_of_an_optimizer_leave_out_its_probe(make):
    model = Network()
    optimizer = make(model)
    with Probe(model, optimizer, every=1) as probe:
        train(model, optimizer, steps=1)
        both = copy.deepcopy((model, optimizer))
        train(*both, steps=3)
        torch.save(optimizer, file := io.BytesIO())
    file.seek(0)
    torch.load(file, weights_only=False).step()
    assert probe.report()["table.weight"].steps == 1


@pytest.mark.parametrize(
    ("model", "optimizer", "every", "error"),
    [
        (lambda: None, adagrad, 1, TypeError),
        (Network, lambda model: model, 1, TypeError),
        (Network, lambda _: [], 1, TypeError),
        (Network, adagrad, 0, ValueError),
        (Network, adagrad, 1.5, ValueError),
        (Network, lambda _: adagrad(Network()), 1, ValueError),
    ],
)
def test_probing_the_wrong_thing_is_an_error_that_says_so(model, optimizer, every, error):
    with pytest.raises(error, match="model must|optimizer must|every must|none of the model"):
        Probe(made := model(), optimizer(made if made is not None else Network()), every=every)


# -------------------------------------------------------------------------------------------------- kinds of parameters


def test_tied_weights_are_one_parameter_and_frozen_weights_have_no_gradients():
    model = Network(tied=True)
    model.hidden.bias.requires_grad_(False)
    report = probed(model, adagrad(model))
    assert [summary.name for summary in report] == ["table.weight", "hidden.weight", "hidden.bias", "out.bias"]
    assert (report["hidden.bias"].observed, report["hidden.bias"].dead) == (0, 0)
    assert "no gradient observed" in report.table()
    with pytest.raises(KeyError, match=r"no parameter 'out.weight': there are table.weight"):
        report["out.weight"]


def test_a_missing_gradient_counts_as_a_gradient_of_zero():
    reports = []
    for none in (False, True):
        param, unused = Parameter(torch.ones(3, 2)), Parameter(torch.ones(4, 2))
        optimizer = torch.optim.SGD([param, unused], lr=0.1)
        with Probe(nn.ParameterList([param, unused]), optimizer, every=1) as probe:
            for t in range(8):
                param.grad = torch.full((3, 2), float(t)) if t % 2 else None if none else torch.zeros(3, 2)
                optimizer.step()
        reports.append(probe.report())
    assert reports[0].to_dict() == reports[1].to_dict()
    assert reports[1]["0"].rows.inactive == 0.5
    assert reports[1]["0"].gradient_norm["whole"] == pytest.approx(math.sqrt(6 * (1 + 9 + 25 + 49)))
    assert (reports[1]["1"].observed, reports[1]["1"].dead, reports[1]["1"].rows.inactive) == (8, 4, 1.0)


def test_parameters_added_later_are_observed_from_then_on():
    model = Network()
    optimizer = RowAdaGrad(model.table.parameters(), lr=0.1)
    with Probe(model, optimizer, every=2) as probe:
        train(model, optimizer, steps=4)
        assert [summary.name for summary in probe.report()] == ["table.weight"]
        optimizer.add_param_group({"params": list(model.out.parameters())})
        train(model, optimizer, steps=6)
    report = probe.report()
    assert [(summary.name, summary.steps, summary.observed) for summary in report] == [
        ("table.weight", 10, 5),
        ("out.weight", 6, 3),
        ("out.bias", 6, 3),
    ]


def test_lazy_parameters_are_observed_once_they_have_a_shape():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Probe(model, optimizer, every=1) as probe:
        assert [summary.name for summary in probe.report()] == ["1.weight", "1.bias"]
        model(torch.ones(2, 5)).sum().backward()
        optimizer.step()
    assert probe.report()["0.weight"].shape == (3, 5)


# ------------------------------------------------------------------------------------------------------ what it takes


def look_once(dtype, shape):
    param = Parameter(torch.zeros(shape, dtype=dtype))
    param.grad = torch.ones_like(param)
    optimizer = torch.optim.SGD([param], lr=0.1, foreach=False)
    probe = Probe(nn.ParameterList([param]), optimizer, every=1)
    probe.attach()
    _, kept = peak_extra_bytes(optimizer.step)  # also what a first look makes
    peak, left = peak_extra_bytes(optimizer.step)
    return param.nbytes, probe.nbytes, kept, peak, left


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4096), (torch.bfloat16, 2048)], ids=str)
def test_a_large_matrix_needs_memory_for_its_rows_and_columns_only(dtype, size):
    whole, stated, kept, peak, left = look_once(dtype, (size, size))
    assert stated < whole / 50
    assert kept <= stated + 1000
    assert left < 20_000  # a window of the history
    assert peak < 5 << 20  # pieces that are squared one after the other


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self, monkeypatch, look):
        self.now, self.looking = 0.0, 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        original = SquaredGradients.observe

        def slowly(*args):
            self.looking += look
            self.now += look
            return original(*args)

        monkeypatch.setattr(SquaredGradients, "observe", slowly)


@pytest.mark.parametrize("optimizers", [1, 4])
@pytest.mark.parametrize(
    ("look", "share"), [(1e-5, 1e-3), (1e-2, 0.05), (10.0, 0.05)], ids=["cheap", "dear", "dearest"]
)
def test_a_probe_observes_as_often_as_its_time_budget_allows(monkeypatch, look, share, optimizers):
    params = [Parameter(torch.ones(2, 2)) for _ in range(4)]
    several = [torch.optim.SGD(params[i::optimizers], lr=0.1, foreach=False) for i in range(optimizers)]
    for param in params:
        param.grad = torch.ones(2, 2)
    clock = Clock(monkeypatch, look / 4)
    with Probe(nn.ParameterList(params), several) as probe:
        steps = 200
        for _ in range(steps):
            clock.now += 0.01
            for optimizer in several:
                optimizer.step()
    observed = {summary.observed for summary in probe.report()}
    assert max(observed) - min(observed) <= 1
    if look < 1e-4:
        assert observed == {steps}  # it costs nothing to look at every step
    else:
        assert clock.looking - look <= share * clock.now
        assert look > 1 or clock.looking >= share * clock.now / 2


# ------------------------------------------------------------------------------------------------------------ reports


class Writer:
    """Keeps what TensorBoard's writer would write."""

    def __init__(self):
        self.written = {}

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.written[tag] = (scalar_value, global_step)


def test_a_report_can_be_read_as_a_table_as_json_and_as_scalars():
    model = Network()
    report = probed(model, adagrad(model))
    names = [name for name, _ in model.named_parameters()]
    assert [line.split()[0] for line in str(report).splitlines()[1:-1]] == names
    read = json.loads(report.to_json())
    assert list(read) == names
    assert read["out.weight"]["bound"] == pytest.approx(report["out.weight"].bound)
    report.write(writer := Writer(), step=7)
    summary = report["table.weight"]
    assert writer.written["participation/rows/table.weight"] == (summary.rows.participation, 7)
    assert writer.written["bound/column/table.weight"] == (summary.bound["column"], 7)
    assert len(writer.written) == len(names) * len(summary.scalars())


def test_a_diverged_run_still_writes_a_readable_file():
    model = Network()
    report = probed(model, torch.optim.SGD(model.parameters(), lr=math.inf))
    read = json.loads(report.to_json(), parse_constant=pytest.fail)  # NaN is no JSON
    assert read["out.weight"]["weight_norm"]["row"] is None
    assert report["out.weight"].nonfinite == 5

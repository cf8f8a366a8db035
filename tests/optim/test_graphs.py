"""Tensor learning rates, capturable steps, steps that autograd records, steps that torch.compile makes one graph of."""

import shutil

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.autograd import gradcheck
from torch.optim.lr_scheduler import ExponentialLR

from matrix_adagrad import (
    ColumnAdaGrad,
    CombinedOptimizer,
    Full,
    MatrixMomentum,
    RowAdaGrad,
    RowMomentum,
    matrix_optimizer,
)
from tests.optim.table import BACKENDS, CLASSES, GEOMETRIES, TABLE, settings
from tests.optim.training import assert_same, make_grads, make_params, train

every_class = pytest.mark.parametrize("entrant", CLASSES, ids=str)
every_entrant = pytest.mark.parametrize("entrant", TABLE, ids=str)


@every_entrant
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_learning_rate_is_the_number_it_holds(entrant, backend, shape):
    lr = torch.full(shape, 0.1, dtype=torch.float64)
    by_tensor, _ = train(lambda p: entrant(p, lr=lr, **backend))
    by_number, _ = train(lambda p: entrant(p, lr=0.1, **backend))
    assert_same(by_tensor, by_number, rtol=1e-13, atol=1e-15)
    assert [tuple(p.shape) for p in by_tensor] == [tuple(p.shape) for p in make_params()]


@every_entrant
@pytest.mark.parametrize("foreach", [False, True])
def test_a_capturable_step_reads_no_value_back(entrant, foreach):
    """On the meta device there are no values: whatever asks for one raises."""
    for options in settings(entrant):
        if options.get("lr") is not None:
            options = {**options, "lr": torch.tensor(0.1)}
        params = [torch.nn.Parameter(p.detach().to("meta")) for p in make_params()]
        optimizer = entrant(params, foreach=foreach, **{**options, "capturable": True})
        for _ in range(2):
            for param in params:
                param.grad = torch.empty_like(param)
            optimizer.step()
        assert all(value.device.type == "meta" for p in params for value in optimizer.state[p].values())


@every_entrant
def test_a_capturable_step_equals_a_plain_one(entrant):
    for backend in BACKENDS.values():
        captured, _ = train(lambda p, backend=backend: entrant(p, capturable=True, **backend))
        plain, _ = train(lambda p, backend=backend: entrant(p, **backend))
        assert_same(captured, plain, rtol=1e-6, atol=1e-9)  # the count of steps is a float32


@every_entrant
def test_autograd_runs_through_the_step(entrant):
    for options in settings(entrant):
        if options.get("eps") == 0.0 or "lr" in options:
            continue

        names = [entrant.statistic]
        if entrant.statistic == "exp_avg_sq" and options.get("betas", (0.9,))[0]:
            names.insert(0, "exp_avg")

        def stepped(x, grad, lr, *state, options=options, names=names):
            x, grad = x.clone(), grad.clone()
            x.grad = grad
            optimizer = entrant([x], lr=lr, differentiable=True, **options)
            optimizer.state[x] = {
                "step": torch.tensor(3.0),
                **dict(zip(names, (s.clone() for s in state), strict=True)),
            }
            optimizer.step()
            return (x, *(optimizer.state[x][name] for name in names))

        (x,) = make_params(shapes=[(4, 2)])
        grad = make_grads([x], 0)[0].requires_grad_()
        lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        statistic = torch.rand(entrant.geometry.statistic_shape(x.shape), dtype=torch.float64).add(0.5).requires_grad_()
        average = make_grads([x], 1)[0].requires_grad_()
        state = (average, statistic)[-len(names) :]
        assert gradcheck(stepped, (x, grad, lr, *state))


@every_entrant
def test_autograd_runs_through_several_steps_to_the_learning_rate(entrant):
    """The derivative of the end of a run by its learning rate, next to a difference quotient."""

    def end(lr):
        x = make_params(shapes=[(4, 2)])[0].clone()
        optimizer = entrant([x], lr=lr, weight_decay=0.1, decoupled_weight_decay=True, differentiable=True)
        for _ in range(3):
            x.grad = 2 * x + 1  # of a quadratic: later gradients depend on earlier steps
            optimizer.step()
        return x.square().sum()

    assert gradcheck(end, torch.tensor(0.1, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("cls", [RowAdaGrad, RowMomentum])
@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_a_row_without_gradient_has_derivatives_too(cls, eps):
    x = make_params(shapes=[(3, 2)])[0].clone()
    x.grad = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]], dtype=torch.float64, requires_grad=True)
    grad, lr = x.grad, torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    cls([x], lr=lr, eps=eps, differentiable=True).step()
    for derivative in torch.autograd.grad(x.square().sum(), (grad, lr)):
        assert derivative.isfinite().all()


@every_class
def test_a_step_that_is_not_differentiable_records_nothing(entrant):
    params, optimizer = train(entrant, steps=1)
    assert all(p.is_leaf and p.requires_grad for p in params)
    assert not any(value.requires_grad for p in params for value in optimizer.state[p].values())


needs_a_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="torch.compile needs a C++ compiler here"
)


@needs_a_compiler
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # it counts the calls of its own wrapper
@pytest.mark.parametrize(
    "entrant", [setting for setting in CLASSES if setting.cls in (ColumnAdaGrad, RowMomentum)], ids=str
)
def test_compile_makes_one_graph_for_a_schedule_of_twenty_rates(entrant):
    """With a group for every setting, so that the graph holds all of them; the next test has all geometries."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    options = [setting for setting in settings(entrant) if "lr" not in setting]  # the rate is the schedule's
    shapes = [(6, 4), (5,), (4, 2, 3, 3)]

    def make(lr, **rest):
        params = [make_params(torch.float32, shapes, seed=seed) for seed in range(len(options))]
        groups = [{"params": given, **setting, "lr": lr()} for given, setting in zip(params, options, strict=True)]
        return [p for given in params for p in given], entrant(groups, lr=lr(), **rest)

    params, optimizer = make(lambda: torch.tensor(0.1))
    step = torch.compile(optimizer.step, fullgraph=True, backend=counter)  # before a scheduler wraps it
    eager_params, eager = make(lambda: 0.1, foreach=False)
    schedules = [ExponentialLR(o, 0.9) for o in (optimizer, eager)]
    for t in range(20):
        for param, twin, grad in zip(params, eager_params, make_grads(params, t), strict=True):
            param.grad, twin.grad = grad, grad.clone()
        step()
        eager.step()
        for schedule in schedules:
            schedule.step()
    assert counter.frame_count == 1
    assert_same(params, eager_params, rtol=1e-3, atol=1e-5)
    assert optimizer.state[params[0]]["step"].item() == 20


@needs_a_compiler
def test_compile_makes_one_graph_of_every_geometry_and_of_stochastic_rounding():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    params = [*make_params(torch.float32, [(6, 4)] * len(GEOMETRIES)), *make_params(torch.bfloat16, [(6, 4)])]
    groups = [{"params": [p], "geometry": geometry} for p, geometry in zip(params, GEOMETRIES, strict=False)]
    groups.append({"params": params[-1:], "stochastic_rounding": True})
    optimizer = MatrixMomentum(groups, lr=torch.tensor(0.1))
    step = torch.compile(optimizer.step, fullgraph=True, backend=counter)
    before = [p.detach().clone() for p in params]
    for t in range(3):
        for param, grad in zip(params, make_grads(params, t), strict=True):
            param.grad = grad
        step()
    assert counter.frame_count == 1
    assert all(p.isfinite().all() and not torch.equal(p, start) for p, start in zip(params, before, strict=True))


def a_model():
    torch.manual_seed(0)
    layers = {"tokens": nn.Embedding(20, 8), "hidden": nn.Linear(8, 8), "head": nn.Linear(8, 20, bias=False)}
    return nn.ModuleDict(layers).double()


def two_parts(model, lr):
    first, *rest = model.parameters()
    return CombinedOptimizer(
        [RowMomentum([first], lr=lr), RowAdaGrad([{"params": rest[:1]}, {"params": rest[1:]}], lr=lr)]
    )


@pytest.mark.parametrize(
    "make",
    [
        two_parts,
        lambda model, lr: matrix_optimizer(model, lr=lr),
        lambda model, lr: MatrixMomentum(model.parameters(), lr=lr, geometry=Full("smaller", every=2)),
    ],
    ids=["CombinedOptimizer", "matrix_optimizer", "Full(every=2)"],
)
def test_compile_makes_one_graph_of_several_parts_and_of_roots_that_are_kept(make):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled, eager = a_model(), a_model()
    optimizer, other = make(compiled, torch.tensor(0.01)), make(eager, torch.tensor(0.01))
    step = torch.compile(optimizer.step, fullgraph=True, backend=counter)
    for t in range(4):
        for param, twin, grad in zip(
            compiled.parameters(), eager.parameters(), make_grads([*compiled.parameters()], t), strict=True
        ):
            param.grad, twin.grad = grad, grad.clone()
        step()
        other.step()
    assert counter.frame_count == 1
    assert_same([*compiled.parameters()], [*eager.parameters()], rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("cls", [RowAdaGrad, MatrixMomentum])
@pytest.mark.parametrize("foreach", [False, True])
def test_compiled_steps_are_counted_where_float64_is_the_default(cls, foreach):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        results = []
        for compile_step in (False, True):
            torch._dynamo.reset()
            x = torch.nn.Parameter(torch.linspace(-1, 1, 24).reshape(6, 4))
            x.grad = torch.ones_like(x)
            optimizer = cls([x], foreach=foreach)
            step = torch.compile(optimizer.step) if compile_step else optimizer.step
            for _ in range(2):
                step()
            assert optimizer.state[x]["step"] == 2
            results.append(x.detach())
        torch.testing.assert_close(*results)
    finally:
        torch.set_default_dtype(default)

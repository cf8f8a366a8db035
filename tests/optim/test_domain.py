"""With a domain, a step is the argmin of η⟨G_t, X⟩ + B_{ψ_t}(X; X_t) over it, in the metric just used."""

import copy
import io
import logging
import pickle

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from matrix_adagrad import MatrixAdaGrad, RowAdaGrad, native
from matrix_adagrad.bags import BagGradient
from matrix_adagrad.domains import (
    Balls,
    Box,
    ColumnBalls,
    FrobeniusBall,
    L1Ball,
    NonNegative,
    RowBalls,
    RowProduct,
    RowSimplex,
    WholeSpace,
)
from matrix_adagrad.geometry import Blocks, Partition
from matrix_adagrad.optim.step import dispatch
from matrix_adagrad.optim.step import native as native_backend
from tests.domains.table import BOUNDED, SHAPE, draw
from tests.optim.table import BACKENDS, CLASSES, TABLE
from tests.optim.training import assert_bitwise, assert_same

every_entrant = pytest.mark.parametrize("entrant", TABLE, ids=str)
kernels = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")
every_class = pytest.mark.parametrize("entrant", CLASSES, ids=str)
ROWS = [RowBalls(0.5), Box(-0.1, 0.2), NonNegative(), RowSimplex(), RowProduct(((2, RowBalls(0.3)), (4, RowSimplex())))]


def start(domain, dtype=torch.float64, seed=0):
    return Parameter(domain.project(draw(seed), 1.0).to(dtype))


def metric(entrant, optimizer, param):
    """S, of the step that was just taken."""
    state, group = optimizer.state[param], optimizer.param_groups[0]
    v = state[entrant.statistic]
    if entrant.statistic == "exp_avg_sq":
        v = v / (1 - group["betas"][1] ** state["step"].item())
    return entrant.geometry.spread(v.sqrt() + group["eps"], param.shape)


@every_entrant
@pytest.mark.parametrize("domain", BOUNDED, ids=repr)
def test_the_step_minimises_over_the_domain(entrant, domain):
    param = start(domain)
    optimizer = entrant([param], lr=0.5, domain=domain)
    for t in range(4):
        before = param.detach().clone()
        param.grad = draw(10 + t) * 10 ** draw(20, (6, 1))
        optimizer.step()
        y, s, direction = param.detach(), metric(entrant, optimizer, param), param.grad
        if entrant.statistic == "exp_avg_sq":
            direction = optimizer.state[param]["exp_avg"] / (1 - 0.9 ** (t + 1))
        force = s * (before - y) - 0.5 * direction  # minus the gradient of what is minimised
        assert domain.contains(y, 1e-10)
        gain = (force * (domain.argmin(-force) - y)).sum()  # the most that a move inside the set could win
        assert gain <= 1e-10 * direction.norm() * (1 + y.norm())


@every_class
@pytest.mark.parametrize("domain", BOUNDED, ids=repr)
def test_every_way_to_run_it_gives_the_same(entrant, domain):
    runs = []
    for backend in BACKENDS.values():
        param = start(domain)
        optimizer = entrant([param], lr=0.3, domain=domain, weight_decay=0.1, **backend)
        for t in range(5):
            param.grad = draw(t)
            optimizer.step()
        runs.append(param)
    assert_same(runs[1:], [runs[0]] * 2, rtol=1e-9, atol=1e-11)


def test_the_whole_space_is_no_constraint():
    params = [Parameter(draw(0)), Parameter(draw(0))]
    for param, domain in zip(params, (None, WholeSpace()), strict=True):
        optimizer = RowAdaGrad([param], lr=1.0, domain=domain)
        param.grad = draw(1)
        optimizer.step()
    assert_bitwise(params[:1], params[1:])


def test_a_domain_for_each_group():
    rows, box = start(RowBalls(0.5)), start(Box(0, 1))
    optimizer = RowAdaGrad(
        [{"params": [rows], "domain": RowBalls(0.5)}, {"params": [box], "domain": Box(0, 1)}], lr=9.0
    )
    rows.grad, box.grad = draw(1), draw(2)
    optimizer.step()
    torch.testing.assert_close(rows.detach().norm(dim=1), torch.full((6,), 0.5, dtype=torch.float64))
    assert Box(0, 1).contains(box.detach())
    assert not RowBalls(0.5).contains(box.detach())


# ----------------------------------------------------------------------------------------------------- sparse gradients


def sparse(rows, values):
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, SHAPE, check_invariants=True)


@every_class
@pytest.mark.parametrize("domain", ROWS, ids=repr)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_sparse_gradients_take_the_dense_step(entrant, domain, backend):
    dense, table = start(domain), start(domain)
    optimizers = [entrant([param], lr=0.5, domain=domain, **BACKENDS[backend]) for param in (dense, table)]
    every = entrant.statistic == "exp_avg_sq"  # momentum is lazy
    rows = [*range(6), 3, 3] if every else [5, 1, 1, 3]
    for t in range(3):
        table.grad = sparse(rows, draw(t, (len(rows), 4)))
        dense.grad = table.grad.to_dense()
        for optimizer in optimizers:
            optimizer.step()
    assert_same([table], [dense], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("domain", ROWS, ids=repr)
def test_only_touched_rows_are_projected(domain):
    table = start(domain)
    optimizer = RowAdaGrad([table], lr=0.5, domain=domain)
    table.grad = sparse([0], draw(1, (1, 4)))
    optimizer.step()
    table.data[4] = -7.0  # outside
    table.grad = sparse([1, 2, 5], draw(2, (3, 4)))
    optimizer.step()
    assert (table.data[4] == -7.0).all()
    rest = torch.tensor([0, 1, 2, 3, 5])
    assert domain.of_rows(rest, SHAPE).contains(table.data[rest])


@pytest.mark.parametrize("backend", [{}, {"foreach": False}], ids=str)
def test_the_scales_of_other_rows_are_not_looked_at_nor_these_twice(backend, monkeypatch):
    sizes, scale = [], Partition.scale
    monkeypatch.setattr(Partition, "scale", lambda self, v: sizes.append(v.numel()) or scale(self, v))
    table = Parameter(torch.zeros(1000, 4, dtype=torch.float64))
    table.grad = torch.sparse_coo_tensor(torch.tensor([[7, 3, 7]]), draw(1, (3, 4)), (1000, 4), check_invariants=True)
    RowAdaGrad([table], domain=RowBalls(0.5), **backend).step()
    assert sizes == [2]  # the cost is that of the batch, not of the table


class Sizes(TorchDispatchMode):
    """The entries of the largest tensor that an operator makes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func._schema.is_mutable and result._base is None:
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize("backend", [{}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("domain", [Balls(0.1, Blocks(columns=2)), RowBalls(0.1), RowSimplex()], ids=str)
@pytest.mark.parametrize("geometry", ["row", "entry", Blocks(columns=2), Blocks(columns=None)], ids=str)
def test_a_projection_after_a_sparse_step_costs_the_touched_rows(geometry, domain, backend):
    table = Parameter(domain.project(torch.zeros(1000, 4), 1.0))
    table.grad = torch.sparse_coo_tensor(
        torch.tensor([[7, 3, 7]]), draw(1, (3, 4)).float(), (1000, 4), check_invariants=True
    )
    optimizer = MatrixAdaGrad([table], geometry=geometry, domain=domain, lr=1.0, **backend)
    optimizer.step()
    with Sizes() as sizes:
        optimizer.step()
    assert 0 < sizes.largest < 100
    assert domain.contains(table)


@kernels
@pytest.mark.parametrize("nnz", [0, 1, 5, 6000, 20000])
@pytest.mark.parametrize("in_bags", [False, True])
def test_a_native_step_hands_out_the_rows_that_it_touched(nnz, in_bags, monkeypatch):
    table = Parameter(torch.zeros(5000, 4))
    index = torch.randint(5000, (nnz,), generator=torch.Generator().manual_seed(nnz))
    if in_bags:
        table.grad = BagGradient(index, torch.tensor([0, nnz // 2, nnz]), torch.ones(2, 4), table.shape)
    else:
        table.grad = torch.sparse_coo_tensor(index[None], torch.ones(nnz, 4), table.shape, check_invariants=True)
    seen = []
    monkeypatch.setattr(dispatch, "project", lambda update, *_: seen.append(update.rows))
    RowAdaGrad([table], domain=RowBalls(1.0), fused=True).step()
    assert torch.equal(seen[0], index.unique())


@kernels
@pytest.mark.parametrize(
    "options",
    [
        {"geometry": "row"},
        {"geometry": Blocks(rows=2)},
        {"domain": RowBalls(0.5)},
        {"domain": FrobeniusBall(0.5)},
        {"geometry": Blocks(rows=2), "domain": RowBalls(0.5)},
    ],
    ids=str,
)
def test_what_is_known_of_a_tensor_is_kept_for_the_next_step(options, monkeypatch):
    params = {backend: Parameter(torch.zeros(SHAPE)) for backend in (None, False)}
    optimizers = {backend: MatrixAdaGrad([param], fused=backend, **options) for backend, param in params.items()}
    for t in range(4):
        if t == 2:
            monkeypatch.setattr(native_backend, "_describe", None)
        for backend, param in params.items():
            param.grad = draw(t).float()
            optimizers[backend].step()
    assert_same([params[None]], [params[False]])


def test_an_empty_sparse_gradient_moves_nothing():
    table = start(RowBalls(1.0))
    before = table.detach().clone()
    optimizer = RowAdaGrad([table], domain=RowBalls(1.0))
    table.grad = sparse([], draw(1, (0, 4)))
    optimizer.step()
    assert_bitwise([table], [before])


@pytest.mark.parametrize("domain", [FrobeniusBall(0.6), ColumnBalls(0.4), L1Ball(1.0)], ids=repr)
def test_a_set_that_ties_rows_together_projects_them_all_and_says_so_once(domain, caplog):
    dense, table = start(domain), start(domain)
    optimizers = [RowAdaGrad([("w", param)], lr=0.5, eps=0.1, domain=domain) for param in (dense, table)]
    with caplog.at_level(logging.WARNING, logger="matrix_adagrad"):
        for t in range(3):
            table.grad = sparse([5, 1, 3], draw(t, (3, 4)))
            dense.grad = table.grad.to_dense()
            for optimizer in optimizers:
                optimizer.step()
    assert_same([table], [dense], rtol=1e-10, atol=1e-12)
    assert [r.message for r in caplog.records] == [
        f"parameter 'w' has sparse gradients, and {domain!r} ties its rows together: every step projects all of them"
    ]


# ------------------------------------------------------------------------------------------------------ where it starts


@every_class
def test_a_start_outside_is_an_error_with_the_distance(entrant):
    weight = Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
    words = r"parameter 'w' starts outside RowBalls\(radius=1.0\), at a distance of 4: .* project_start=True"
    with pytest.raises(ValueError, match=words):
        entrant([("w", weight)], domain=RowBalls(1.0))
    optimizer = entrant([("v", Parameter(torch.zeros(2)))])
    with pytest.raises(ValueError, match=words):
        optimizer.add_param_group({"params": [("w", weight)], "domain": RowBalls(1.0)})
    assert len(optimizer.param_groups) == 1


def test_a_start_outside_is_projected_on_request():
    weight = Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
    RowAdaGrad([weight], domain=RowBalls(1.0), project_start=True)
    torch.testing.assert_close(weight.detach(), torch.tensor([[0.6, 0.8], [0.0, 0.5]]))


def test_a_group_that_is_refused_projects_nothing():
    outside, vector = Parameter(torch.full((2, 2), 9.0)), Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=r"parameter 1 has shape \(3,\), without rows"):
        RowAdaGrad([outside, vector], domain=RowSimplex(), project_start=True)
    assert (outside == 9).all()


def test_a_lazy_parameter_is_checked_at_its_first_step():
    layer = nn.LazyLinear(3, bias=False)
    optimizer = RowAdaGrad(layer.parameters(), domain=RowBalls(1e-3))
    layer(torch.ones(1, 4)).sum().backward()
    with pytest.raises(ValueError, match="parameter 0 starts outside"):
        optimizer.step()


@pytest.mark.parametrize("domain", BOUNDED, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_step_of_size_zero_changes_no_bit(domain, dtype):
    param = start(domain, dtype)
    optimizer = RowAdaGrad([param], lr=0.0, eps=0.0, domain=domain, project_start=True)
    before = param.detach().clone()
    param.grad = torch.zeros_like(param)
    optimizer.step()
    assert_bitwise([param], [before])


# ------------------------------------------------------------------------------------------------------------- the rest


def test_an_infinite_statistic_does_not_reach_other_rows():
    for domain in (FrobeniusBall(10.0), ColumnBalls(10.0)):
        param = Parameter(torch.rand(3, 2))
        optimizer = RowAdaGrad([param], domain=domain)
        param.grad = torch.zeros(3, 2)
        param.grad[0] = 3e19  # its square overflows
        optimizer.step()
        assert param.isfinite().all()


def test_complex_parameters():
    param = Parameter(torch.complex(draw(1), draw(2)))
    optimizer = RowAdaGrad([{"params": [param], "domain": RowBalls(0.5)}], project_start=True, lr=1.0)
    param.grad = torch.complex(draw(3), draw(4))
    optimizer.step()
    assert RowBalls(0.5).contains(param.detach())
    free = Parameter(torch.complex(draw(1), draw(2)))
    free.grad = param.grad
    RowAdaGrad([free], domain=WholeSpace()).step()


def test_narrow_parameters_stay_inside_up_to_rounding():
    for rounding in (False, True):
        param = start(RowBalls(0.5), torch.bfloat16)
        optimizer = RowAdaGrad([param], lr=0.3, domain=RowBalls(0.5), project_start=True, stochastic_rounding=rounding)
        for t in range(20):
            param.grad = draw(t, dtype=torch.bfloat16)
            optimizer.step()
        assert (param.detach().float().norm(dim=1) <= 0.5 * (1 + 2**-7)).all()


@pytest.mark.parametrize("domain", [FrobeniusBall(0.6), RowBalls(0.4), RowSimplex(), NonNegative()], ids=repr)
def test_a_compiled_step_is_one_graph(domain):
    runs = []
    for compiles in (False, True):
        param = start(domain, torch.float32)
        optimizer = RowAdaGrad([param], lr=torch.tensor(0.5), domain=domain, project_start=True, foreach=True)
        step = torch.compile(optimizer.step, fullgraph=True) if compiles else optimizer.step
        for t in range(3):
            param.grad = draw(t).float()
            step()
        runs.append(param)
    assert_same(runs[1:], runs[:1], rtol=1e-5, atol=1e-6)


def test_the_domain_comes_back_with_a_pickle_and_a_copy():
    optimizer = RowAdaGrad([start(RowBalls(1.0))], domain=RowBalls(1.0))
    for clone in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert clone.param_groups[0]["domain"] == RowBalls(1.0)


def test_a_checkpoint_names_its_domain_and_refuses_another():
    domain = RowProduct(((2, Balls(1.0, "row")), (4, RowSimplex())))
    param = start(domain)
    saved = RowAdaGrad([("w", param)], domain=domain)
    param.grad = draw(1)
    saved.step()
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["param_groups"][0]["domain"] == repr(domain)
    same = RowAdaGrad([("w", param)], domain=domain)
    same.load_state_dict(loaded)
    assert same.param_groups[0]["domain"] == domain
    for other in (None, RowBalls(9.0)):
        optimizer = RowAdaGrad([("w", param)], domain=other)
        with pytest.raises(ValueError, match="'w': the saved run had the domain RowProduct.* nothing was loaded"):
            optimizer.load_state_dict(loaded)
        assert not optimizer.state
    free = MatrixAdaGrad([("w", param)])
    with pytest.raises(ValueError, match="the saved run had the domain None, and here it is RowBalls"):
        RowAdaGrad([("w", param)], domain=RowBalls(9.0)).load_state_dict(free.state_dict())


def test_torchs_own_checkpoints_load_into_an_optimizer_with_a_domain():
    param = start(RowBalls(1.0))
    theirs = torch.optim.Adagrad([param])
    param.grad = draw(1)
    theirs.step()
    ours = MatrixAdaGrad([param], geometry="entry", domain=RowBalls(1.0), project_start=True)
    ours.load_state_dict(theirs.state_dict())
    assert ours.param_groups[0]["domain"] == RowBalls(1.0)

"""A geometry that is not a partition trains, saves, loads, projects, and meets its bound."""

import copy
import io
import shutil
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad import Blocks, Factored, Geometry, MatrixAdaGrad, MatrixMomentum, Row, geometry_groups
from matrix_adagrad.domains import FrobeniusBall, NonNegative, RowBalls, RowSimplex
from matrix_adagrad.online import AdaGrad, Adversarial, MirrorDescent, RegretMeter, Solution
from tests.optim.own_geometries import FullRows, RelativeToMean, RowPlusColumn, SumOfPartitions
from tests.optim.training import assert_bitwise, assert_same, make_grads, make_params, train

SHAPES = [(6, 4), (4, 7), (5,)]
GEOMETRIES = [RowPlusColumn(), FullRows()]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
every_class = pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])


def make(cls, geometry, **options):
    return lambda params: cls(params, **{"lr": 0.1, "geometry": geometry, **options})


def trained(cls, geometry, params=None, steps=4, **options):
    return train(make(cls, geometry, **options), params or make_params(shapes=SHAPES), steps=steps)


def test_adagrad_in_it_is_what_one_writes_out_by_hand():
    (x, *_), optimizer = trained(MatrixAdaGrad, RowPlusColumn(), eps=0.01)
    by_hand, r, c = make_params(shapes=SHAPES)[0].detach(), 0, 0
    for t in range(4):
        g = make_grads([*make_params(shapes=SHAPES)], t)[0]
        r, c = r + g.square().sum(1, keepdim=True), c + g.square().sum(0, keepdim=True)
        by_hand = by_hand - 0.1 * g / ((r + c).sqrt() + 0.01)
    assert_same([x], [by_hand], rtol=1e-13, atol=1e-15)
    assert_same([optimizer.state[x]["sum_row"], optimizer.state[x]["sum_column"]], [r, c], rtol=1e-13, atol=0)


def test_momentum_in_it_is_what_one_writes_out_by_hand():
    options = {"betas": (0.8, 0.9), "eps": 1e-3, "reduction": "mean"}
    (x, *_), _ = trained(MatrixMomentum, RowPlusColumn(), **options)
    by_hand, r, c, d = make_params(shapes=SHAPES)[0].detach(), 0, 0, 0
    for t in range(4):
        g = make_grads([*make_params(shapes=SHAPES)], t)[0]
        r = 0.9 * r + 0.1 * g.square().mean(1, keepdim=True)
        c = 0.9 * c + 0.1 * g.square().mean(0, keepdim=True)
        d = 0.8 * d + 0.2 * g
        s = ((r + c) / (1 - 0.9 ** (t + 1))).sqrt() + 1e-3
        by_hand = by_hand - 0.1 * (d / (1 - 0.8 ** (t + 1))) / s
    assert_same([x], [by_hand], rtol=1e-12, atol=1e-14)


def test_a_full_metric_for_rows_is_one_sided_shampoo_with_the_root():
    (x, *_), _ = trained(MatrixAdaGrad, FullRows(), eps=0.1)
    by_hand, products = make_params(shapes=SHAPES)[0].detach(), torch.zeros(6, 6, dtype=torch.float64)
    for t in range(4):
        g = make_grads([*make_params(shapes=SHAPES)], t)[0]
        products += g @ g.T
        values, vectors = torch.linalg.eigh(products)
        metric = vectors @ torch.diag(values.clamp(min=0).sqrt() + 0.1) @ vectors.T
        by_hand = by_hand - 0.1 * torch.linalg.solve(metric, g)
    assert_same([x], [by_hand], rtol=1e-9, atol=1e-11)


@every_class
@every_geometry
def test_vectors_are_scaled_entry_by_entry(cls, geometry):
    (_, _, x), optimizer = trained(cls, geometry)
    (_, _, y), entry = trained(cls, "entry")
    assert_bitwise([x, *optimizer.state[x].values()], [y, *entry.state[y].values()])


@every_class
@every_geometry
def test_a_saved_run_goes_on_with_the_same_bits(cls, geometry):
    params, optimizer = trained(cls, geometry)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = [Parameter(param.detach().clone()) for param in params]
    other = make(cls, geometry)(others)
    other.load_state_dict(torch.load(file, weights_only=True))
    for tensors, stepper in ((params, optimizer), (others, other)):
        for param, grad in zip(tensors, make_grads(tensors, 9), strict=True):
            param.grad = grad
        stepper.step()
    assert_bitwise(params, others)


@every_class
def test_a_state_of_another_geometry_or_shape_is_refused_and_changes_nothing(cls):
    saved = trained(cls, "row")[1].state_dict()
    _, optimizer = trained(cls, RowPlusColumn())
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="parameter 0: the saved state has .*, and Matrix.* has .*_row, .*_column"):
        optimizer.load_state_dict(saved)
    wide = trained(cls, RowPlusColumn(), make_params(shapes=[(6, 5), (4, 7), (5,)]))[1].state_dict()
    with pytest.raises(ValueError, match=r"parameter 0: .*\(6, 5\)|parameter 0: .*\(1, 5\)"):
        optimizer.load_state_dict(wide)
    for param, state in before["state"].items():
        assert_bitwise(state.values(), optimizer.state_dict()["state"][param].values())


@every_class
@pytest.mark.parametrize(
    "domain", [FrobeniusBall(0.6), RowBalls(0.4), RowSimplex(1.0), NonNegative()], ids=lambda domain: str(domain)
)
def test_a_step_over_a_domain_ends_with_the_projection_in_its_metric(cls, domain):
    start = domain.project(make_params(shapes=[(6, 4)])[0].detach())
    x, free = Parameter(start.clone()), Parameter(start.clone())
    constrained, other = make(cls, RowPlusColumn(), domain=domain)([x]), make(cls, RowPlusColumn())([free])
    for t in range(3):
        for param, optimizer in ((x, constrained), (free, other)):
            (param.grad,) = make_grads([param], t)
            optimizer.step()
        state = other.state[free]
        r, c = (state[f"{cls.STATISTIC}_{name}"] for name in ("row", "column"))
        correction = 1 - 0.999 ** (t + 1) if cls is MatrixMomentum else 1
        s = ((r + c) / correction).sqrt() + constrained.defaults["eps"]
        free.data = domain.project(free.detach(), s)
        assert_same([x], [free], rtol=1e-9, atol=1e-11)
        assert domain.contains(x.detach())


def test_a_domain_in_a_metric_that_is_not_diagonal_is_refused_by_name():
    (x,) = make_params(shapes=[(6, 4)])
    with pytest.raises(ValueError, match=r"parameter 'w' .* FullRows\(\), whose metric is not diagonal"):
        MatrixAdaGrad([("w", x)], geometry=FullRows(), domain=FrobeniusBall(9.0))


@every_class
@every_geometry
def test_sparse_gradients_take_the_dense_step(cls, geometry):
    ends = []
    for is_sparse in (False, True):
        table = nn.Embedding(6, 4, sparse=is_sparse, _weight=make_params(shapes=[(6, 4)])[0].detach().clone())
        optimizer = make(cls, geometry)(table.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 2, 2])).square().sum().backward()
            optimizer.step()
        ends.append(table.weight.detach())
    assert_bitwise(ends[:1], ends[1:])


@every_class
@pytest.mark.parametrize("domain", [RowBalls(0.4), NonNegative()], ids=str)
def test_all_rows_that_a_sparse_gradient_moves_are_projected(cls, domain):
    """It names no partitions. With momentum, or weight decay, rows move that the gradient does not touch."""
    table = nn.Embedding(6, 4, sparse=True, _weight=domain.project(make_params(shapes=[(6, 4)])[0].detach()))
    optimizer = make(cls, RowPlusColumn(), lr=0.5, domain=domain, maximize=True, weight_decay=0.1)(table.parameters())
    for rows in ([1, 2, 2], [0, 5], [3]):
        optimizer.zero_grad()
        table(torch.tensor(rows)).square().sum().backward()
        optimizer.step()
        assert domain.contains(table.weight.detach())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"statistics": ("row", "row")},
            r"Wrong.statistics must be a tuple of different names, .* got \('row', 'row'\)",
        ),
        ({"statistics": ("",)}, r"Wrong.statistic_shapes must be a tuple of 1 shapes, .* got \(\(6, 1\), \(1, 4\)\)"),
        ({"measure": lambda _, g: g.square()}, "Wrong.measure must return a tuple of 2 tensors, for .'row', 'column'."),
        (
            {"measure": lambda _, g: (g.square().sum(1), g.square().sum(0))},
            r"Wrong.measure gave tensors of the shapes \(\(6,\), \(4,\)\), and statistic_shapes says \(\(6, 1\)",
        ),
        ({"scale": lambda _, row, column: row.T + column.T}, "broadcast"),
    ],
)
def test_a_mistake_in_it_is_said_before_anything_moves(wrong, words):
    geometry = type("Wrong", (RowPlusColumn,), wrong)()
    with pytest.raises(ValueError, match=rf"parameter 'w', of shape \(6, 4\), does not fit its geometry: .*{words}"):
        MatrixAdaGrad([("w", make_params(shapes=[(6, 4)])[0])], geometry=geometry)


def test_what_a_mean_is_taken_over_must_be_said_where_sizes_do_not_tell():
    geometry = type("Gram", (FullRows,), {"entries": Geometry.entries})()
    (x,) = make_params(shapes=[(6, 4)])
    x.grad = torch.ones_like(x)
    with pytest.raises(ValueError, match=r"entries\(\(6, 4\)\) is \(0,\): it must say what a statistic is a sum over"):
        MatrixAdaGrad([x], geometry=geometry, reduction="mean").step()


def test_a_full_metric_starts_from_nothing():
    with pytest.raises(ValueError, match="metric is not diagonal: leave initial_accumulator_value=0"):
        MatrixAdaGrad(make_params(shapes=[(6, 4)]), geometry=FullRows(), initial_accumulator_value=0.1)


@pytest.mark.parametrize(("option", "words"), [("fused", "fused=True"), ("foreach", "foreach=True")])
def test_a_backend_that_does_not_cover_it_is_refused_with_the_reason(option, words):
    (x,) = make_params(shapes=[(6, 4)])
    x.grad = torch.ones_like(x)
    with pytest.raises(RuntimeError, match=rf"{words} is not possible here: RowPlusColumn is not a partition"):
        MatrixAdaGrad([x], geometry=RowPlusColumn(), **{option: True}).step()


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
@every_class
def test_a_compiled_step_is_the_step(cls):
    torch._dynamo.reset()
    ends = []
    for compiled in (False, True):
        params = make_params(torch.float32, SHAPES)
        optimizer = make(cls, RowPlusColumn(), lr=torch.tensor(0.1))(params)
        step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager") if compiled else optimizer.step
        for t in range(3):
            for param, grad in zip(params, make_grads(params, t), strict=True):
                param.grad = grad
            step()
        ends.append(params)
    assert_same(*ends, rtol=1e-6, atol=1e-7)


def test_rows_and_columns_add_up_to_what_is_kept():
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8))
    groups = geometry_groups(model, RowPlusColumn())
    optimizer = MatrixAdaGrad(groups)
    optimizer.init_state()
    kept = sum(value.numel() for state in optimizer.state.values() for key, value in state.items() if key != "step")
    assert (
        kept == (50 + 8) + (8 + 8) + 8 == sum(RowPlusColumn().on(p.shape).scales(p.shape) for p in model.parameters())
    )


# ---------------------------------------------------------------------------------------------------------- the theory


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("eta", [0.1, 1.0])
def test_its_bound_and_corollary_1_hold(eta, exact):
    game = Adversarial(6, 4)
    learner = MirrorDescent(torch.zeros(6, 4, dtype=torch.float64), RowPlusColumn(), game.domain, eta=eta)
    regret = RegretMeter(learner, bounds_for="row").play(game, 300, exact=exact)
    assert regret.holds
    assert regret["regret ≤ Δ²/2η Tr(H_T) + η Σ_ij √V_ij"].is_guaranteed
    assert 0 < regret.regret < regret["regret ≤ general bound, negative term dropped"].right


def test_corollary_1_holds_in_a_full_metric():
    start, generator = torch.zeros(6, 4, dtype=torch.float64), torch.Generator().manual_seed(0)
    learner = MirrorDescent(start, AdaGrad(FullRows(), delta=1e-3), eta=0.3)
    meter, total = RegretMeter(learner), torch.zeros_like(start)
    for _ in range(100):
        grad = torch.randn(6, 4, dtype=torch.float64, generator=generator) * torch.logspace(0, -2, 6)[:, None]
        total += grad
        meter.record(float((grad * learner.x).sum()), grad)
    best = -total / total.norm()
    regret = meter.regret(Solution(best, float((total * best).sum()), gap=0.0))
    assert regret.holds
    assert [inequality.place for inequality in regret.inequalities] == ["Cor. 1", "Cor. 1"]


def test_the_step_size_of_theory_needs_a_bound():
    game, start = Adversarial(6, 4), torch.zeros(6, 4, dtype=torch.float64)
    assert MirrorDescent(start, RowPlusColumn(), game.domain).eta == 2 / 2**0.5
    with pytest.raises(ValueError, match="a bound with the domain's diameter, .* has none: give eta a number"):
        MirrorDescent(start, FullRows(), game.domain)


def test_the_step_of_the_theory_is_that_of_the_optimizer():
    x = Parameter(torch.zeros(6, 4, dtype=torch.float64))
    optimizer = MatrixAdaGrad([x], lr=0.3, geometry=RowPlusColumn(), eps=1e-8)
    learner = MirrorDescent(torch.zeros(6, 4, dtype=torch.float64), RowPlusColumn(), eta=0.3, delta=1e-8)
    for t in range(5):
        (x.grad,) = make_grads([x], t)
        optimizer.step()
        learner.update(x.grad)
    assert_same([x], [learner.x], rtol=1e-12, atol=1e-14)


@dataclass(frozen=True)
class RowsSoFar(SumOfPartitions):
    """The scale of a row depends on the rows above it."""

    def scale(self, row, column):
        return (row.cumsum(0) + column).sqrt()


@dataclass(frozen=True)
class Clipped(SumOfPartitions):
    """A geometry that measures something else than its partitions say."""

    def measure(self, g):
        return super().measure(g.clamp(-1, 1))


@pytest.mark.parametrize("shape", [(6, 4), (1, 4), (3, 1), (2, 3, 4)], ids=str)
def test_statistics_are_sharded_as_their_partitions_if_scales_combine_entry_by_entry(shape):
    for geometry in (Factored(), Factored("geometric"), Factored("minimum"), SumOfPartitions(), Row(), Blocks(rows=1)):
        assert geometry.sharded_as(shape) == geometry.partitions


@pytest.mark.parametrize("geometry", [RelativeToMean(), RowsSoFar(), Clipped(), RowPlusColumn(), FullRows()], ids=str)
def test_other_geometries_need_the_whole_gradient(geometry):
    assert geometry.sharded_as((6, 4)) == ()

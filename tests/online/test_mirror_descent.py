"""The learner takes the paper's step: with fixed and adaptive proximal functions, diagonal and full, on any domain."""

import math

import pytest
import torch

from matrix_adagrad import Blocks, Factored, Full, MatrixAdaGrad
from matrix_adagrad.domains import Box, ColumnBalls, FrobeniusBall, NonNegative, RowBalls, RowSimplex, WholeSpace
from matrix_adagrad.geometry import as_geometry
from matrix_adagrad.online import (
    AdaGrad,
    Adversarial,
    ColumnWise,
    Fixed,
    MirrorDescent,
    Proximal,
    RegretMeter,
    RowWise,
    Scaled,
    Scheme,
    Vectorised,
)
from matrix_adagrad.online.solver import inner
from tests.domains.table import draw

SHAPE = (5, 4)
DOMAINS = (FrobeniusBall(1.0), RowBalls(0.5), ColumnBalls(0.6), Box(-0.2, 0.4), RowSimplex())


def definite(size, seed, condition=30.0):
    q, _ = torch.linalg.qr(draw(seed, (size, size)))
    return (q * torch.logspace(0, math.log10(condition), size, dtype=torch.float64)) @ q.T


PROXIMALS = {
    "rows, full": lambda: RowWise(definite(5, 1)),
    "rows, diagonal": lambda: RowWise(definite(5, 1).diagonal().clone()),
    "columns, full": lambda: ColumnWise(definite(4, 2)),
    "columns, diagonal": lambda: ColumnWise(definite(4, 2).diagonal().clone()),
    "vectorised, full": lambda: Vectorised(definite(20, 3)),
    "vectorised, diagonal": lambda: Vectorised(definite(20, 3).diagonal().clone()),
    "row geometry": lambda: Scaled(draw(4, (5, 1)).exp(), "row"),
    "block geometry": lambda: Scaled(draw(4, (5, 2, 1)).exp(), Blocks(columns=2)),
}


@pytest.mark.parametrize("name", PROXIMALS)
@pytest.mark.parametrize("domain", [*DOMAINS, WholeSpace()], ids=repr)
def test_the_step_is_the_argmin(name, domain):
    proximal = PROXIMALS[name]()
    x, g, eta = domain.project(draw(7, SHAPE)), draw(8, SHAPE), 0.7
    y = proximal.step(x, g, eta, domain)
    force = -eta * g - proximal.gradient(y - x)  # minus the gradient of η⟨G, ·⟩ + B_ψ(·; X)
    if isinstance(domain, WholeSpace):
        assert force.norm() <= 1e-12 * g.norm()
        return
    assert domain.contains(y, 1e-10)
    start = x - eta * proximal.inverse(g)
    assert inner(force, domain.argmin(-force) - y) <= 1e-10 * proximal.divergence(domain.project(start), start) + 1e-13


@pytest.mark.parametrize("size", [1e-100, 1e-8, 1.0, 1e8])
def test_projections_in_a_full_metric_are_as_good_for_any_size(size):
    metric = RowWise(torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64))
    y = metric.project(torch.tensor([[3.0], [0.0]], dtype=torch.float64) * size, Box(-size, size))
    torch.testing.assert_close(y / size, torch.tensor([[1.0], [1.0]], dtype=torch.float64), rtol=0, atol=1e-4)


def test_a_full_metric_never_falls_even_where_rounding_swallows_an_eigenvalue():
    scheme, before = AdaGrad(Full("row")), torch.zeros(2, 2, dtype=torch.float64)
    for t in range(10):
        grad = torch.zeros(2, 2, dtype=torch.float64)
        grad[1, 1], grad[0, 0] = (-1) ** t, 1e9 if t == 5 else 0
        metric = scheme.observe(grad).metric
        assert torch.linalg.eigvalsh(metric - before).min() >= -1e-6
        before = metric


def test_a_metric_must_fit():
    x = torch.ones(5, 3)
    for proximal in (
        RowWise(torch.ones(4)),
        RowWise(torch.ones(1)),
        ColumnWise(torch.ones(2)),
        Vectorised(torch.ones(9)),
    ):
        with pytest.raises(ValueError, match=r"has a metric of .*, and X has shape \(5, 3\)"):
            proximal.value(x)
    with pytest.raises(ValueError, match=r"has a metric of 3×3, and X has shape \(3,\)"):
        ColumnWise(torch.ones(3)).value(torch.ones(3))
    with pytest.raises(ValueError, match=r"scale has shape \(3,\), and geometry row .* needs \(5, 1\)"):
        Scaled(torch.ones(3), "row").value(x)


def test_full_metrics_in_float32_are_taken_up_to_rounding():
    a = torch.randn(50, 50, generator=torch.Generator().manual_seed(0))
    metric = RowWise(torch.linalg.inv(a @ a.T + torch.eye(50))).metric
    assert torch.equal(metric, metric.T)


@pytest.mark.parametrize("domain", [Box(-1.0, 1.0), RowBalls(1.0)], ids=repr)
def test_the_full_scheme_plays_on_any_bounded_set(domain):
    learner = MirrorDescent(torch.zeros(8, 4, dtype=torch.float64), Full("row"), domain, eta=1.0)
    for t in range(10):
        learner.update(draw(t, (8, 4)) * (draw(100 + t, (8, 1)) > 0.5))
        assert domain.contains(learner.x, 1e-10)


def test_a_full_metric_needs_a_bounded_domain_or_one_that_can_be_turned():
    for domain in (WholeSpace(), FrobeniusBall(1.0), ColumnBalls(0.6), RowBalls(0.5)):
        PROXIMALS["rows, full"]().project(draw(7, SHAPE), domain)
    with pytest.raises(ValueError, match="NonNegative.* is unbounded"):
        PROXIMALS["rows, full"]().project(draw(7, SHAPE), NonNegative())


@pytest.mark.parametrize("geometry", ["row", "column", "entry", "whole", Blocks(rows=5), Blocks(columns=2)], ids=str)
@pytest.mark.parametrize("domain", [*DOMAINS, NonNegative(), WholeSpace()], ids=repr)
def test_adagrad_is_the_optimizer(geometry, domain):
    x1 = domain.project(draw(1, SHAPE))
    param = torch.nn.Parameter(x1.clone())
    learner = MirrorDescent(x1, geometry, domain, 0.3, delta=1e-3)
    optimizer = MatrixAdaGrad([param], lr=0.3, eps=1e-3, geometry=geometry, domain=domain)
    for t in range(6):
        grad = draw(10 + t, SHAPE)
        param.grad = grad
        optimizer.step()
        learner.update(grad)
        torch.testing.assert_close(learner.x, param.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("side", ["row", "column"])
def test_the_full_scheme_is_the_papers_formula(side):
    scheme, total = AdaGrad(Full(side), delta=0.1), 0
    for t in range(5):
        g = draw(t, SHAPE)
        total = total + (g @ g.T if side == "row" else g.T @ g)
        proximal = scheme.observe(g)
        root = proximal.metric - 0.1 * torch.eye(len(total), dtype=torch.float64)
        torch.testing.assert_close(root @ root, total, rtol=1e-10, atol=1e-10)
        assert torch.linalg.eigvalsh(root).min() > -1e-6
        assert proximal.trace() == pytest.approx(float(scheme.roots().sum()) + 0.1 * len(total))


def test_with_gradients_that_do_not_couple_rows_the_full_schemeis_row_adagrad():
    full = MirrorDescent(torch.zeros(SHAPE, dtype=torch.float64), AdaGrad(Full("row"), 1e-3), FrobeniusBall(1.0), 0.5)
    rows = MirrorDescent(torch.zeros(SHAPE, dtype=torch.float64), AdaGrad("row", 1e-3), FrobeniusBall(1.0), 0.5)
    for t in range(12):
        grad = torch.zeros(SHAPE, dtype=torch.float64)
        grad[t % 5] = draw(t, (4,))
        torch.testing.assert_close(full.update(grad), rows.update(grad), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("geometry", ["row", "column", "entry", "whole"])
def test_the_step_size_of_theory_is_the_diameter_over_root_two(geometry):
    for domain in DOMAINS:
        learner = MirrorDescent(domain.project(draw(1, SHAPE)), geometry, domain)
        assert learner.eta == domain.diameter(as_geometry(geometry), SHAPE) / math.sqrt(2)
    with pytest.raises(ValueError, match="eta='theory' needs a bounded domain .* inf"):
        MirrorDescent(draw(1, SHAPE), geometry)
    with pytest.raises(ValueError, match="nan for Fixed"):
        MirrorDescent(torch.zeros(SHAPE), Scaled(torch.ones(1, 1)), FrobeniusBall(1.0))


class Cubes(Scheme):
    """A scheme of one's own: cube roots of sums of cubes, for each row."""

    def __init__(self, delta):
        self.delta, self.cubes = delta, 0.0

    def observe(self, grad: torch.Tensor) -> Proximal:
        self.cubes = self.cubes + grad.norm(dim=1, keepdim=True) ** 3
        return Scaled(self.cubes ** (1 / 3) + self.delta, "row")


def test_a_scheme_of_your_own_is_measured_by_the_general_bound():
    game = Adversarial(5, 4)
    learner = MirrorDescent(torch.zeros(SHAPE, dtype=torch.float64), Cubes(0.1), game.domain, 0.5)
    regret = RegretMeter(learner).play(game, 300)
    assert [inequality.place for inequality in regret.inequalities] == ["Cor. 1", "Cor. 1"]
    assert regret.holds
    with pytest.raises(ValueError, match="only a run with an AdaGrad scheme has a trade-off"):
        _ = regret.tradeoff


def test_a_fixed_proximal_has_no_cost_of_change():
    game = Adversarial(5, 4)
    learner = MirrorDescent(torch.zeros(SHAPE, dtype=torch.float64), PROXIMALS["rows, full"](), game.domain, 0.5)
    regret = RegretMeter(learner).play(game, 100)
    assert abs(regret.terms.middle) <= 1e-12 * regret.terms.dual
    assert regret.holds


@pytest.mark.parametrize("scheme", [AdaGrad("row"), AdaGrad(Full("column")), AdaGrad(Factored()), Cubes(0.1)], ids=repr)
def test_a_saved_learner_goes_on_with_the_same_bits(scheme):
    import copy

    learner = MirrorDescent(torch.zeros(SHAPE, dtype=torch.float64), copy.deepcopy(scheme), FrobeniusBall(1.0), 0.5)
    for t in range(3):
        learner.update(draw(t, SHAPE))
    other = MirrorDescent(torch.zeros(SHAPE, dtype=torch.float64), copy.deepcopy(scheme), FrobeniusBall(1.0), 0.5)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for t in range(3, 6):
        assert torch.equal(learner.update(draw(t, SHAPE)), other.update(draw(t, SHAPE)))
    assert learner.rounds == other.rounds == 6


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: RowWise(torch.tensor([[1.0, 2.0], [0.0, 1.0]])), ValueError, "must be symmetric, .* by 2"),
        (lambda: RowWise(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), ValueError, "positive definite, .* smallest .* -1"),
        (lambda: ColumnWise(torch.tensor([1.0, 0.0])), ValueError, "positive definite, .* is 0"),
        (lambda: RowWise(torch.ones(2, 3)), ValueError, r"square matrix or the vector .* got \(2, 3\)"),
        (lambda: Scaled(torch.tensor([1.0, float("nan")])), ValueError, "positive definite, .* is nan"),
        (lambda: MirrorDescent(torch.ones(2, 2), AdaGrad("row"), delta=1.0), ValueError, "delta=1.0 is for a geometry"),
        (lambda: AdaGrad("row", 0.0), ValueError, "delta must be positive and finite, got 0.0"),
        (lambda: MirrorDescent(torch.ones(2, 2), "row", FrobeniusBall(1.0)), ValueError, "x1 lies outside .* of 1:"),
        (lambda: MirrorDescent(torch.ones(2, 2).int(), "row"), TypeError, "floating-point dtype, got torch.int32"),
        (
            lambda: MirrorDescent(torch.ones(2, 2), "row", eta=-1.0),
            ValueError,
            "eta must be positive and finite, got -1",
        ),
        (lambda: MirrorDescent(torch.ones(2, 2), "row", eta="big"), TypeError, "a number or 'theory', got 'big'"),
        (
            lambda: MirrorDescent(torch.ones(2, 2), "row", eta=1.0).update(torch.ones(2)),
            ValueError,
            r"shape \(2,\), and",
        ),
    ],
)
def test_bad_arguments_say_what_is_wrong(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_what_is_no_gradient_and_what_is_no_proximal_is_refused():
    learner = MirrorDescent(torch.ones(2, 2), "row", eta=1.0)
    with pytest.raises(ValueError, match="grad has the type NoneType, and the decision is a tensor"):
        learner.update(None)

    class Wrong(Scheme):
        def observe(self, grad):
            return grad

    with pytest.raises(TypeError, match="Wrong.observe must return a Proximal, got tensor"):
        MirrorDescent(torch.ones(2, 2), Wrong(), eta=1.0).update(torch.ones(2, 2))


def test_reprs_tell_runs_apart():
    learner = MirrorDescent(torch.zeros(2, 2), "row", FrobeniusBall(1.0), 0.5)
    assert repr(learner) == (
        "MirrorDescent(AdaGrad('row', delta=1e-08), FrobeniusBall(radius=1.0), eta=0.5, shape=(2, 2))"
    )
    assert repr(Fixed(RowWise(torch.ones(2)))) == repr(Fixed(RowWise(torch.ones(2))))
    assert repr(Fixed(RowWise(torch.ones(2)))) != repr(Fixed(RowWise(2 * torch.ones(2))))

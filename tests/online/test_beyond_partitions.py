"""Metrics that are not those of a partition: which bound they have, under which conditions, and what breaks it."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

from matrix_adagrad import Diagonal, Entry, Factored, Full, MatrixAdaGrad, Row, Spectral
from matrix_adagrad.domains import Box, FrobeniusBall, RowBalls, RowSimplex, WholeSpace
from matrix_adagrad.online import AdaGrad, Completion, EntryStream, Linear, MirrorDescent, RegretMeter, Solution
from tests.domains.table import draw
from tests.online.players import GAMES, SCHEMES, learner

COVERS = ("geometric", "minimum")  # never fall, and are at least √V
GRADIENTS = "Σ‖G_t‖²_{H_t⁻¹} ≤ 2 Σ_ij √V_ij"
DIVERGENCES = "divergences ≤ ½ Δ² Tr(H_T)"
BOUND = "regret ≤ Δ²/2η Tr(H_T) + η Σ_ij √V_ij"
THEORY = "regret ≤ D/√2 (Tr(H_T) + Σ_ij √V_ij)"
RISES, COVERED = "no scale falls: max s_{t-1} / s_t ≤ 1", "no scale is short: max √V_t / s_t ≤ 1"


@dataclass(frozen=True)
class Entries(Diagonal):
    """Entry-wise AdaGrad as a metric of one's own, and others made of the same squares."""

    power: float = 0.5
    factor: float = 1.0
    floor: float = 0.0

    @property
    def partitions(self):
        return (Entry(),)

    def scale(self, *statistics):
        return self.factor * (statistics[0] + self.floor) ** self.power


def play(game, scheme, rounds=60, **options):
    x1 = game.domain.project(torch.zeros(game.shape, dtype=torch.float64))
    return RegretMeter(MirrorDescent(x1, scheme, game.domain, **options)).play(game, rounds, exact=True)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("scheme", COVERS)
def test_covers_meet_their_conditions_and_every_inequality_is_guaranteed(name, scheme):
    regret = RegretMeter(learner(GAMES[name], scheme)).play(GAMES[name], 100, exact=True)
    assert {RISES, COVERED, DIVERGENCES, GRADIENTS, BOUND, THEORY} <= {check.name for check in regret.inequalities}
    for check in regret.inequalities:
        assert check.is_guaranteed
        assert check.holds, check.name


@dataclass(frozen=True)
class LargerRows(Row):
    """Rows with more than the root as their scale."""

    def scale(self, *statistics):
        return 2 * super().scale(*statistics)


def test_a_partition_with_a_scale_of_its_own_plays_in_it_and_has_the_bound_of_its_blocks():
    game = GAMES["completion"]
    regret = play(game, LargerRows())
    assert regret.holds
    assert regret[BOUND].is_guaranteed
    assert regret.terms.geometry == LargerRows()
    assert torch.allclose(regret.terms.values, 2 * regret.terms.roots, atol=1e-7)
    assert regret.terms.roots.shape == Row().statistic_shape(game.shape)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name.startswith("full")])
def test_a_full_metric_is_bounded_with_the_spectral_norm(name, scheme):
    game = GAMES[name]
    player = learner(game, scheme)
    regret, spectral = RegretMeter(player).play(game, 15, exact=True), Spectral(steps=None)
    assert regret.terms.geometry == spectral
    assert player.eta == game.domain.diameter(spectral, game.shape) / math.sqrt(2)
    again, gaps = learner(game, scheme), []
    for t in range(15):
        gaps.append(regret.best.x - again.x)
        again.update(game.loss(t, again.x)[1])
    assert regret.terms.distance == pytest.approx(max(float(torch.linalg.matrix_norm(gap, 2)) for gap in gaps))
    assert regret.terms.distance <= max(float(gap.norm()) for gap in gaps) * (1 + 1e-12)
    for check in regret.inequalities:
        assert check.holds or check.is_condition, check.name


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("scheme", [*COVERS, "product"])
def test_the_conditions_are_measured_in_every_round(name, scheme):
    game, player, squares, scales, short = GAMES[name], learner(GAMES[name], scheme), 0, [], 0.0
    for t in range(30):
        grad = game.loss(t, player.x)[1]
        player.update(grad)
        squares = squares + grad.square()
        scales.append(player.proximal.scale)
        short = max(short, float((squares.sqrt() / scales[-1]).max()))
    fall = max(float((before / after).max()) for before, after in itertools.pairwise(scales))
    assert (player.scheme.fall, player.scheme.short) == pytest.approx((fall, short), rel=1e-12)
    torch.testing.assert_close(player.scheme.roots(), squares.sqrt())


@pytest.mark.parametrize("name", GAMES)
def test_entry_wise_adagrad_as_a_diagonal_metric_has_the_bound_of_entries(name):
    mine, entries = play(GAMES[name], Entries()), play(GAMES[name], Entry())
    assert mine.holds
    assert mine[BOUND].is_guaranteed
    assert mine.regret == entries.regret
    assert mine[BOUND].right == pytest.approx(entries["the same, with the stabilizer's term"].right, rel=1e-12)
    assert mine[THEORY].right == pytest.approx(entries["regret ≤ √2 D Σ_b √V_b"].right, rel=1e-5)  # but for δ


def along_the_diagonal(m=16):
    """Each entry of the diagonal comes twice, first as 1, then as -1: nothing that rows and columns could share."""
    where = torch.arange(m).repeat_interleave(2)
    values = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(m)
    return Completion(EntryStream(where, where, values), m, m, Box(-1.0, 1.0))


def test_the_product_falls_and_then_the_bound_of_covers_may_fail():
    regret = play(along_the_diagonal(), Factored(), 1600)
    assert not regret[RISES].holds
    assert not regret[COVERED].holds
    assert regret[RISES].left == pytest.approx(1.291, abs=1e-3)
    assert {name: regret[name].verdict for name in (GRADIENTS, BOUND)} == {GRADIENTS: "excused", BOUND: "excused"}
    assert (regret.regret, regret[BOUND].right) == pytest.approx((853.54, 650.62), abs=0.01)
    assert "not met" in regret.table()
    assert regret["regret ≤ general bound"].holds
    assert regret.holds  # Corollary 1 is all that was promised
    for cover in COVERS:
        held = play(along_the_diagonal(), Factored(cover), 1600)
        assert all(check.holds and check.is_guaranteed for check in held.inequalities)


def test_a_metric_below_the_root_breaks_the_inequality_of_gradients():
    regret = play(Linear(6, 4), Entries(factor=0.3))
    assert regret[RISES].holds
    assert not regret[COVERED].holds
    assert regret[GRADIENTS].verdict == "excused"
    assert regret[DIVERGENCES].is_guaranteed
    assert regret[DIVERGENCES].holds
    assert regret.holds


def test_a_metric_that_falls_breaks_the_inequality_of_divergences():
    regret = play(Linear(6, 4, Box(-1.0, 1.0), drift=1e3), Entries(power=-0.5, floor=1e-3), eta=1.0)
    assert not regret[RISES].holds
    assert regret[DIVERGENCES].verdict == "excused"
    assert not regret[BOUND].is_guaranteed
    assert regret.holds


@pytest.mark.parametrize("domain", [FrobeniusBall(1.0), RowBalls(0.5), Box(-0.2, 0.4), RowSimplex()], ids=repr)
@pytest.mark.parametrize("combine", ["product", "geometric", "minimum"])
def test_the_step_size_of_theory_is_the_diameter_of_an_entry_over_root_two(domain, combine):
    player = MirrorDescent(domain.project(draw(1, (5, 4))), Factored(combine), domain)
    assert player.eta == domain.diameter("entry", (5, 4)) / math.sqrt(2)


GEOMETRIES = [*(Factored(c) for c in ("product", "geometric", "minimum")), Entries()]
FULL = [Full("row"), Full("column"), Full("smaller"), Full("row", block=2), Full("column", block=3)]


@pytest.mark.parametrize(
    ("geometry", "domain"),
    [
        *itertools.product(GEOMETRIES, (WholeSpace(), FrobeniusBall(1.0), RowBalls(0.5))),
        *((g, WholeSpace()) for g in FULL),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(5, 4), (4, 5), (4, 4), (5,), (2, 3, 4)], ids=str)
def test_the_learner_is_the_optimizer(geometry, domain, shape):
    x1 = domain.project(draw(1, shape))
    param = torch.nn.Parameter(x1.clone())
    player = MirrorDescent(x1, geometry, domain, 0.3, delta=1e-3)
    optimizer = MatrixAdaGrad([param], lr=0.3, eps=1e-3, geometry=geometry, domain=domain)
    for t in range(6):
        param.grad = draw(10 + t, shape)
        optimizer.step()
        torch.testing.assert_close(player.update(param.grad), param.detach(), rtol=1e-9, atol=1e-10)


def test_the_smaller_side_is_that_of_rows_or_of_columns():
    for shape, side in (((4, 6), "row"), ((6, 4), "column"), ((5, 5), "row")):
        game = Linear(*shape)
        assert play(game, Full("smaller"), 20).to_dict() == play(game, Full(side), 20).to_dict()


def test_a_metric_of_blocks_and_one_of_a_batch_have_their_bounds_without_a_domain():
    for geometry, shape in ((Full("row", block=2), (4, 3)), (Full("row", block=3), (4, 3)), (Full("row"), (2, 3, 4))):
        start = torch.zeros(shape, dtype=torch.float64)
        meter, total = RegretMeter(MirrorDescent(start, geometry, eta=0.3, delta=1e-3)), torch.zeros_like(start)
        for t in range(40):
            grad = draw(t, shape)
            total += grad
            meter.record(float((grad * meter.learner.x).sum()), grad)
        best = FrobeniusBall(1.0).argmin(total)
        regret = meter.regret(Solution(best, float((total * best).sum()), 0.0))
        assert "the same, with the stabilizer's term" in {check.name for check in regret.inequalities}
        assert regret.holds


def test_a_geometry_without_a_bound_needs_a_number_for_eta():
    with pytest.raises(
        ValueError, match="a bound with the domain's diameter, and AdaGrad.* has none: give eta a number"
    ):
        MirrorDescent(torch.zeros(3, 2), AdaGrad(Spectral()), FrobeniusBall(1.0))

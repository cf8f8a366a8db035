"""The meter's sums are those of the paper, and it says what it found."""

import itertools
import json
import math

import pytest
import torch

from matrix_adagrad.domains import FrobeniusBall
from matrix_adagrad.geometry import as_geometry
from matrix_adagrad.online import (
    Adversarial,
    Inequality,
    Linear,
    MirrorDescent,
    Motivating,
    RegretMeter,
    RowWise,
    Solution,
)
from tests.domains.table import draw
from tests.online.players import GAMES, SCHEMES, learner


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_inequality_holds_and_every_sum_is_the_plain_one(name, scheme):
    game, rounds = GAMES[name], 15 if scheme.startswith("full") else 60
    regret = RegretMeter(learner(game, scheme)).play(game, rounds, exact=True)
    assert regret.holds

    player, best = learner(game, scheme), regret.best.x  # the same again, with everything kept
    x, psi, grads, loss = [player.x], [], [], 0.0
    for t in range(rounds):
        value, grad = game.loss(t, player.x)
        loss += value
        grads.append(grad)
        x.append(player.update(grad))
        psi.append(player.proximal)
    terms = regret.terms
    size = sum(p.divergence(best, y) for p, y in zip(psi, x, strict=False))
    middle = sum(psi[t].divergence(best, x[t]) - psi[t - 1].divergence(best, x[t]) for t in range(1, rounds))
    assert regret.loss == pytest.approx(loss, rel=1e-12)
    fixed = sum(float((g * best).sum()) for g in grads)  # what the adversary chose, he charges to all
    if name != "adversarial":
        fixed = sum(game.loss(t, best)[0] for t in range(rounds))
    assert terms.regret == pytest.approx(loss - fixed, abs=1e-9)
    assert terms.first == pytest.approx(psi[0].divergence(best, x[0]), rel=1e-9)
    assert terms.last == pytest.approx(psi[-1].divergence(best, x[-1]), rel=1e-9)
    assert terms.middle == pytest.approx(middle, abs=1e-12 * size + 1e-12)
    assert terms.dual == pytest.approx(sum(p.dual_norm(g) ** 2 for p, g in zip(psi, grads, strict=True)), rel=1e-9)
    norm = player.scheme.geometry.norm
    assert terms.distance == pytest.approx(max(float(norm(best - y)) for y in x[:-1]), rel=1e-12)
    assert terms.trace == pytest.approx(psi[-1].trace(), rel=1e-9)
    terminal = sum(psi[-1].dual_norm(g) ** 2 for g in grads)
    assert terms.terminal == pytest.approx(terminal, rel=1e-6)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("scheme", ["row", "entry", "full rows", "full columns", "minimum"])
def test_one_pass_bounds_the_distance_from_above(name, scheme):
    game = GAMES[name]
    rounds = 15 if scheme.startswith("full") else 60
    once = RegretMeter(learner(game, scheme)).play(game, rounds)
    twice = RegretMeter(learner(game, scheme)).play(game, rounds, exact=True)
    assert twice.terms.distance <= once.terms.distance * (1 + 1e-12) <= once.terms.diameter * (1 + 1e-9)
    assert once.regret == twice.regret
    assert once.holds
    assert (once.exact, twice.exact) == (False, True)
    for loose, tight in zip(once.inequalities, twice.inequalities, strict=True):
        if loose.name.startswith("regret"):
            assert loose.right >= tight.right * (1 - 1e-9)


def test_the_condition_on_the_stabilizer_can_fail_and_the_bound_with_its_term_still_holds():
    game = Linear(6, 4)
    regret = RegretMeter(learner(game, delta=50.0)).play(game, 40, exact=True)
    assert not regret["the stabilizer is absorbed: Δ² m δ ≤ 2 B_T"].holds
    assert not regret["δ ≤ Σ_b √V_b ‖(X* - X_{T+1})_b‖² / m Δ²"].holds
    assert regret["the same, with the stabilizer's term"].holds
    assert regret.holds  # the theorem's own form was not promised
    small = RegretMeter(learner(game, delta=1e-9)).play(game, 40, exact=True)
    assert small["the stabilizer is absorbed: Δ² m δ ≤ 2 B_T"].holds
    assert small["δ ≤ Σ_b √V_b ‖(X* - X_{T+1})_b‖² / m Δ²"].holds


def test_an_inequality_that_fails_says_so():
    assert not Inequality("a ≤ b", "nowhere", 1.0 + 1e-6, 1.0).holds
    assert Inequality("a ≤ b", "nowhere", 1.0 + 1e-10, 1.0).holds
    assert not Inequality("a ≤ b", "nowhere", math.nan, 1.0).holds
    words = {(c, p): Inequality("", "", 2.0, 1.0, c, p).verdict for c in (False, True) for p in (False, True)}
    assert words == {
        (False, True): "FAILS",
        (False, False): "excused",
        (True, True): "not met",
        (True, False): "not met",
    }


def test_bounds_of_other_geometries_for_the_same_gradients():
    game = Motivating(6, 4)
    regret = RegretMeter(learner(game), bounds_for=("row", "column", "entry")).play(game, 24)
    assert regret.geometry_bounds["row"] == pytest.approx(regret["regret ≤ √2 D Σ_b √V_b"].right, rel=1e-12)
    assert regret.geometry_bounds["entry"] / regret.geometry_bounds["row"] == pytest.approx(2.0, rel=1e-12)


def test_the_tradeoff_is_least_at_the_optimal_scale():
    game = Linear(6, 4)
    tradeoff = RegretMeter(learner(game)).play(game, 50, exact=True).tradeoff
    torch.testing.assert_close(tradeoff.bound(tradeoff.optimal), tradeoff.least, rtol=1e-12, atol=0)
    torch.testing.assert_close(tradeoff.growing(tradeoff.optimal), tradeoff.falling(tradeoff.optimal))
    for factor in (0.5, 0.99, 1.01, 2.0):
        assert (tradeoff.bound(factor * tradeoff.optimal) > tradeoff.least).all()
    # With η = D/√2 and Δ = D the algorithm's own scale, √V + δ, is optimal but for δ.
    whole = type(tradeoff)(
        tradeoff.squares, tradeoff.used, game.domain.diameter(as_geometry("row"), (6, 4)), tradeoff.eta
    )
    torch.testing.assert_close(whole.optimal, whole.used, rtol=1e-7, atol=0)


def test_rounds_by_hand():
    random = MirrorDescent(torch.zeros(3, 2, dtype=torch.float64), "row", FrobeniusBall(1.0))
    meter, total = RegretMeter(random), torch.zeros(3, 2, dtype=torch.float64)
    for t in range(50):
        grad = draw(t, (3, 2))
        total += grad
        meter.record(float((grad * random.x).sum()), grad)
    best = FrobeniusBall(1.0).argmin(total)
    report = meter.regret(Solution(best, float((total * best).sum()), 0.0))
    assert report.rounds == meter.rounds == 50
    assert report.holds


# ------------------------------------------------------------------------------------------------------ how it is shown


def test_the_table_and_the_figures():
    game = Motivating(6, 4)
    regret = RegretMeter(learner(game), bounds_for=("entry",)).play(game, 24, exact=True)
    table = regret.table()
    assert table.startswith("24 rounds: loss ")
    assert all(inequality.name in table for inequality in regret.inequalities)
    assert "FAILS" not in table
    figures = json.loads(json.dumps(regret.to_dict()))
    assert figures["regret"] == regret.regret
    assert figures["tradeoff"]["used"] == regret.tradeoff.used.tolist()
    assert len(figures["tradeoff"]["optimal"]) == 6
    assert {inequality["place"] for inequality in figures["inequalities"]} >= {"Cor. 1", "Cor. 2", "Thm 1", "App. E"}
    assert "Thm 2" in RegretMeter(learner(game, "column")).play(game, 24).table()


def test_bad_use_says_what_is_wrong():
    game = Adversarial(6, 4)
    played = learner(game)
    played.update(draw(1, (6, 4)))
    with pytest.raises(ValueError, match="learner must not have played yet, got one after 1 rounds"):
        RegretMeter(played)
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        RegretMeter(learner(game)).play(game, 0)
    assert RegretMeter(learner(game), bounds_for="row")._bounds_for == (as_geometry("row"),)
    with pytest.raises(ValueError, match="no round has been played yet"):
        RegretMeter(learner(game)).regret(Solution(torch.zeros(6, 4, dtype=torch.float64), 0.0, 0.0))
    with pytest.raises(ValueError, match=r"and the game has \(6, 4\) and FrobeniusBall\(radius=2.0\)"):
        RegretMeter(learner(game)).play(Adversarial(6, 4, FrobeniusBall(2.0)), 5)
    fixed = MirrorDescent(torch.zeros(6, 4).double(), RowWise(torch.ones(6).double()), game.domain, 1.0)
    assert math.isnan(RegretMeter(fixed).play(game, 5).terms.distance)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("exact", [False, True])
def test_the_course_of_a_game_has_the_regret_that_shorter_games_end_with(name, exact):
    game = GAMES[name]
    course = RegretMeter(learner(game), bounds_for=("row", "entry")).play(game, 40, points=4, exact=exact).curve
    assert [point["rounds"] for point in course] == [1, 3, 6, 16, 40]
    for point in course:
        short = RegretMeter(learner(game), bounds_for=("row", "entry")).play(game, int(point["rounds"]), exact=True)
        assert point["regret"] == pytest.approx(short.regret, rel=1e-9, abs=1e-9)
        assert point["general bound"] == pytest.approx(short["regret ≤ general bound"].right, rel=1e-6)
        assert (point["row"], point["entry"]) == pytest.approx(tuple(short.geometry_bounds.values()), rel=1e-12)


def test_a_game_that_goes_on_from_a_checkpoint_has_the_course_of_one_that_was_not_broken_off(tmp_path):
    game, file = Adversarial(3, 2), tmp_path / "run.pt"
    whole = RegretMeter(learner(game)).play(game, 40, points=4).curve

    def stopped(turns, **_):
        yield from itertools.islice(turns, 10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RegretMeter(learner(game)).play(game, 40, points=4, checkpoint=file, progress=stopped)
    assert RegretMeter(learner(game)).play(game, 40, points=4, checkpoint=file).curve == whole

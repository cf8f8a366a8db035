"""The meter's sums are those of the paper, in memory that does not grow; runs can be broken off and go on."""

import io
import json
import logging
import math
import os
import signal

import pytest
import torch

from matrix_adagrad import Blocks
from matrix_adagrad.domains import Box, FrobeniusBall, RowBalls, RowSimplex
from matrix_adagrad.geometry import as_geometry
from matrix_adagrad.online import (
    AdaGrad,
    Adversarial,
    Completion,
    FullAdaGrad,
    Game,
    Hinge,
    Inequality,
    Linear,
    MirrorDescent,
    Motivating,
    RegretMeter,
    RowWise,
    Scaled,
    Scheme,
    Solution,
    Stream,
    Trace,
)
from tests.domains.table import draw

GAMES = {
    "motivating": Motivating(6, 4),
    "linear": Linear(6, 4, RowBalls(1.0)),
    "adversarial": Adversarial(6, 4, FrobeniusBall(1.0)),
    "hinge": Hinge(Stream.random(6, 4, 40), Box(-1.0, 1.0)),
    "completion": Completion(Trace.random(6, 4, 40), 6, 4, RowSimplex()),
}
SCHEMES = {
    "row": lambda: "row",
    "column": lambda: "column",
    "entry": lambda: "entry",
    "whole": lambda: "whole",
    "blocks": lambda: Blocks(rows=2),
    "full rows": lambda: FullAdaGrad("row", 1e-3),
    "full columns": lambda: FullAdaGrad("column", 1e-3),
}


def learner(game, scheme="row", **options):
    x1 = game.domain.project(0.1 * draw(1, game.shape))
    return MirrorDescent(x1, SCHEMES[scheme](), game.domain, **options)


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
    ledger = regret.ledger
    size = sum(p.divergence(best, y) for p, y in zip(psi, x, strict=False))
    middle = sum(psi[t].divergence(best, x[t]) - psi[t - 1].divergence(best, x[t]) for t in range(1, rounds))
    assert regret.loss == pytest.approx(loss, rel=1e-12)
    fixed = sum(float((g * best).sum()) for g in grads)  # what the adversary chose, he charges to all
    if name != "adversarial":
        fixed = sum(game.loss(t, best)[0] for t in range(rounds))
    assert ledger.regret == pytest.approx(loss - fixed, abs=1e-9)
    assert ledger.first == pytest.approx(psi[0].divergence(best, x[0]), rel=1e-9)
    assert ledger.last == pytest.approx(psi[-1].divergence(best, x[-1]), rel=1e-9)
    assert ledger.middle == pytest.approx(middle, abs=1e-12 * size + 1e-12)
    assert ledger.dual == pytest.approx(sum(p.dual_norm(g) ** 2 for p, g in zip(psi, grads, strict=True)), rel=1e-9)
    norm = player.scheme.geometry.norm
    assert ledger.distance == pytest.approx(max(float(norm(best - y)) for y in x[:-1]), rel=1e-12)
    assert ledger.trace == pytest.approx(psi[-1].trace(), rel=1e-9)
    terminal = sum(psi[-1].dual_norm(g) ** 2 for g in grads)
    assert ledger.terminal == pytest.approx(terminal, rel=1e-6)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("scheme", ["row", "entry", "full rows"])
def test_one_pass_bounds_the_distance_from_above(name, scheme):
    game = GAMES[name]
    rounds = 15 if scheme.startswith("full") else 60
    once = RegretMeter(learner(game, scheme)).play(game, rounds)
    twice = RegretMeter(learner(game, scheme)).play(game, rounds, exact=True)
    assert twice.ledger.distance <= once.ledger.distance * (1 + 1e-12) <= once.ledger.diameter * (1 + 1e-9)
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
    assert not regret["δ is small enough"].holds
    assert regret["the same, with the stabilizer's term"].holds
    assert regret.holds  # the theorem's own form was not promised
    small = RegretMeter(learner(game, delta=1e-9)).play(game, 40, exact=True)
    assert small["the stabilizer is absorbed: Δ² m δ ≤ 2 B_T"].holds
    assert small["δ is small enough"].holds


def test_an_inequality_that_fails_says_so():
    assert not Inequality("a ≤ b", "nowhere", 1.0 + 1e-6, 1.0).holds
    assert Inequality("a ≤ b", "nowhere", 1.0 + 1e-10, 1.0).holds
    assert not Inequality("a ≤ b", "nowhere", math.nan, 1.0).holds
    words = {(c, p): Inequality("", "", 2.0, 1.0, c, p).verdict for c in (False, True) for p in (False, True)}
    assert words == {
        (False, True): "FAILS",
        (False, False): "fails, δ",
        (True, True): "not met",
        (True, False): "not met",
    }


def test_bounds_of_other_geometries_for_the_same_gradients():
    game = Motivating(6, 4)
    regret = RegretMeter(learner(game), also=("row", "column", "entry")).play(game, 24)
    assert regret.promised["row"] == pytest.approx(regret["regret ≤ √2 D Σ_b √V_b"].right, rel=1e-12)
    assert regret.promised["entry"] / regret.promised["row"] == pytest.approx(2.0, rel=1e-12)


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
    report = meter.report(Solution(best, float((total * best).sum()), 0.0))
    assert report.rounds == meter.rounds == 50
    assert report.holds


# ----------------------------------------------------------------------------------------------- memory and checkpoints


def size(meter):
    file = io.BytesIO()
    torch.save(meter._state_dict(), file)
    return file.tell()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_kept_does_not_grow_with_the_rounds(scheme):
    game = Linear(6, 4)
    sizes = []
    for rounds in (2, 400):
        meter = RegretMeter(learner(game, scheme), also=("entry",))
        meter.play(game, rounds)
        sizes.append(size(meter))
    assert abs(sizes[1] - sizes[0]) <= 64  # the archive's own padding


class Interrupts:
    """A progress bar that stops the run after so many rounds, as Ctrl-C would."""

    def __init__(self, rounds):
        self.left = rounds

    def __call__(self, turns, *, initial, total):
        assert list(turns) == list(range(initial, total))
        for t in turns:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield t


@pytest.mark.parametrize(
    ("name", "scheme"), [*((name, "row") for name in GAMES), ("adversarial", "full columns"), ("motivating", "blocks")]
)
@pytest.mark.parametrize("stops", [[17, 30], [60], [75, 10]])
def test_a_run_that_is_broken_off_goes_on_with_the_same_bits(name, scheme, stops, tmp_path):
    game, file = GAMES[name], tmp_path / "run.pt"
    unbroken = RegretMeter(learner(game, scheme), also=("row",)).play(game, 60, exact=True)
    for rounds in stops:
        with pytest.raises(KeyboardInterrupt):
            RegretMeter(learner(game, scheme), also=("row",)).play(
                game, 60, exact=True, checkpoint=file, progress=Interrupts(rounds)
            )
    resumed = RegretMeter(learner(game, scheme), also=("row",)).play(game, 60, exact=True, checkpoint=file)
    assert resumed.to_dict() == unbroken.to_dict()
    assert torch.equal(resumed.best.x, unbroken.best.x)
    finished = RegretMeter(learner(game, scheme), also=("row",)).play(game, 60, exact=True, checkpoint=file)
    assert finished.to_dict() == unbroken.to_dict()


def test_ctrl_c_in_the_middle_of_a_round_does_not_count_it_by_half(tmp_path, monkeypatch):
    game, file = GAMES["linear"], tmp_path / "run.pt"
    unbroken = RegretMeter(learner(game)).play(game, 60)
    update, pressed = MirrorDescent.update, []

    def pressing(self, grad):
        following = update(self, grad)
        if self.rounds in (7, 33) and self.rounds not in pressed:
            pressed.append(self.rounds)
            os.kill(os.getpid(), signal.SIGINT)  # after the learner has moved, before the sums are
        return following

    monkeypatch.setattr(MirrorDescent, "update", pressing)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here, as in background jobs
    try:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                RegretMeter(learner(game)).play(game, 60, checkpoint=file)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert RegretMeter(learner(game)).play(game, 60, checkpoint=file).to_dict() == unbroken.to_dict()
    assert pressed == [7, 33]


def test_a_round_that_fails_half_way_is_not_saved(tmp_path, monkeypatch):
    game, file = GAMES["linear"], tmp_path / "run.pt"
    unbroken = RegretMeter(learner(game)).play(game, 60)
    with monkeypatch.context() as patch:
        patch.setattr(Scaled, "inverse", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            RegretMeter(learner(game)).play(game, 60, checkpoint=file)
    assert not file.exists()
    assert RegretMeter(learner(game)).play(game, 60, checkpoint=file).to_dict() == unbroken.to_dict()


def test_an_exact_run_is_of_so_many_rounds(tmp_path):
    game, file = GAMES["linear"], tmp_path / "run.pt"
    meter = RegretMeter(learner(game))
    meter.play(game, 30, exact=True, checkpoint=file)
    for other in (meter, RegretMeter(learner(game))):
        with pytest.raises(ValueError, match="is that of 30 rounds, and 60 are asked for"):
            other.play(game, 60, exact=True, checkpoint=file)
    with pytest.raises(ValueError, match="another run"):
        RegretMeter(learner(game)).play(game, 30, checkpoint=file)


def test_a_run_of_one_pass_can_be_made_longer(tmp_path):
    game, file = GAMES["linear"], tmp_path / "run.pt"
    RegretMeter(learner(game)).play(game, 30, checkpoint=file)
    longer = RegretMeter(learner(game)).play(game, 60, checkpoint=file)
    assert longer.to_dict() == RegretMeter(learner(game)).play(game, 60).to_dict()


class Shifted(Game):
    """A game of one's own, without any words for itself."""

    def __init__(self, shift):
        self.shift, self.domain = shift, Box(-1.0, 1.0)

    shape = (6, 4)

    def loss(self, t, x):  # noqa: ARG002
        grad = torch.full_like(x, self.shift)
        return float((grad * x).sum()), grad

    def best(self, rounds, gradients):  # noqa: ARG002
        x = self.domain.argmin(gradients)
        return Solution(x, float((gradients * x).sum()), 0.0)


class Constant(Scheme):
    """A scheme of one's own, with a setting."""

    def __init__(self, scale):
        self.scale = scale

    def observe(self, grad):
        return Scaled(torch.full_like(grad, self.scale))


def test_games_and_schemes_of_your_own_are_told_apart_by_their_settings(tmp_path):
    file = tmp_path / "run.pt"

    def play(shift, scale):
        x1 = torch.zeros(6, 4, dtype=torch.float64)
        return RegretMeter(MirrorDescent(x1, Constant(scale), Box(-1.0, 1.0), 0.1)).play(
            Shifted(shift), 20, checkpoint=file
        )

    assert play(1.0, 2.0).to_dict() == play(1.0, 2.0).to_dict()
    for shift, scale in ((1.5, 2.0), (1.0, 3.0)):
        with pytest.raises(ValueError, match=r"(?s)another run.*Shifted\(shift=1.0.*Constant\(scale=2.0\)"):
            play(shift, scale)


class Own(Scaled):
    """A proximal function of one's own."""


class Growing(Scheme):
    """Its state is made in `observe`."""

    def observe(self, grad):
        self.total = grad.square() + getattr(self, "total", 1.0)
        return Own(self.total.sqrt())


def test_a_run_that_could_not_be_loaded_is_refused_at_its_start(tmp_path):
    game = Shifted(1.0)
    meter = RegretMeter(MirrorDescent(torch.zeros(6, 4, dtype=torch.float64), Growing(), game.domain, 0.1))
    with pytest.raises(ValueError, match="this run cannot be saved: .*add_safe_globals"):
        meter.play(game, 20, checkpoint=tmp_path / "run.pt")
    assert meter.rounds == 1
    assert not list(tmp_path.iterdir())


def test_the_second_pass_starts_from_nothing():
    game = Linear(6, 4, Box(-1.0, 1.0))

    def play(exact):
        x1 = torch.zeros(6, 4, dtype=torch.float64)
        return RegretMeter(MirrorDescent(x1, Growing(), game.domain, 0.1)).play(game, 30, exact=exact).regret

    assert play(exact=True) == play(exact=False)


def test_distances_are_exact_for_the_target_alone():
    game = Linear(6, 4)
    meter = RegretMeter(learner(game))
    exact = meter.play(game, 40, exact=True)
    other = meter.report(Solution(-exact.best.x, -exact.best.value, 0.0))
    assert exact.exact
    assert not other.exact
    assert other.ledger.distance >= exact.ledger.distance


def test_a_scheme_without_a_stabilizer_leaves_out_the_bounds_that_have_it():
    class Rows(AdaGrad):
        delta = math.nan

        def __init__(self):
            super().__init__("row")
            self.delta = math.nan

        def observe(self, grad):
            self.squares = self._geometry.statistic(grad) + (0 if self.squares is None else self.squares)
            return Scaled(self.squares.sqrt() + 1e-6, "row")

    game = GAMES["linear"]
    x1 = torch.zeros(6, 4, dtype=torch.float64)
    regret = RegretMeter(MirrorDescent(x1, Rows(), game.domain)).play(game, 20)
    assert {one.place for one in regret.inequalities} == {"Cor. 1"}
    assert regret.holds
    assert regret.to_dict()["delta"] is None


def test_checkpoints_are_saved_while_it_runs(tmp_path):
    game, file = Adversarial(6, 4), tmp_path / "run.pt"
    seen = []

    def progress(turns, **_):
        for t in turns:
            seen.append(file.exists())
            yield t

    RegretMeter(learner(game)).play(game, 300, checkpoint=file, every=0.0, progress=progress)
    assert not seen[0]
    assert seen[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    game, file = Adversarial(6, 4), tmp_path / "run.pt"
    RegretMeter(learner(game)).play(game, 10, checkpoint=file)
    others = (
        (game, learner(game, "column")),
        (game, MirrorDescent(torch.zeros(6, 4, dtype=torch.float64), "row", game.domain)),
        (Adversarial(6, 4, FrobeniusBall(2.0)), learner(Adversarial(6, 4, FrobeniusBall(2.0)))),
    )
    for other_game, player in others:
        with pytest.raises(ValueError, match=r"(?s)run.pt is of another run:.*Adversarial"):
            RegretMeter(player).play(other_game, 10, checkpoint=file)
    with pytest.raises(ValueError, match="10 rounds were played already, and 5 are asked for"):
        RegretMeter(learner(game)).play(game, 5, checkpoint=file)


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path):
    file = tmp_path / "run.pt"
    game = Adversarial(6, 4)
    for content in (b"not a checkpoint", b"", b"junk\n"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="run.pt is not a checkpoint of a regret run .* give another file"):
            RegretMeter(learner(game)).play(game, 5, checkpoint=file)
    for thing in ([1, 2], {"a": 1}):
        torch.save(thing, file)
        with pytest.raises(ValueError, match="run.pt is not a checkpoint of a regret run"):
            RegretMeter(learner(game)).play(game, 5, checkpoint=file)
    for path in (tmp_path, tmp_path / "nowhere" / "run.pt"):
        with pytest.raises(ValueError, match="cannot be a file: it is a folder, or its folder does not exist"):
            RegretMeter(learner(game)).play(game, 5, checkpoint=path)


def test_a_full_disk_does_not_stop_the_run(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    game = Adversarial(6, 4)
    with caplog.at_level(logging.WARNING, logger="matrix_adagrad"):
        assert RegretMeter(learner(game)).play(game, 10, checkpoint=tmp_path / "run.pt").holds
    assert "run.pt could not be written: [Errno 28] No space left on device" in caplog.text
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------ how it is shown


def test_the_table_and_the_figures():
    game = Motivating(6, 4)
    regret = RegretMeter(learner(game), also=("entry",)).play(game, 24, exact=True)
    table = regret.table()
    assert table.startswith("24 rounds: loss ")
    assert all(one.name in table for one in regret.inequalities)
    assert "FAILS" not in table
    figures = json.loads(json.dumps(regret.to_dict()))
    assert figures["regret"] == regret.regret
    assert figures["tradeoff"]["used"] == regret.tradeoff.used.tolist()
    assert len(figures["tradeoff"]["optimal"]) == 6
    assert {one["place"] for one in figures["inequalities"]} >= {"Cor. 1", "Cor. 2", "Thm 1", "App. E"}
    assert "Thm 2" in RegretMeter(learner(game, "column")).play(game, 24).table()


def test_bad_use_says_what_is_wrong():
    game = Adversarial(6, 4)
    played = learner(game)
    played.update(draw(1, (6, 4)))
    with pytest.raises(ValueError, match="the learner has played 1 rounds already"):
        RegretMeter(played)
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        RegretMeter(learner(game)).play(game, 0)
    assert RegretMeter(learner(game), also="row")._also == (as_geometry("row"),)
    with pytest.raises(ValueError, match="no round was played yet"):
        RegretMeter(learner(game)).report(Solution(torch.zeros(6, 4, dtype=torch.float64), 0.0, 0.0))
    with pytest.raises(ValueError, match=r"and the game has \(6, 4\) and FrobeniusBall\(radius=2.0\)"):
        RegretMeter(learner(game)).play(Adversarial(6, 4, FrobeniusBall(2.0)), 5)
    fixed = MirrorDescent(torch.zeros(6, 4).double(), RowWise(torch.ones(6).double()), game.domain, 1.0)
    assert math.isnan(RegretMeter(fixed).play(game, 5).ledger.distance)

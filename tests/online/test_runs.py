"""Runs of the meter keep as much as they start with; they can be broken off and go on, and never load another's."""

import io
import logging
import math
import os
import signal

import pytest
import torch

from matrix_adagrad.domains import Box, FrobeniusBall
from matrix_adagrad.online import (
    AdaGrad,
    Adversarial,
    Game,
    Linear,
    MirrorDescent,
    RegretMeter,
    Scaled,
    Scheme,
    Solution,
)
from tests.online.players import GAMES, SCHEMES, learner


def size(meter):
    file = io.BytesIO()
    torch.save(meter._state_dict(), file)
    return file.tell()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_kept_does_not_grow_with_the_rounds(scheme):
    game = Linear(6, 4)
    sizes = []
    for rounds in (2, 400):
        meter = RegretMeter(learner(game, scheme), bounds_for=("entry",))
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
    ("name", "scheme"),
    [
        *((name, "row") for name in GAMES),
        ("adversarial", "full columns"),
        ("motivating", "blocks"),
        ("linear", "geometric"),
        ("hinge", "minimum"),
        ("completion", "product"),
    ],
)
@pytest.mark.parametrize("stops", [[17, 30], [60], [75, 10]])
def test_a_run_that_is_broken_off_goes_on_with_the_same_bits(name, scheme, stops, tmp_path):
    game, file = GAMES[name], tmp_path / "run.pt"
    unbroken = RegretMeter(learner(game, scheme), bounds_for=("row",)).play(game, 60, exact=True)
    for rounds in stops:
        with pytest.raises(KeyboardInterrupt):
            RegretMeter(learner(game, scheme), bounds_for=("row",)).play(
                game, 60, exact=True, checkpoint=file, progress=Interrupts(rounds)
            )
    resumed = RegretMeter(learner(game, scheme), bounds_for=("row",)).play(game, 60, exact=True, checkpoint=file)
    assert resumed.to_dict() == unbroken.to_dict()
    assert torch.equal(resumed.best.x, unbroken.best.x)
    finished = RegretMeter(learner(game, scheme), bounds_for=("row",)).play(game, 60, exact=True, checkpoint=file)
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
        with pytest.raises(ValueError, match=r"rounds must be 30, which X\* was computed for, got 60"):
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
    other = meter.regret(Solution(-exact.best.x, -exact.best.value, 0.0))
    assert exact.exact
    assert not other.exact
    assert other.terms.distance >= exact.terms.distance


def test_a_scheme_without_a_stabilizer_leaves_out_the_bounds_that_have_it():
    class Rows(AdaGrad):
        delta = math.nan

        def __init__(self):
            super().__init__("row")
            self.delta = math.nan

        def observe(self, grad):
            squares = self._geometry.statistic(grad) + (0 if self.squares is None else self.squares[0])
            self.squares = (squares,)
            return Scaled(squares.sqrt() + 1e-6, "row")

    game = GAMES["linear"]
    x1 = torch.zeros(6, 4, dtype=torch.float64)
    regret = RegretMeter(MirrorDescent(x1, Rows(), game.domain)).play(game, 20)
    assert {inequality.place for inequality in regret.inequalities} == {"Cor. 1"}
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


def test_a_link_beside_the_checkpoint_is_not_written_through(tmp_path):
    file, victim = tmp_path / "run.pt", tmp_path / "victim"
    victim.write_bytes(b"untouched")
    (tmp_path / "run.pt.part").symlink_to(victim)
    game = Adversarial(6, 4)
    RegretMeter(learner(game)).play(game, 10, checkpoint=file)
    assert (victim.read_bytes(), file.exists()) == (b"untouched", True)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    game, file = Adversarial(6, 4), tmp_path / "run.pt"
    RegretMeter(learner(game)).play(game, 10, checkpoint=file)
    others = (
        (game, learner(game, "column")),
        (game, MirrorDescent(torch.zeros(6, 4, dtype=torch.float64), "row", game.domain)),
        (Adversarial(6, 4, FrobeniusBall(2.0)), learner(Adversarial(6, 4, FrobeniusBall(2.0)))),
    )
    for other_game, player in others:
        with pytest.raises(ValueError, match=r"(?s)run.pt belongs to another run:.*Adversarial"):
            RegretMeter(player).play(other_game, 10, checkpoint=file)
    with pytest.raises(ValueError, match="at least the 10 already played, got 5"):
        RegretMeter(learner(game)).play(game, 5, checkpoint=file)


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path):
    file = tmp_path / "run.pt"
    game = Adversarial(6, 4)
    for content in (b"not a checkpoint", b"", b"junk\n"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="run.pt is not the checkpoint of a regret run .* give another file"):
            RegretMeter(learner(game)).play(game, 5, checkpoint=file)
    for thing in ([1, 2], {"a": 1}):
        torch.save(thing, file)
        with pytest.raises(ValueError, match="run.pt is not the checkpoint of a regret run"):
            RegretMeter(learner(game)).play(game, 5, checkpoint=file)
    for path in (tmp_path, tmp_path / "nowhere" / "run.pt"):
        with pytest.raises(ValueError, match="checkpoint must be a file in an existing folder"):
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

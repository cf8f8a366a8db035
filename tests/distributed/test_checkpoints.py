"""A checkpoint moves between layouts, and the run goes on as if it had never been broken off."""

import functools
import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import Replicate, Shard
from torch.nn import Parameter

from matrix_adagrad import Blocks, Factored, Full, MatrixAdaGrad, MatrixMomentum, Spectral, SteepestDescent
from matrix_adagrad.checkpoints import Checkpoints, missing_from
from matrix_adagrad.domains import FrobeniusBall
from matrix_adagrad.geometry import Column, Row
from matrix_adagrad.optim.sharding import whole
from matrix_adagrad.optim.step.update import local
from matrix_adagrad.torch_private import StridedShard
from tests.distributed.layouts import SHAPES, Layout, assert_same, mesh_of, random, shared_out
from tests.optim.own_geometries import RowPlusColumn

FOUR = Layout((4,), (Shard(0),))
SQUARE = Layout((2, 2), (StridedShard(0, split_factor=2), Shard(0)))
OTHERS = (
    Layout((3,), (Shard(0),)),
    Layout((2,), (Shard(1),)),
    None,  # a single process
    SQUARE,
    Layout((2, 2), (Replicate(), Shard(0))),
)
FIRST, LAST = 6, 12
OPTIONS = {"lr": 0.1, "weight_decay": 0.01, "eps": 0.0}


class Model(nn.Module):
    """Parameters of all shapes; the last one never has a gradient."""

    def __init__(self, layout: Layout | None) -> None:
        super().__init__()
        for i, shape in enumerate((*SHAPES, (4, 3))):
            start = random(shape, i)
            own = start if layout is None else shared_out(start, mesh_of(layout.mesh), layout.of(shape))
            self.register_parameter(f"p{i}", Parameter(own))

    def train_until(self, optimizer, first: int, last: int, save=None) -> None:
        for step in range(first, last):
            for i, param in enumerate(list(self.parameters())[:-1]):
                grad = random(param.shape, 100 * step + i)
                mesh = getattr(param, "device_mesh", None)
                param.grad = grad if mesh is None else shared_out(grad, mesh, param.placements)
            optimizer.step()
            if save is not None:
                save(step + 1)


def a_run(make, layout, folder):
    model = Model(layout)
    optimizer = make(model.parameters())
    return model, optimizer, Checkpoints(folder, model, optimizer)


def save_first_half(make, layout, folder):
    model, optimizer, checkpoints = a_run(make, layout, folder)
    model.train_until(optimizer, 0, FIRST)
    checkpoints.save(FIRST)


def assert_goes_on(make, layout, folder, first=FIRST, save_at=None):
    """The loaded run and one that was never broken off, in a single process, end alike."""
    model, optimizer, checkpoints = a_run(make, layout, folder)
    assert checkpoints.resume() == first
    model.train_until(optimizer, first, save_at or LAST)
    if save_at:
        checkpoints.save(save_at)
    assert_is_unbroken(make, model, optimizer, save_at or LAST)


def assert_is_unbroken(make, model, optimizer, last):
    alone = Model(None)
    expected = make(alone.parameters())
    alone.train_until(expected, 0, last)
    expected.init_state()
    for mine, theirs in zip(alone.parameters(), model.parameters(), strict=True):
        assert_same(theirs, mine, exact=False)
        assert optimizer.state[theirs].keys() == expected.state[mine].keys()
        for key, value in expected.state[mine].items():
            assert_same(optimizer.state[theirs][key], value, exact=False)


every_run = pytest.mark.parametrize(
    "make",
    [
        functools.partial(MatrixAdaGrad, geometry=Row(), **OPTIONS),
        functools.partial(MatrixAdaGrad, geometry=Blocks(rows=2), **OPTIONS),
        functools.partial(MatrixMomentum, geometry=Column(), **OPTIONS),
        functools.partial(MatrixAdaGrad, geometry=RowPlusColumn(), **OPTIONS),
        functools.partial(MatrixMomentum, geometry=RowPlusColumn(), **OPTIONS),
        functools.partial(MatrixAdaGrad, geometry=Factored("minimum"), **OPTIONS),
        functools.partial(MatrixMomentum, geometry=Factored(), **OPTIONS),
    ],
    ids=[
        *("row", "blocks", "column momentum", "row plus column", "row plus column momentum"),
        *("factored", "factored momentum"),
    ],
)
every_new_run = pytest.mark.parametrize(
    "make",
    [
        functools.partial(MatrixMomentum, geometry=Factored(), lr=0.1, betas=(0.0, 0.9)),
        functools.partial(MatrixAdaGrad, geometry=Full("row", every=4), lr=0.1, eps=1e-3),
        functools.partial(SteepestDescent, geometry=Row(), lr=0.1, floor=0.1),
        functools.partial(SteepestDescent, geometry=Spectral(), lr=0.1, rescale=Row()),
    ],
    ids=["factored without momentum", "full", "steepest by row", "spectral and rescaled"],
)


@every_new_run
def test_two_ranks_save_and_four_or_one_continue(ranks, tmp_path, make):
    ranks.run(2, save_first_half, make, Layout((2,), (Shard(0),)), tmp_path)
    ranks.run(4, assert_goes_on, make, SQUARE, tmp_path)
    assert_goes_on(make, None, tmp_path)


NARROW = functools.partial(MatrixMomentum, geometry=Row(), lr=0.1, momentum_dtype=torch.bfloat16)


def narrow_averages(model, optimizer):
    return [whole(optimizer.state[param]["exp_avg"]) for param in model.parameters()]


def save_narrow(layout, folder):
    model, optimizer, checkpoints = a_run(NARROW, layout, folder)
    model.train_until(optimizer, 0, FIRST)
    checkpoints.save(FIRST)
    averages = narrow_averages(model, optimizer)
    if torch.distributed.get_rank() == 0:
        torch.save(averages, folder / "averages.pt")


def assert_loads_narrow(layout, folder):
    model, optimizer, checkpoints = a_run(NARROW, layout, folder)
    checkpoints.resume()
    for average, saved in zip(narrow_averages(model, optimizer), torch.load(folder / "averages.pt"), strict=True):
        assert average.dtype is torch.bfloat16
        assert torch.equal(average, saved)
    model.train_until(optimizer, FIRST, LAST)
    for average in narrow_averages(model, optimizer):
        sums = [average.double().sum()] if layout is None else gathered(average.double().sum())
        assert len(set(map(float, sums))) == 1  # replicas draw the same numbers


def gathered(number):
    everyones = [torch.empty_like(number) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(everyones, number)
    return everyones


def test_an_average_in_bfloat16_moves_between_layouts_as_it_is(ranks, tmp_path):
    ranks.run(2, save_narrow, Layout((2,), (Shard(0),)), tmp_path)
    ranks.run(4, assert_loads_narrow, Layout((2, 2), (Replicate(), Shard(0))), tmp_path)
    assert_loads_narrow(None, tmp_path)


@every_run
def test_four_ranks_save_and_other_layouts_continue_and_back(ranks, tmp_path, make):
    ranks.run(4, save_first_half, make, FOUR, tmp_path / "four")
    for i, layout in enumerate(OTHERS):
        folder = shutil.copytree(tmp_path / "four", tmp_path / str(i))
        there = functools.partial(assert_goes_on, make, layout, folder, FIRST, 9)
        ranks.run(layout.world, there) if layout else there()
        ranks.run(4, assert_goes_on, make, FOUR, folder, 9)


def full_round_trip(make, layout, path):
    """The whole state in one file, from one layout to another, by rank 0."""
    model = Model(layout)
    optimizer = make(model.parameters())
    model.train_until(optimizer, 0, FIRST)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    weights = {name: param.full_tensor().detach() for name, param in model.named_parameters()}
    if torch.distributed.get_rank() == 0:
        assert len(state["state"]) == len(list(model.parameters()))  # also the one without gradients
        torch.save((weights, state), path)


def assert_full_goes_on(make, layout, path):
    weights, state = torch.load(path, weights_only=True)
    model = Model(layout)
    optimizer = make(model.parameters())
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, weights, options=options)
    set_optimizer_state_dict(model, optimizer, state, options=options)
    model.train_until(optimizer, FIRST, LAST)
    assert_is_unbroken(make, model, optimizer, LAST)


@every_run
def test_a_full_state_can_be_moved_too(ranks, tmp_path, make):
    ranks.run(4, full_round_trip, make, FOUR, tmp_path / "full.pt")
    for layout in (OTHERS[0], Layout((2, 2), (Shard(0), Shard(1)))):  # torch itself does not fill strided shards so
        ranks.run(layout.world, assert_full_goes_on, make, layout, tmp_path / "full.pt")


def plain_round_trip(make, layout):
    """`state_dict` and `load_state_dict`, without torch's checkpoint code."""
    model = Model(layout)
    optimizer = make(model.parameters())
    model.train_until(optimizer, 0, FIRST)
    other = make(model.parameters())
    other.load_state_dict(optimizer.state_dict())
    model.train_until(other, FIRST, LAST)
    assert_is_unbroken(make, model, other, LAST)
    whole = {
        i: {key: value.full_tensor() if hasattr(value, "full_tensor") else value for key, value in own.items()}
        for i, own in optimizer.state_dict()["state"].items()
    }
    again = make(model.parameters())
    again.load_state_dict({**optimizer.state_dict(), "state": whole})  # whole values are taken by each rank in part
    for own, theirs in zip(optimizer.state.values(), again.state.values(), strict=True):
        for key, value in own.items():
            assert torch.equal(local(value), local(theirs[key]))


@every_run
def test_a_state_dict_round_trips(ranks, make):
    for layout in (OTHERS[0], SQUARE):
        ranks.run(layout.world, plain_round_trip, make, layout)


# ------------------------------------------------------------------------------------- checkpoints that were cut off

ROW = functools.partial(MatrixAdaGrad, geometry=Row(), **OPTIONS)


def two_checkpoints(folder):
    model, optimizer, checkpoints = a_run(ROW, None, folder)
    model.train_until(optimizer, 0, 4, checkpoints.save)
    return checkpoints


def test_the_requested_number_of_checkpoints_is_kept(tmp_path):
    two_checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000003", "step-000000004"]


@pytest.mark.parametrize("cut", ["no metadata", "short metadata", "short file", "no file", "unfinished"])
def test_a_truncated_checkpoint_is_detected_and_the_previous_one_is_used(tmp_path, cut, caplog):
    checkpoints = two_checkpoints(tmp_path)
    newest = tmp_path / "step-000000004"
    data = max(newest.glob("*.distcp"), key=lambda file: file.stat().st_size)
    if cut == "no metadata":
        (newest / ".metadata").unlink()
    elif cut == "short metadata":
        whole = (newest / ".metadata").read_bytes()
        (newest / ".metadata").write_bytes(whole[: len(whole) // 2])
    elif cut == "short file":
        data.write_bytes(data.read_bytes()[:-1])
    elif cut == "no file":
        data.unlink()
    else:
        newest.rename(newest.with_name(newest.name + ".unfinished"))
    with caplog.at_level(logging.WARNING, "matrix_adagrad"):
        assert checkpoints.resume() == 3
    if cut != "unfinished":
        assert missing_from(newest)
        assert "step-000000004 cannot be used" in caplog.text
    checkpoints.save(4)
    assert checkpoints.resume() == 4


def test_a_metadata_file_truncated_anywhere_is_never_accepted(tmp_path):
    checkpoints = two_checkpoints(tmp_path)
    metadata = tmp_path / "step-000000004" / ".metadata"
    whole = metadata.read_bytes()
    for length in range(0, len(whole), 97):
        metadata.write_bytes(whole[:length])
        assert missing_from(metadata.parent)
    assert checkpoints.resume() == 3


def test_without_a_checkpoint_a_run_starts_from_the_beginning(tmp_path):
    assert a_run(ROW, None, tmp_path / "nothing")[2].resume() == 0


def test_other_stateful_objects_are_restored_too(tmp_path):
    model, optimizer, _ = a_run(ROW, None, tmp_path)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    checkpoints = Checkpoints(tmp_path, model, optimizer, scheduler=scheduler)
    for step in range(3):
        model.train_until(optimizer, step, step + 1)
        scheduler.step()
    checkpoints.save(3)
    model, optimizer, _ = a_run(ROW, None, tmp_path)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    Checkpoints(tmp_path, model, optimizer, scheduler=scheduler).resume()
    assert scheduler.last_epoch == 3
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_saving_before_the_first_step_does_not_change_the_run(tmp_path):
    model, optimizer, checkpoints = a_run(ROW, None, tmp_path)
    checkpoints.save(0)
    model.train_until(optimizer, 0, LAST)
    assert_is_unbroken(ROW, model, optimizer, LAST)


def test_keep_must_be_at_least_1(tmp_path):
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        Checkpoints(tmp_path, *a_run(ROW, None, tmp_path)[:2], keep=0)


def test_a_run_that_had_a_gradient_before_it_was_resumed_has_its_state(tmp_path):
    model, optimizer, checkpoints = a_run(ROW, None, tmp_path)
    model.train_until(optimizer, 0, FIRST)
    checkpoints.save(FIRST)
    model, optimizer, checkpoints = a_run(ROW, None, tmp_path)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    assert checkpoints.resume() == FIRST
    model.train_until(optimizer, FIRST, LAST)
    del model.p8.grad
    unbroken = Model(None)
    other = ROW(unbroken.parameters())
    unbroken.train_until(other, 0, LAST)
    for name, param in unbroken.named_parameters():
        if name != "p8":  # the one that otherwise has no gradient
            assert_same(getattr(model, name), param, exact=True)


def test_saving_a_step_again_can_be_interrupted_without_loss(tmp_path, monkeypatch):
    model, optimizer, _ = a_run(ROW, None, tmp_path)
    checkpoints = Checkpoints(tmp_path, model, optimizer, keep=1)
    model.train_until(optimizer, 0, 1, checkpoints.save)
    rename, names = Path.rename, []

    def broken_off(path, to):
        names.append(Path(to).name)
        if len(names) == 2:
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", broken_off)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(1)
    monkeypatch.undo()
    assert checkpoints.resume() == 1
    checkpoints.save(1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_checkpoints_of_later_steps_belong_to_another_run(tmp_path, caplog):
    _, _, checkpoints = a_run(ROW, None, tmp_path)
    for step in (100, 200, 5, 6, 7):
        with caplog.at_level(logging.WARNING, "matrix_adagrad"):
            assert checkpoints.save(step).exists()
    assert sorted(int(path.name[5:]) for path in tmp_path.iterdir()) == [6, 7, 100, 200]
    assert "has later checkpoints, such as step-000000200" in caplog.text


def with_strays(folder):
    """What is not a checkpoint is not taken for one, and no rank waits for another that failed."""
    _, _, checkpoints = a_run(ROW, None, folder)
    assert checkpoints.resume() == 3
    checkpoints.folder = folder / "step-000000009"  # a file
    with pytest.raises(OSError, match="step-000000009"):
        checkpoints.save(1)


def test_stray_files_and_failures_of_one_rank(ranks, tmp_path):
    two_checkpoints(tmp_path)
    shutil.rmtree(tmp_path / "step-000000004")
    (tmp_path / "step-old2").mkdir()
    (tmp_path / "step-000000009").write_text("not a folder", encoding="utf-8")
    ranks.run(2, with_strays, tmp_path, timeout=30)


def test_a_wrong_byte_in_the_metadata_does_not_crash(tmp_path):
    _, _, checkpoints = a_run(ROW, None, tmp_path)
    metadata = checkpoints.save(1) / ".metadata"
    whole = metadata.read_bytes()
    for place in range(0, len(whole), 41):
        metadata.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        missing_from(metadata.parent)


def test_a_refused_state_leaves_the_model_unchanged(tmp_path):
    model, optimizer, checkpoints = a_run(ROW, None, tmp_path)
    model.train_until(optimizer, 0, 2, checkpoints.save)
    model = Model(None)
    before = [param.detach().clone() for param in model.parameters()]
    optimizer = ROW(model.parameters(), domain=FrobeniusBall(1e3))
    with pytest.raises(ValueError, match="nothing was loaded"):
        Checkpoints(tmp_path, model, optimizer).resume()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

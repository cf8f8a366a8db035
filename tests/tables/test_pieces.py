"""A checkpoint writes what has changed, and shares the rest with the one before: with the same guarantees."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from matrix_adagrad import RowMomentum, resize_table
from matrix_adagrad.checkpoints import Checkpoints, missing_from, pieces

ROWS, WIDTH = 640, 16
ROWS_PER_PIECE = 64  # 10 pieces


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", ROWS_PER_PIECE * WIDTH * 4)


def a_run(folder, rows=ROWS, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(rows, WIDTH, sparse=True), nn.Linear(WIDTH, 4))
    optimizer = RowMomentum(model.parameters(), lr=0.1)
    return model, optimizer, Checkpoints(folder, model, optimizer, share_unchanged=True, **options)


def stepped(model, optimizer, rows):
    optimizer.zero_grad()
    model(torch.as_tensor(rows)).square().sum().backward()
    optimizer.step()


def inodes(checkpoint):
    return {file.stat().st_ino for file in checkpoint.glob("*.distcp") if len(file.name) > 64}


def test_only_the_pieces_that_changed_are_written(tmp_path):
    model, optimizer, checkpoints = a_run(tmp_path)
    stepped(model, optimizer, range(ROWS))
    first = checkpoints.save(1)
    assert len(inodes(first)) == 20  # of the table and of its average
    stepped(model, optimizer, [3, 5, ROWS - 1])  # of two pieces
    second = checkpoints.save(2)
    assert len(inodes(second)) == 20
    assert len(inodes(second) - inodes(first)) == 4


def test_a_run_goes_on_as_if_it_had_never_been_broken_off(tmp_path):
    ends = []
    for folder, is_broken in ((tmp_path / "a", True), (tmp_path / "b", False)):
        model, optimizer, checkpoints = a_run(folder)
        for step in range(6):
            if is_broken and step == 4:
                model, optimizer, checkpoints = a_run(folder)
                nn.init.zeros_(model[0].weight)
                assert checkpoints.resume() == 4
            stepped(model, optimizer, [step, 100 * step])
            checkpoints.save(step + 1)
        ends.append([*model.parameters(), *(x for state in optimizer.state.values() for x in state.values())])
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert not missing_from(checkpoints.newest())


def test_what_is_shared_outlives_the_checkpoint_that_wrote_it(tmp_path):
    model, optimizer, checkpoints = a_run(tmp_path, keep=1)
    stepped(model, optimizer, range(ROWS))
    before = inodes(checkpoints.save(1))
    newest = checkpoints.save(2)
    assert [path.name for path in tmp_path.iterdir()] == [newest.name]
    assert inodes(newest) == before
    assert a_run(tmp_path)[2].resume() == 2


def test_pieces_of_the_same_contents_share_a_file(tmp_path):
    model, _, checkpoints = a_run(tmp_path)
    nn.init.zeros_(model[0].weight)
    assert len(inodes(checkpoints.save(1))) == 1
    fresh, _, other = a_run(tmp_path)
    assert other.resume() == 1
    assert not fresh[0].weight.any()


def test_a_damaged_file_is_not_shared_but_written_again(tmp_path):
    model, optimizer, checkpoints = a_run(tmp_path)
    stepped(model, optimizer, range(ROWS))
    first = checkpoints.save(1)
    damaged = max(first.glob("*.distcp"), key=lambda file: len(file.name))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    second = checkpoints.save(2)
    assert len(inodes(second) - inodes(first)) == 1
    assert a_run(tmp_path)[2].resume() == 2
    shutil.rmtree(second)
    assert a_run(tmp_path)[2].resume() == 0  # the first one is damaged, and known to be


def test_without_hard_links_everything_is_written(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    model, optimizer, checkpoints = a_run(tmp_path)
    stepped(model, optimizer, range(ROWS))
    first, second = checkpoints.save(1), checkpoints.save(2)
    assert not inodes(first) & inodes(second)
    assert a_run(tmp_path)[2].resume() == 2


def test_a_table_that_grew_shares_its_first_rows(tmp_path):
    model, optimizer, checkpoints = a_run(tmp_path)
    stepped(model, optimizer, range(ROWS))
    first = checkpoints.save(1)
    resize_table(model[0], optimizer, ROWS + 1)
    second = checkpoints.save(2)
    assert len(inodes(second) & inodes(first)) == 20
    fresh, _, other = a_run(tmp_path, rows=ROWS + 1)
    assert other.resume() == 2
    assert torch.equal(fresh[0].weight, model[0].weight)


def test_checkpoints_with_and_without_pieces_are_the_same_to_a_reader(tmp_path):
    model, optimizer, checkpoints = a_run(tmp_path)
    stepped(model, optimizer, range(ROWS))
    for is_shared in (True, False, True):
        checkpoints.share_unchanged = is_shared
        checkpoints.save(1)
        fresh, _, other = a_run(tmp_path)
        other.share_unchanged = not is_shared
        assert other.resume() == 1
        assert torch.equal(fresh[0].weight, model[0].weight)


KILLED = textwrap.dedent("""
    import os, sys, torch
    from matrix_adagrad.checkpoints import pieces
    from tests.tables.test_pieces import ROWS, ROWS_PER_PIECE, WIDTH, a_run, stepped
    pieces.PIECE_BYTES = ROWS_PER_PIECE * WIDTH * 4
    model, optimizer, checkpoints = a_run(sys.argv[1])
    assert checkpoints.resume() == 1
    stepped(model, optimizer, [3, 100, 500])
    left = int(sys.argv[2])
    write, link = pieces.PieceWriter._write, os.link
    def count(*args):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
    os.link = lambda *args: (count(), link(*args))
    pieces.PieceWriter._write = lambda *args: (count(), write(*args))[1]
    checkpoints.save(2)
""")


@pytest.mark.parametrize("moment", [0, 1, 7, 30])
def test_a_kill_at_any_moment_loses_nothing(tmp_path, moment):
    model, optimizer, checkpoints = a_run(tmp_path)
    stepped(model, optimizer, range(ROWS))
    checkpoints.save(1)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(moment)], check=False, timeout=300)
    assert killed.returncode == -9
    fresh, _, other = a_run(tmp_path)
    assert other.resume() == 1
    assert torch.equal(fresh[0].weight, model[0].weight)
    other.save(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000001", "step-000000002"]


def test_share_unchanged_is_true_or_false(tmp_path):
    with pytest.raises(TypeError, match="share_unchanged must be True or False, got 'yes'"):
        Checkpoints(tmp_path, nn.Linear(1, 1), torch.optim.SGD([torch.ones(1)]), share_unchanged="yes")

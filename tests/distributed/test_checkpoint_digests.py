"""A bit that has changed in a checkpoint is found out, wherever it is, and the checkpoint before is used."""

import functools
import logging
import random
import subprocess

import pytest

from matrix_adagrad.checkpoints import digests
from tests.distributed.test_checkpoints import FOUR, ROW, a_run, assert_goes_on, save_first_half, two_checkpoints

FILES = (".metadata", "__0_0.distcp", digests.NAME)


def flip(file, place, bit):
    raw = bytearray(file.read_bytes())
    raw[place] ^= 1 << bit
    file.write_bytes(raw)


def test_every_flipped_bit_in_every_file_is_detected(tmp_path, caplog):
    checkpoints, rng = two_checkpoints(tmp_path), random.Random(0)
    newest = tmp_path / "step-000000004"
    assert {file.name for file in newest.iterdir()} == set(FILES)
    for name in FILES:
        file = newest / name
        whole = file.read_bytes()
        for place in (0, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(18))):
            caplog.clear()
            flip(file, place, rng.randrange(8))
            with caplog.at_level(logging.WARNING, "matrix_adagrad"):
                assert checkpoints.resume() == 3
            assert "step-000000004 cannot be used (" in caplog.text
            assert name in caplog.text or name == digests.NAME  # whose bits may make another file's digest, or its name
            file.write_bytes(whole)
    assert checkpoints.resume() == 4


def test_a_warning_says_if_no_checkpoint_can_be_used(tmp_path, caplog):
    checkpoints = two_checkpoints(tmp_path)
    for path in tmp_path.iterdir():
        flip(path / "__0_0.distcp", 1000, 0)
    with caplog.at_level(logging.WARNING, "matrix_adagrad"):
        assert checkpoints.resume() == 0
    assert caplog.text.count("__0_0.distcp has changed since it was saved") == 2
    assert f"no checkpoint in {tmp_path} can be used: the run starts from the beginning" in caplog.text


def test_a_checkpoint_without_digests_is_loaded_with_a_warning(tmp_path, caplog):
    checkpoints = two_checkpoints(tmp_path)
    (tmp_path / "step-000000004" / digests.NAME).unlink()
    with caplog.at_level(logging.WARNING, "matrix_adagrad"):
        assert checkpoints.resume() == 4
    assert "step-000000004 has no SHA256SUMS" in caplog.text


def test_other_files_in_the_folder_do_not_matter(tmp_path):
    checkpoints = two_checkpoints(tmp_path)
    (tmp_path / "step-000000004" / "notes").write_text("mine", encoding="utf-8")
    assert checkpoints.resume() == 4


def test_sha256sum_reads_the_digests_too(tmp_path):
    path = a_run(ROW, None, tmp_path)[2].save(1)
    check = functools.partial(subprocess.run, ["sha256sum", "--check", "--strict", digests.NAME], capture_output=True)
    try:
        assert check(cwd=path).returncode == 0
    except FileNotFoundError:
        pytest.skip("sha256sum is not installed")
    flip(path / "__0_0.distcp", 1000, 0)
    assert check(cwd=path).returncode == 1


def test_all_ranks_learn_what_has_changed_in_the_file_of_one(ranks, tmp_path):
    for step in (1, 2):
        ranks.run(4, save_at, step, tmp_path)
    newest = tmp_path / "step-000000002"
    text = (newest / digests.NAME).read_text(encoding="utf-8")
    assert [line[66:] for line in text.splitlines()] == [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))]
    for rank in range(4):
        flip(newest / f"__{rank}_0.distcp", 700, 3)
        assert ranks.run(4, resumed, FOUR, tmp_path) == [1] * 4
        assert ranks.run(2, resumed, None, tmp_path) == [1] * 2  # there are fewer ranks than files
        flip(newest / f"__{rank}_0.distcp", 700, 3)
    assert ranks.run(4, resumed, FOUR, tmp_path) == [2] * 4


def save_at(step, folder):
    a_run(ROW, FOUR, folder)[2].save(step)


def resumed(layout, folder):
    return a_run(ROW, layout, folder)[2].resume()


def test_a_changed_checkpoint_costs_the_steps_since_the_previous_one(ranks, tmp_path):
    ranks.run(4, save_first_half, ROW, FOUR, tmp_path)
    ranks.run(4, save_at, 7, tmp_path)
    flip(tmp_path / "step-000000007" / "__2_0.distcp", 700, 3)
    ranks.run(4, assert_goes_on, ROW, FOUR, tmp_path)

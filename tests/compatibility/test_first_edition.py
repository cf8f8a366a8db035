"""What the first edition saved is loaded by this one, and the run goes on as it did there.

Bits are not compared: torch adds up in another order on other processors.
"""

import io
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from matrix_adagrad.checkpoints import Checkpoints
from tests.compatibility.runs import AFTER, BEFORE, RUNS, make_params, network, train, train_network
from tests.optim.training import assert_same

ARCHIVE = Path(__file__).with_name("first_edition.zip")


def read(name):
    with zipfile.ZipFile(ARCHIVE) as archive:
        return torch.load(io.BytesIO(archive.read(name)), weights_only=True)


@pytest.mark.parametrize("name", RUNS)
def test_a_state_dict_of_the_first_edition_is_continued_as_it_was_there(name):
    make, dtype, is_sparse = RUNS[name]
    saved = read(f"{name}.pt")
    params = make_params(dtype, is_sparse)
    optimizer = make(params)
    groups = saved["optimizer"]["param_groups"]
    has_sums_of_blocks = any(group.get("geometry", "entry") != "entry" and "betas" not in group for group in groups)
    with pytest.warns(UserWarning, match="does not record the shape") if has_sums_of_blocks else nullcontext():
        optimizer.load_state_dict(saved["optimizer"])
    for param, value in zip(params, saved["params"], strict=True):
        param.data.copy_(value)
    train(params, optimizer, range(BEFORE, BEFORE + AFTER), is_sparse)
    assert_same(params, saved["expected"])


def test_a_distributed_checkpoint_of_the_first_edition_is_continued_as_it_was_there(tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    model, optimizer = network()
    assert Checkpoints(tmp_path / "checkpoint", model, optimizer).resume() == BEFORE
    train_network(model, optimizer, range(BEFORE, BEFORE + AFTER))
    assert_same([*model.parameters()], read("checkpoint.pt"))

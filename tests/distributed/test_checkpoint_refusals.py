"""What a checkpoint, or what is to be saved in one, may not be: said in one line, before anything changes."""

import numpy as np
import pytest
import torch
from torch import nn

from matrix_adagrad import MatrixAdaGrad
from matrix_adagrad.checkpoints import Checkpoints


def test_resuming_from_a_checkpoint_without_shapes_warns(tmp_path, monkeypatch):
    def run(steps):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = MatrixAdaGrad(model.parameters(), lr=0.1)
        checkpoints = Checkpoints(tmp_path, model, optimizer)
        for step in range(checkpoints.resume(), steps):
            optimizer.zero_grad()
            model(torch.full((1, 4), step + 1.0)).sum().backward()
            optimizer.step()
            checkpoints.save(step + 1)
        return optimizer.state[model.weight]["step"]

    with monkeypatch.context() as older:
        older.setattr(MatrixAdaGrad, "shape_to_save", lambda *_: {})
        run(2)
    with pytest.warns(UserWarning, match="does not record the shape of parameter 0"):
        assert run(3) == 3
    assert run(4) == 4  # the new one has them


def test_a_checkpoint_of_another_width_is_refused_and_the_model_left_as_it_was(tmp_path):
    def tables(width):
        torch.manual_seed(width)
        model = nn.Embedding(10, width)
        model.weight.grad = torch.ones(10, width)
        optimizer = MatrixAdaGrad(model.parameters(), lr=0.1)
        return model, Checkpoints(tmp_path, model, optimizer), optimizer

    _, checkpoints, optimizer = tables(16)
    optimizer.step()
    checkpoints.save(1)
    model, checkpoints, _ = tables(64)
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match=r"of shape \(10, 16\), but here it has shape \(10, 64\)"):
        checkpoints.resume()
    assert torch.equal(model.weight, before)


def a_saver(folder, **others):
    model = nn.Linear(4, 2)
    optimizer = MatrixAdaGrad(model.parameters(), lr=np.float64(0.1))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return Checkpoints(folder, model, optimizer, **others)


def test_numbers_from_other_libraries_can_be_resumed(tmp_path):
    checkpoints = a_saver(tmp_path)
    schedule = torch.optim.lr_scheduler.LambdaLR(checkpoints.optimizer, lambda t: np.float64(0.5) ** t)
    checkpoints = Checkpoints(tmp_path, checkpoints.model, checkpoints.optimizer, schedule=schedule)
    checkpoints.optimizer.step()
    schedule.step()
    checkpoints.save(np.int64(7))
    assert checkpoints.resume() == 7
    assert checkpoints.optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("step", [-1, 1.5, "x", None, True])
def test_an_invalid_step_is_refused_before_anything_is_written(tmp_path, step):
    with pytest.raises(ValueError, match="step must be a whole number, at least 0"):
        a_saver(tmp_path).save(step)
    assert not list(tmp_path.iterdir())


def test_unsavable_arguments_are_refused_at_construction(tmp_path):
    model = nn.Linear(4, 2)
    optimizer = MatrixAdaGrad(model.parameters())
    (tmp_path / "file").touch()
    with pytest.raises(
        TypeError, match="model and optimizer must be an nn.Module and an Optimizer, got a MatrixAdaGrad"
    ):
        Checkpoints(tmp_path, optimizer, model)
    with pytest.raises(ValueError, match="keep must be at least 1, got 'a'"):
        Checkpoints(tmp_path, model, optimizer, keep="a")
    with pytest.raises(TypeError, match="schedule must have a state_dict and a load_state_dict, got 3"):
        Checkpoints(tmp_path, model, optimizer, schedule=3)
    with pytest.raises(NotADirectoryError, match="folder must be a folder, got the file .*file"):
        Checkpoints(tmp_path / "file", model, optimizer)


def test_a_checkpoint_with_other_shapes_is_an_ordinary_one_line_error(tmp_path):
    a_saver(tmp_path).save(1)
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"the checkpoint .* does not fit: Size mismatch .*optimizer.state"):
        Checkpoints(tmp_path, model, MatrixAdaGrad(model.parameters())).resume()

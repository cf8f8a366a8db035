"""Networks that are trained together are trained as each would be alone, and as a user would train an nn.Sequential."""

import itertools
import math

import pytest
import torch
from torch import nn

from matrix_adagrad import ColumnMomentum, MatrixMomentum
from reproduction import mlp
from reproduction.mlp import OPTIMIZERS, SETTINGS, Config, run


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_networks_together_equal_networks_alone(optimizer, setting):
    def of(*seeds):
        return run(Config(optimizer, 4, 0.01, setting, seeds=seeds, steps=30), torch.float64)

    together = of(3, 0, 5)
    for number, seed in enumerate((3, 0, 5)):
        alone = of(seed)
        assert together.curves[number] == pytest.approx(alone.curves[0], rel=1e-9)
        assert together.losses[number] == pytest.approx(alone.losses[0], rel=1e-9)
        assert (together.constant[number], together.linear[number]) == (alone.constant[0], alone.linear[0])


def as_a_user(config):
    """An nn.Sequential with an optimizer over its parameters."""
    seed = mlp._Seed(config, config.seeds[0], torch.float64)
    setting = SETTINGS[config.setting]
    layers = []
    for weight, bias in seed.layers:
        layer = nn.Linear(*weight.T.shape, dtype=torch.float64)
        layer.weight.data, layer.bias.data = weight, bias
        layers += [layer, nn.Tanh() if setting.activation == "tanh" else nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    scaling, options = OPTIMIZERS[config.optimizer], {"betas": (0.9, 0.9), "eps": config.eps}
    if scaling.weights == "entry":
        lr = config.lr / (math.sqrt(20) if "√" in config.optimizer else 1)
        optimizer = torch.optim.Adam(model.parameters(), lr, **options)
    elif scaling.weights == "column":
        optimizer = ColumnMomentum(model.parameters(), config.lr, **options)
    else:
        weights, biases = ([p for p in model.parameters() if p.ndim == ndim] for ndim in (2, 1))
        groups = [{"params": weights}, {"params": biases, "geometry": scaling.biases}]
        optimizer = MatrixMomentum(groups, config.lr, geometry="row", reduction=scaling.reduction, **options)
    losses = []
    for rows in itertools.islice(seed.batches(setting.batch), config.steps):
        loss = nn.functional.mse_loss(model(seed.x.T[rows]), seed.y.T[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_is_what_a_user_would_write(optimizer, setting):
    config = Config(optimizer, 4, 0.01, setting, seeds=(7,), steps=20)
    assert run(config, torch.float64).curves[0] == pytest.approx(as_a_user(config), rel=1e-9)


def test_shallow_networks_beat_the_linear_fit_which_beats_the_constant():
    result = run(Config(depth=3, seeds=(0, 1)))
    assert all(map(float.__lt__, result.losses, result.linear))
    assert all(map(float.__lt__, result.linear, result.constant))
    assert len(result.curves[0]) == 100


def test_the_linear_fit_is_that_of_least_squares():
    seed = mlp._Seed(Config(), 4, torch.float64)
    known = torch.cat([seed.x, torch.ones_like(seed.x[:1])]).T
    error = seed.y.T - known @ torch.linalg.lstsq(known, seed.y.T).solution
    assert seed.linear == pytest.approx(error.square().mean().item(), rel=1e-12)


def test_one_layer_is_the_linear_fit_at_best():
    result = run(Config(depth=1, setting="B", lr=0.05))
    assert 1 <= result.losses[0] / result.linear[0] < 1.001


def test_a_run_depends_on_its_config_alone():
    config = Config(depth=3, steps=5)
    assert run(config) == run(config)
    assert run(config).losses != run(Config(depth=3, steps=5, seeds=(1,))).losses


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of .*, got 'lion'"),
        ({"setting": "C"}, "setting must be one of A, B, got 'C'"),
        ({"seeds": ()}, "seeds not empty"),
        ({"depth": 0}, "depth must be at least 1"),
    ],
)
def test_wrong_configs_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Config(**options)

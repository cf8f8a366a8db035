"""Networks that are trained together are trained as each would be alone, and as a user would train an nn.Sequential."""

import itertools
import math
from dataclasses import astuple, replace

import pytest
import torch
from torch import nn

from matrix_adagrad import ColumnMomentum, MatrixMomentum
from matrix_adagrad.geometry import Column, Entry, Row
from reproduction.networks import mlp
from reproduction.networks.mlp import OPTIMIZERS, SETTINGS, Config, Run, run

A, B = SETTINGS["A"], SETTINGS["B"]


def trained(setting, runs, seeds, steps=20):
    return run(Config(setting, 4, tuple(runs), tuple(seeds), steps), torch.float64)


@pytest.mark.parametrize("setting", SETTINGS)
def test_networks_together_equal_networks_alone(setting):
    runs = [Run(optimizer, lr) for optimizer in OPTIMIZERS for lr in (0.01, 0.1)]
    together = trained(setting, runs, (3, 0, 5))
    for (i, each), (j, seed) in itertools.product(enumerate(runs), enumerate((3, 0, 5))):
        alone = trained(setting, [each], [seed])
        assert together.curves[i][j] == pytest.approx(alone.curves[0][0], rel=1e-9)
        assert together.losses[i][j] == pytest.approx(alone.losses[0][0], rel=1e-9)
        assert (together.constant[j], together.linear[j]) == (alone.constant[0], alone.linear[0])


class AdamWithoutCorrection(torch.optim.Optimizer):
    """Adam whose averages start at zero and stay as they are."""

    def __init__(self, params, lr, betas, eps):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for x in group["params"]:
                d, v = self.state[x].setdefault("averages", [torch.zeros_like(x), torch.zeros_like(x)])
                d.lerp_(x.grad, 1 - group["betas"][0])
                v.lerp_(x.grad.square(), 1 - group["betas"][1])
                x -= group["lr"] * d / (v.sqrt() + group["eps"])


def as_a_user(setting, each, seed_number, steps=20):
    """The losses of an nn.Sequential with an optimizer over its parameters."""
    seed = mlp._Seed(setting, 4, seed_number, torch.float64)
    layers = []
    for weight, bias in seed.layers:
        layer = nn.Linear(*weight.T.shape, dtype=torch.float64)
        layer.weight.data, layer.bias.data = weight, bias
        layers += [layer, nn.Tanh() if setting.activation == "tanh" else nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = optimizer_of_a_user(model, setting, each)
    orders = iter(seed.order, None)
    if setting.batch == mlp.SAMPLES:
        orders = itertools.repeat(torch.arange(mlp.SAMPLES))
    losses = []
    for rows in itertools.islice((rows for order in orders for rows in order.split(setting.batch)), steps):
        loss = nn.functional.mse_loss(model(seed.x.T[rows]), seed.y.T[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def optimizer_of_a_user(model, setting, each):
    scaling, options = OPTIMIZERS[each.optimizer], {"betas": (0.9, 0.9), "eps": setting.eps}
    if scaling.weights == Entry():
        lr = each.lr / (math.sqrt(20) if "√" in each.optimizer else 1)
        kind = torch.optim.Adam if setting.bias_correction else AdamWithoutCorrection
        return kind(model.parameters(), lr, **options)
    options["bias_correction"] = setting.bias_correction
    if scaling.weights == Column():
        return ColumnMomentum(model.parameters(), each.lr, **options)
    weights, biases = ([p for p in model.parameters() if p.ndim == ndim] for ndim in (2, 1))
    groups = [{"params": weights}, {"params": biases, "geometry": "whole" if scaling.biases == Row() else "entry"}]
    return MatrixMomentum(groups, each.lr, geometry="row", reduction=scaling.reduction, **options)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_is_what_a_user_would_write(optimizer, setting):
    each = Run(optimizer, 0.01)
    found = trained(setting, [each], [7]).curves[0][0]
    assert found == pytest.approx(as_a_user(SETTINGS[setting], each, 7), rel=1e-9)


def differences(setting, other):
    return sum(mine != yours for mine, yours in zip(astuple(setting), astuple(other), strict=True))


def test_settings_differ_in_one_thing():
    for name, setting in SETTINGS.items():
        if name.startswith("A with") and "ReLU" not in name:
            assert differences(setting, A) == 1
    relu = SETTINGS["A with ReLU"]  # the start that is meant for it
    assert relu == replace(A, activation="ReLU", start="Kaiming normal")
    assert differences(B, A) == 4
    assert replace(B, eps=1e-16) == SETTINGS["B with eps 1e-16"]
    assert A.eps == B.eps == 1e-8


def test_kaimings_start_has_twice_the_variance_of_xaviers():
    def spread(name):
        layers = mlp._Seed(SETTINGS[name], 200, 0, torch.float64).layers[:-1]
        return torch.stack([weight for weight, _ in layers]).square().mean().item()

    assert spread("A") == pytest.approx(1 / 20, rel=0.02)
    assert spread("A with ReLU") == pytest.approx(2 / 20, rel=0.02)


@pytest.mark.parametrize("depth", [22, 25])
def test_in_setting_b_most_gradients_are_smaller_than_the_usual_eps(depth):
    config = Config("B", depth, seeds=(0, 1, 2))
    seeds = [mlp._Seed(B, depth, seed, torch.float64) for seed in config.seeds]
    networks = mlp._Networks(config, seeds)
    networks.differentiate(*mlp._samples(seeds, 1))
    gradients = networks.gradients[0][0]  # of the hidden weights
    for sizes in (gradients.abs(), gradients.norm(dim=-1)):
        assert (sizes < 1e-8).double().mean() > 0.6


def test_shallow_networks_beat_the_linear_fit_which_beats_the_constant():
    result = run(Config(depth=3, seeds=(0, 1)))
    assert all(map(float.__lt__, result.losses[0], result.linear))
    assert all(map(float.__lt__, result.linear, result.constant))
    assert len(result.curves[0][0]) == 100


def test_the_linear_fit_is_that_of_least_squares():
    seed = mlp._Seed(A, 3, 4, torch.float64)
    known = torch.cat([seed.x, torch.ones_like(seed.x[:1])]).T
    error = seed.y.T - known @ torch.linalg.lstsq(known, seed.y.T).solution
    assert seed.linear == pytest.approx(error.square().mean().item(), rel=1e-12)


def test_one_layer_is_the_linear_fit_at_best():
    result = run(Config("B", 1, (Run("Row-wise Momentum", 0.05),)))
    assert 1 <= result.losses[0][0] / result.linear[0] < 1.001


def test_a_run_depends_on_its_config_alone():
    config = Config(depth=3, steps=5)
    assert run(config) == run(config)
    assert run(config).losses != run(Config(depth=3, steps=5, seeds=(1,))).losses


def test_a_network_that_diverges_does_not_touch_the_others():
    calm, wild = Run("Adam", 0.01), Run("Adam", 1e30)
    result = run(Config(depth=3, runs=(wild, calm), steps=20))
    assert result.losses[0] == (math.inf,)
    assert result.losses[1] == pytest.approx(run(Config(depth=3, runs=(calm,), steps=20)).losses[0], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"setting": "C"}, "setting must be one of A, .*, got 'C'"),
        ({"seeds": ()}, "seeds not empty"),
        ({"runs": ()}, "runs and seeds not empty"),
        ({"depth": 0}, "depth must be at least 1"),
    ],
)
def test_wrong_configs_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Config(**options)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="optimizer must be one of Adam, .*, got 'lion'"):
        Run("lion", 0.01)

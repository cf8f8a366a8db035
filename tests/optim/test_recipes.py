"""One optimizer for a whole model: Muon's steps, factored scales without an average, and Adam's steps, by kind."""

import io

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from matrix_adagrad import Factored, MatrixMomentum, Row, Spectral, SteepestDescent, matrix_optimizer, state_bytes
from tests.optim.training import assert_bitwise, make_grads


class Experts(nn.Module):
    """A batch of matrices with stacked biases."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 6, 4))
        self.bias = nn.Parameter(torch.zeros(3, 6))


class Network(nn.Module):
    """The kinds of parameters of a GPT with experts, and a convolution; its head may be tied to the table."""

    def __init__(self, tied=True):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(20, 4)
        self.attention = nn.Linear(4, 12)
        self.experts = Experts()
        self.conv = nn.Conv1d(4, 4, 3, bias=False)
        self.norm = nn.LayerNorm(4)
        self.lm_head = nn.Linear(4, 20, bias=False)
        if tied:
            self.lm_head.weight = self.tokens.weight


HIDDEN = {"attention.weight", "experts.up"}
TABLES = {"tokens.weight"}
VECTORS = {"attention.bias", "experts.bias", "norm.weight", "norm.bias"}


def owners(optimizer):
    """The optimizer, its geometry and its β₁, by name."""
    return {
        name: (type(part), group["geometry"], group.get("betas", (None,))[0])
        for part in optimizer.optimizers
        for group in part.param_groups
        for name in group["param_names"]
    }


def step(model, optimizers, steps=3, scale=1.0, first=0):
    params = list(model.parameters())
    for t in range(first, first + steps):
        for param, grad in zip(params, make_grads(params, t), strict=True):
            param.grad = grad * scale
        for optimizer in optimizers:
            optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_each_parameter_goes_to_one_optimizer_by_its_kind(tied):
    found = owners(matrix_optimizer(Network(tied)))
    assert {name for name in found if found[name] == (SteepestDescent, Spectral(), None)} == HIDDEN
    tables = TABLES if tied else TABLES | {"lm_head.weight"}
    assert {name for name in found if found[name] == (MatrixMomentum, Factored(), 0.0)} == tables
    by_entry = {name for name, owner in found.items() if owner[0] is MatrixMomentum and str(owner[1]) == "entry"}
    assert by_entry == VECTORS | {"conv.weight"}
    assert {found[name][2] for name in by_entry} == {0.9}
    assert len(found) == len(HIDDEN | tables | by_entry)


def test_the_steps_are_those_of_the_optimizers_on_their_own():
    model, twin = Network(), Network()
    moved = step(model, [matrix_optimizer(model, lr=0.02, tables_lr=0.01, vectors_lr=0.03)])
    named = dict(twin.named_parameters())
    rest = sorted(VECTORS | {"conv.weight"})
    experts = [nn.Parameter(expert.detach().clone()) for expert in twin.experts.up]
    options = {"reduction": "mean", "decoupled_weight_decay": True}
    expected = step(
        twin,
        [
            SteepestDescent([twin.attention.weight], 0.02, geometry=Spectral(), momentum=0.95, nesterov=True),
            MatrixMomentum([twin.tokens.weight], 0.01, geometry=Factored(), betas=(0.0, 0.999), **options),
            MatrixMomentum([named[name] for name in rest], 0.03, geometry="entry", **options),
        ],
    )
    for name in set(expected) - {"experts.up"}:
        assert_bitwise([moved[name]], [expected[name]])
    alone = SteepestDescent(experts, 0.02, geometry=Spectral(), momentum=0.95, nesterov=True)
    for t in range(3):
        grads = make_grads(list(model.parameters()), t)[[*moved].index("experts.up")]
        for expert, grad in zip(experts, grads, strict=True):
            expert.grad = grad.clone()
        alone.step()
    torch.testing.assert_close(moved["experts.up"].detach(), torch.stack(experts).detach())


def test_tables_keep_rows_columns_and_one_more_and_nothing_of_their_size():
    model = Network(tied=False)
    optimizer = matrix_optimizer(model)
    optimizer.init_state()
    for weight in (model.tokens.weight, model.lm_head.weight):
        kept = {key: value.numel() for key, value in optimizer.state[weight].items() if key != "step"}
        assert sum(kept.values()) == 20 + 4 + 1
    assert set(optimizer.state[model.experts.up]) == {"step", "momentum_buffer"}
    assert optimizer.state[model.experts.up]["momentum_buffer"].shape == (3, 6, 4)


def test_state_bytes_count_everything_that_is_kept():
    model = Network(tied=False)
    optimizer = matrix_optimizer(model)
    assert state_bytes(optimizer) == 0
    optimizer.init_state()
    hidden, tables, vectors = 48 + 72, 2 * (20 + 4 + 1), 2 * (12 + 18 + 4 + 4 + 48)
    parameters = len(list(model.parameters()))
    assert state_bytes(optimizer) == 4 * (hidden + tables + vectors + parameters)  # with a step counter each
    adamw = AdamW(model.parameters())
    step(model, [adamw], steps=1)
    assert state_bytes(adamw) == 4 * (2 * sum(param.numel() for param in model.parameters()) + parameters)


def test_the_table_says_where_a_parameter_goes_and_what_is_kept(capsys):
    model = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 8), nn.Linear(8, 3, bias=False))
    optimizer = matrix_optimizer(model, explain=True)
    assert capsys.readouterr().out.splitlines() == [
        "parameter  shape    optimizer              geometry                     scales  reason",
        "0.weight   100 × 8  MatrixMomentum (β₁=0)  Factored(combine='product')     109  a table: each row is an item",
        "1.weight   8 × 8    SteepestDescent        Spectral()                        0  a hidden matrix",
        "1.bias     8        MatrixMomentum         entry                             8  a vector: it has no rows",
        "2.weight   3 × 8    MatrixMomentum (β₁=0)  Factored(combine='product')      12  "
        "the last linear layer, taken for the output head",
        "129 scales for 896 parameters",
        "state, in numbers: SteepestDescent 64 (256 B) + MatrixMomentum (β₁=0) 121 (484 B) + MatrixMomentum 16 (64 B) "
        "= 201 (804 B); AdamW 1,792 (7.17 kB)",
    ]
    optimizer.init_state()
    assert state_bytes(optimizer) == 804 + 4 * 4  # and the step counters


def test_a_run_goes_on_from_a_file_with_the_same_bits():
    model, other = Network(), Network()
    optimizer = matrix_optimizer(model)
    step(model, [optimizer])
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, saved = torch.load(file, weights_only=True)
    other.load_state_dict(weights)
    resumed = matrix_optimizer(other, lr=1.0)
    resumed.load_state_dict(saved)
    step(model, [optimizer], first=3)
    step(other, [resumed], first=3)
    assert_bitwise(list(other.parameters()), list(model.parameters()))


def test_weight_decay_is_decoupled_and_leaves_vectors_alone():
    model = Network()
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    optimizer = matrix_optimizer(model, lr=0.5, tables_lr=0.25, vectors_lr=0.125, weight_decay=0.1)
    after = step(model, [optimizer], steps=1, scale=0.0)
    factors = {**dict.fromkeys(HIDDEN, 0.95), **dict.fromkeys(TABLES, 0.975), "conv.weight": 0.9875}
    for name, start in before.items():
        torch.testing.assert_close(after[name].detach(), factors.get(name, 1.0) * start)


@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)])
def test_all_rates_follow_from_one(lr):
    once, twice = (
        {group["name"]: float(group["lr"]) for group in matrix_optimizer(Network(), lr=rate).param_groups}
        for rate in (lr, 2 * lr)
    )
    assert twice == pytest.approx({name: 2 * rate for name, rate in once.items()})


def test_a_rule_of_ones_own_chooses_the_geometry_and_with_it_the_optimizer():
    rules = {"tokens.*": "row", "attention.weight": "column", "lm_head.*": Spectral()}
    found = owners(matrix_optimizer(Network(tied=False), rules=rules))
    assert found["tokens.weight"] == (MatrixMomentum, Row(), 0.0)
    assert str(found["attention.weight"][1]) == "column"
    assert found["attention.weight"][2] == 0.9
    assert found["lm_head.weight"] == (SteepestDescent, Spectral(), None)


def test_lean_takes_convolutions_by_channel():
    assert owners(matrix_optimizer(Network(), rules="lean"))["conv.weight"] == (MatrixMomentum, Row(), 0.9)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"betta": 1}, TypeError, "matrix_optimizer got an unknown option 'betta'"),
        ({"table_lr": 0.1}, TypeError, "did you mean 'tables_lr'"),
        ({"tables_lr": -1.0}, ValueError, "tables_lr must be a finite number, at least 0, .* got -1.0"),
        ({"vectors_lr": "x"}, TypeError, "vectors_lr must be a finite number, at least 0, .* got 'x'"),
        ({"lr": "x"}, TypeError, "^lr must be a finite number, at least 0, .* got 'x'"),
        ({"betas": 0.9}, TypeError, "^betas must be two numbers"),
        ({"momentum": 1.0}, ValueError, "^momentum must be a number, at least 0 and less than 1, got 1.0"),
        ({"weight_decay": "x"}, TypeError, "^weight_decay must be a finite number, at least 0, got 'x'"),
    ],
)
def test_wrong_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        matrix_optimizer(Network(), **options)


def test_a_model_without_parameters_and_what_is_no_model():
    with pytest.raises(ValueError, match="no parameters"):
        matrix_optimizer(nn.ReLU())
    with pytest.raises(TypeError, match="model must be a module"):
        matrix_optimizer(Network().parameters())


def test_it_learns_a_permutation():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 16))
    optimizer = matrix_optimizer(model, lr=0.02)
    items, targets = torch.arange(16), torch.randperm(16)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(items), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2.5
    assert losses[-1] < 0.1

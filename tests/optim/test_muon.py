"""Muon has the hidden matrices, and all else has one scale a row or an entry, with Adam's and AdaGrad's rates."""

import pytest
import torch
from torch import nn
from torch.optim import Adagrad, Adam, Muon

from matrix_adagrad import MatrixAdaGrad, MatrixMomentum, Row, RowAdaGrad, RowMomentum, muon_with_rows
from tests.optim.training import assert_bitwise, assert_same, make_grads


class Network(nn.Module):
    """A table, hidden matrices, a convolution, vectors, and a head that may be tied to the table."""

    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(20, 4)
        self.up = nn.Linear(4, 6)
        self.conv = nn.Conv1d(6, 6, 3, bias=False)
        self.down = nn.Linear(6, 4, bias=False)
        self.norm = nn.LayerNorm(4)
        self.lm_head = nn.Linear(4, 20, bias=False)
        if tied:
            self.lm_head.weight = self.tokens.weight


HIDDEN = {"up.weight", "down.weight"}
BY_ROW = {"tokens.weight", "lm_head.weight"}
BY_ENTRY = {"up.bias", "norm.weight", "norm.bias", "conv.weight"}


def owners(optimizer):
    """The optimizer and the geometry of each parameter, by name."""
    return {
        name: (type(part).__name__, str(group.get("geometry", "")))
        for part in optimizer.optimizers
        for group in part.param_groups
        for name in group["param_names"]
    }


def step(model, optimizers, steps=3, scale=1.0):
    params = list(model.parameters())
    for t in range(steps):
        for param, grad in zip(params, make_grads(params, t), strict=True):
            param.grad = grad * scale
        for optimizer in optimizers:
            optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize(("rows", "name"), [("momentum", "MatrixMomentum"), ("adagrad", "MatrixAdaGrad")])
def test_each_parameter_goes_to_one_optimizer_by_its_kind(rows, name):
    expected = {
        **dict.fromkeys(HIDDEN, ("Muon", "")),
        **dict.fromkeys(BY_ROW, (name, "row")),
        **dict.fromkeys(BY_ENTRY, (name, "entry")),
    }
    assert owners(muon_with_rows(Network(), rows=rows)) == expected


@pytest.mark.parametrize(
    ("rows", "by_row", "by_entry"), [("momentum", RowMomentum, Adam), ("adagrad", RowAdaGrad, Adagrad)]
)
def test_the_steps_are_those_of_muon_of_rows_and_of_adam_or_adagrad(rows, by_row, by_entry):
    model, twin = Network(), Network()
    moved = step(model, [muon_with_rows(model, lr=0.02, rows_lr=0.01, rows=rows, eps=1e-9)])
    named = dict(twin.named_parameters())
    expected = step(
        twin,
        [
            Muon([named[name] for name in sorted(HIDDEN)], lr=0.02, weight_decay=0.0),
            by_row([named[name] for name in sorted(BY_ROW)], lr=0.01, reduction="mean", eps=1e-9),
            by_entry([named[name] for name in sorted(BY_ENTRY)], lr=0.01, eps=1e-9),
        ],
    )
    for name in HIDDEN | BY_ROW:
        assert_bitwise([moved[name]], [expected[name]])
    assert_same([moved[name] for name in BY_ENTRY], [expected[name] for name in BY_ENTRY], rtol=2e-6, atol=1e-7)


def test_weight_decay_is_decoupled_and_leaves_vectors_alone():
    model = Network()
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    optimizer = muon_with_rows(model, lr=0.5, rows_lr=0.25, weight_decay=0.1)
    after = step(model, [optimizer], steps=1, scale=0.0)
    factors = {**dict.fromkeys(HIDDEN, 0.95), **dict.fromkeys(BY_ROW | {"conv.weight"}, 0.975)}
    for name, start in before.items():
        torch.testing.assert_close(after[name].detach(), factors.get(name, 1.0) * start)


def test_options_reach_the_optimizer_that_they_are_for():
    optimizer = muon_with_rows(
        Network(), weight_decay=0.1, muon={"momentum": 0.9, "weight_decay": 0.2}, betas=(0.8, 0.9), reduction="sum"
    )
    muon, *rows = optimizer.param_groups
    assert (muon["momentum"], muon["weight_decay"]) == (0.9, 0.2)
    assert all((group["betas"], group["reduction"]) == ((0.8, 0.9), "sum") for group in rows)


def test_the_learning_rates_that_did_well_are_the_defaults():
    for rows, lr in (("momentum", 0.03), ("adagrad", 0.3)):
        muon, rest = muon_with_rows(Network(), rows=rows).optimizers
        assert {group["lr"] for group in muon.param_groups} == {0.01}
        assert {group["lr"] for group in rest.param_groups} == {lr}


def test_lean_takes_tensors_that_muon_does_not_take_by_row():
    assert owners(muon_with_rows(Network(), rules="lean"))["conv.weight"] == ("MatrixMomentum", "row")
    assert owners(muon_with_rows(Network(), rules="lean"))["up.weight"] == ("Muon", "")


def test_a_rule_of_ones_own_takes_a_matrix_from_muon():
    found = owners(muon_with_rows(Network(), rules={"up.*": "column"}))
    assert found["up.weight"] == ("MatrixMomentum", "column")
    assert found["down.weight"] == ("Muon", "")


def test_one_geometry_for_all_leaves_nothing_to_muon():
    found = owners(muon_with_rows(Network(), rules=Row()))
    assert set(found.values()) == {("MatrixMomentum", "row")}


def test_tied_weights_are_a_table_and_stepped_once():
    found = owners(muon_with_rows(Network(tied=True)))
    assert found["tokens.weight"] == ("MatrixMomentum", "row")
    assert "lm_head.weight" not in found


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (nn.Embedding(5, 2), [MatrixAdaGrad]),
        (nn.ModuleDict({"body": nn.Sequential(nn.Linear(3, 3, bias=False))}), [Muon]),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), [Muon, MatrixAdaGrad]),
    ],
)
def test_a_half_that_is_empty_has_no_optimizer(model, parts):
    assert [type(part) for part in muon_with_rows(model, rows="adagrad").optimizers] == parts


def test_the_table_says_which_optimizer_has_a_parameter_and_why(capsys):
    muon_with_rows(nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 8), nn.Linear(8, 3)), explain=True)
    assert capsys.readouterr().out.splitlines() == [
        "parameter  shape    optimizer       geometry  scales  reason",
        "0.weight   100 × 8  MatrixMomentum  row          100  a table: each row is an item",
        "1.weight   8 × 8    Muon            –              0  a hidden matrix",
        "1.bias     8        MatrixMomentum  entry          8  a vector: it has no rows",
        "2.weight   3 × 8    MatrixMomentum  row            3  the last linear layer, taken for the output head",
        "2.bias     3        MatrixMomentum  entry          3  a vector: it has no rows",
        "114 scales for 899 parameters",
        "state, in numbers: Muon 64 (256 B) + MatrixMomentum 949 (3.8 kB) = 1,013 (4.05 kB); AdamW 1,798 (7.19 kB)",
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ["momentum", "adagrad"])
def test_the_table_says_what_is_kept(rows, dtype, capsys):
    optimizer = muon_with_rows(Network().to(dtype), rows=rows, explain=True)
    optimizer.init_state()
    kept = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    numbers, nbytes = sum(value.numel() for value in kept), sum(value.nbytes for value in kept)
    amount = f"{nbytes} B" if nbytes < 1000 else f"{nbytes / 1000:.3g} kB"
    assert f" = {numbers:,} ({amount}); AdamW" in capsys.readouterr().out.splitlines()[-1]


def test_where_all_is_muons_the_table_has_no_sum(capsys):
    muon_with_rows(nn.ModuleDict({"body": nn.Sequential(nn.Linear(3, 3, bias=False))}), explain=True)
    assert capsys.readouterr().out.splitlines()[-1] == "state, in numbers: Muon 9 (36 B); AdamW 18 (72 B)"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rows": "adam"}, ValueError, "rows must be 'momentum' or 'adagrad', got 'adam'"),
        ({"betta": 1}, TypeError, "muon_with_rows got an unknown option 'betta'"),
        ({"rows": "adagrad", "betas": (0.9, 0.99)}, TypeError, "it is an option of MatrixMomentum"),
        ({"row_lr": 0.1}, TypeError, "did you mean 'rows_lr'"),
        ({"muon": {"lr": 0.1}}, TypeError, "muon has no 'lr': Muon's learning rate is the lr of muon_with_rows"),
        ({"muon": {"nestorov": True}}, TypeError, "did you mean 'nesterov'"),
        ({"rules": {"*": "row"}, "muon": {"momentum": 0.5}}, ValueError, "none is left to Muon"),
        ({"rows_lr": -1.0}, ValueError, "rows_lr must be a finite number, at least 0, .* got -1.0"),
        ({"rows_lr": "x"}, TypeError, "rows_lr must be a finite number, at least 0, .* got 'x'"),
        ({"lr": "x"}, TypeError, "^lr must be a finite number, at least 0, .* got 'x'"),
        ({"lr": float("nan")}, ValueError, "^lr must be a finite number, at least 0, .* got nan"),
        ({"lr": torch.ones(2)}, ValueError, "^lr must be .* a tensor with one such element, got tensor"),
        ({"weight_decay": "x"}, TypeError, "^weight_decay must be a finite number, at least 0, got 'x'"),
        ({"muon": 3}, TypeError, "muon must be a mapping of options of torch.optim.Muon, .* got 3"),
        ({"muon": {"momentum": "x"}}, TypeError, "muon's momentum must be a finite number, at least 0, got 'x'"),
        ({"muon": {"weight_decay": -1}}, ValueError, "muon's weight_decay must be a finite number, at least 0, got -1"),
        ({"muon": {"nesterov": 1}}, TypeError, "muon's nesterov must be True or False, got 1"),
        ({"muon": {"ns_steps": 2.5}}, TypeError, "muon's ns_steps must be an int from 0 to 99, got 2.5"),
        ({"muon": {"ns_coefficients": 3}}, TypeError, "muon's ns_coefficients must be three numbers, got 3"),
        ({"muon": {"adjust_lr_fn": "rms"}}, ValueError, "muon's adjust_lr_fn must be 'original', .* got 'rms'"),
    ],
)
def test_wrong_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        muon_with_rows(Network(), **options)


def test_a_model_without_parameters_and_what_is_no_model():
    with pytest.raises(ValueError, match="no parameters"):
        muon_with_rows(nn.ReLU())
    with pytest.raises(TypeError, match="model must be a module"):
        muon_with_rows(Network().parameters())


def test_row_adagrad_has_one_number_a_row_where_adamw_has_two_an_entry():
    model = Network()
    optimizer = muon_with_rows(model, rows="adagrad")
    optimizer.init_state()
    assert optimizer.state[model.tokens.weight]["sum"].numel() == 20
    assert MatrixMomentum.AVERAGE not in optimizer.state[model.tokens.weight]
    assert optimizer.state[model.up.weight]["momentum_buffer"].shape == (6, 4)

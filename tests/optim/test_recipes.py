"""One optimizer for a whole model: Muon's steps, factored scales without an average, and Adam's steps, by kind."""

import copy
import functools
import io
import re

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from matrix_adagrad import Factored, MatrixMomentum, Row, Spectral, SteepestDescent, matrix_optimizer, state_bytes
from matrix_adagrad.checkpoints import Checkpoints
from matrix_adagrad.text import size
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


def test_the_table_says_where_a_parameter_goes_and_what_is_kept_there_and_by_adamw(capsys):
    body = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
    model = nn.ModuleDict({"words": nn.Embedding(100, 8), "h": body, "head": nn.Linear(8, 3, bias=False)})
    matrix_optimizer(model, explain=True)
    assert capsys.readouterr().out.splitlines() == [
        "parameter           shape    optimizer             geometry      state    AdamW  reason",
        "words.weight        100 × 8  MatrixMomentum, β₁=0  Factored()    440 B   6.4 kB  a table: each row is an item",
        "h.{0…2}.weight × 3  8 × 8    SteepestDescent       Spectral()    780 B  1.55 kB  a hidden matrix",
        "h.{0…2}.bias × 3    8        MatrixMomentum        entry         204 B    204 B  a vector: it has no rows",
        "head.weight         3 × 8    MatrixMomentum, β₁=0  Factored()     52 B    196 B  an output head, by its name",
        "total               1,040                                      1.48 kB  8.35 kB  18% of AdamW's state",
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"rules": "lean"}, {"betas": (0.0, 0.9), "momentum": 0.0}], ids=str)
def test_the_total_of_the_table_is_what_is_kept(options, dtype, capsys):
    model = Network(tied=False).to(dtype)
    model.norm.requires_grad_(False)
    optimizer = matrix_optimizer(model, explain=True, **options)
    adamw = AdamW(model.parameters())
    for param in model.parameters():
        param.grad = torch.ones_like(param) if param.requires_grad else None
    optimizer.step()
    adamw.step()
    *_, total = capsys.readouterr().out.splitlines()
    kept, compared = state_bytes(optimizer), state_bytes(adamw)
    assert re.search(rf"  {size(kept)} +{size(compared)}  {kept / compared:.0%} of AdamW's state$", total)


def test_a_model_without_memory_is_explained_too(capsys):
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(1000)))
    matrix_optimizer(model, explain=True)
    assert "{0…998}.weight × 999  4096 × 4096     SteepestDescent " in capsys.readouterr().out


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


def test_one_geometry_for_all_leaves_nothing_to_steepest_descent():
    found = owners(matrix_optimizer(Network(), rules=Row()))
    assert {owner[:2] for owner in found.values()} == {(MatrixMomentum, Row())}


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (nn.Embedding(5, 2), [MatrixMomentum]),
        (nn.LayerNorm(5), [MatrixMomentum]),
        (nn.ModuleDict({"body": nn.Sequential(nn.Linear(3, 3, bias=False))}), [SteepestDescent]),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), [SteepestDescent, MatrixMomentum]),
    ],
)
def test_an_optimizer_without_parameters_is_left_out(model, parts):
    assert [type(part) for part in matrix_optimizer(model).optimizers] == parts


@pytest.mark.parametrize("wrapped", [nn.DataParallel, functools.partial(torch.compile, backend="eager")])
def test_a_wrapped_model_has_the_groups_of_the_model(wrapped):
    model = Network()
    assert owners(matrix_optimizer(wrapped(model))) == owners(matrix_optimizer(model))


def test_options_reach_the_optimizer_that_they_are_for():
    optimizer = matrix_optimizer(Network(), momentum=0.8, betas=(0.7, 0.9), maximize=True, weight_decay=0.1)
    hidden, *rest = optimizer.param_groups
    assert (hidden["momentum"], hidden["nesterov"], hidden["scale"]) == (0.8, True, "rms")
    assert {group["name"]: group["betas"] for group in rest} == {
        "table": (0.0, 0.9),
        "vector": (0.7, 0.9),
        "matrix": (0.7, 0.9),  # the convolution
    }
    assert all(group["maximize"] and group["decoupled_weight_decay"] for group in optimizer.param_groups)


def test_a_narrow_average_halves_the_state_of_hidden_matrices_and_takes_two_bytes_off_each_entry_of_vectors(capsys):
    model = Network()
    wide, narrow = (matrix_optimizer(model, momentum_dtype=dtype, explain=True) for dtype in (None, torch.bfloat16))
    total = capsys.readouterr().out.splitlines()[-1]
    for optimizer in (wide, narrow):
        optimizer.init_state()
    hidden, vectors = (
        sum(param.numel() for name, param in model.named_parameters() if name in names)
        for names in (HIDDEN, {*VECTORS, "conv.weight"})
    )
    by_part = [[state_bytes(part) for part in optimizer.optimizers] for optimizer in (wide, narrow)]
    saved = [before - after for before, after in zip(*by_part, strict=True)]
    assert saved == [2 * hidden, 2 * vectors]
    assert 2 * by_part[1][0] == by_part[0][0] + 4 * len(HIDDEN)  # and the counts of steps
    assert f" {size(state_bytes(narrow))} " in total


def test_each_kind_may_have_a_rate_of_its_own():
    rates = {"lr": 0.1, "tables_lr": 0.2, "heads_lr": 0.3, "vectors_lr": 0.4}
    groups = matrix_optimizer(Network(tied=False), **rates).param_groups
    found = {(group["name"], str(group["geometry"])[:8]): group["lr"] for group in groups}
    assert found == {
        ("matrix", "spectral"): 0.1,
        ("table", "factored"): 0.2,
        ("head", "factored"): 0.3,
        ("vector", "entry"): 0.4,
        ("matrix", "entry"): 0.4,  # the convolution
    }


def test_heads_have_the_rate_of_tables_unless_told_otherwise():
    groups = matrix_optimizer(Network(tied=False), tables_lr=0.2).param_groups
    assert {group["lr"] for group in groups if group["name"] in ("table", "head")} == {0.2}


# ------------------------------------------------------------------------------------------------ where it is used


SCHEDULES = {
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda t: 1 / (t + 1)),
    "OneCycleLR": lambda optimizer: OneCycleLR(
        optimizer, [float(group["lr"]) for group in optimizer.param_groups], total_steps=10, cycle_momentum=False
    ),
    "CosineAnnealingLR": lambda optimizer: CosineAnnealingLR(optimizer, 10),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["number", "tensor"])
def test_a_schedule_keeps_the_ratios_of_the_rates(lr, name):
    optimizer = matrix_optimizer(Network(tied=False), lr=lr, heads_lr=0.03)
    before = [float(group["lr"]) for group in optimizer.param_groups]
    schedule = SCHEDULES[name](optimizer)
    for _ in range(4):
        optimizer.step()
        schedule.step()
    after = [float(group["lr"]) for group in optimizer.param_groups]
    factors = [mine / start for mine, start in zip(after, before, strict=True)]
    assert factors == pytest.approx([factors[0]] * len(factors))
    assert factors[0] != pytest.approx(1.0)


def test_a_scaler_unscales_everything_and_skips_the_whole_step():
    model, twin = Network(), Network()
    optimizer, plain = matrix_optimizer(model), matrix_optimizer(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))  # of a loss: it makes its scale with the first one
    for t, spoiled in enumerate((False, True, False)):
        scale = scaler.get_scale()
        for mine, theirs, grad in zip(
            model.parameters(), twin.parameters(), make_grads(list(model.parameters()), t), strict=True
        ):
            mine.grad, theirs.grad = grad * scale, grad
        if spoiled:
            model.norm.bias.grad[0] = float("inf")
        else:
            plain.step()
        scaler.step(optimizer)
        scaler.update()
    assert_bitwise(list(model.parameters()), list(twin.parameters()))


def test_hooks_run_once_a_step():
    model, seen = Network(), []
    optimizer = matrix_optimizer(model)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    step(model, [optimizer], steps=1)
    assert seen == ["before", "after"]


def test_torchs_checkpoints_and_ours_hold_all_of_it(tmp_path):
    model = Network()
    optimizer = matrix_optimizer(model)
    step(model, [optimizer])
    Checkpoints(tmp_path, model, optimizer).save(3)
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    step(model, [optimizer], first=3)
    for resume in (
        lambda model, optimizer: Checkpoints(tmp_path, model, optimizer).resume(),
        lambda model, optimizer: (model.load_state_dict(weights), set_optimizer_state_dict(model, optimizer, saved)),
    ):
        other = Network()
        resumed = matrix_optimizer(other, lr=1.0)
        resume(other, resumed)
        step(other, [resumed], first=3)
        assert_bitwise(list(other.parameters()), list(model.parameters()))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"betta": 1}, TypeError, "matrix_optimizer got an unknown option 'betta'"),
        ({"table_lr": 0.1}, TypeError, "did you mean 'tables_lr'"),
        ({"head_lr": 0.1}, TypeError, "did you mean 'heads_lr'"),
        ({"rows": "adagrad"}, TypeError, "unknown option 'rows': it has "),
        ({"lr": float("nan")}, ValueError, "^lr must be a finite number, at least 0, .* got nan"),
        ({"lr": torch.ones(2)}, ValueError, "^lr must be .* a tensor with one such element, got tensor"),
        ({"heads_lr": -1.0}, ValueError, "heads_lr must be a finite number, at least 0, .* got -1.0"),
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

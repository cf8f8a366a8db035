"""What each parameter of a zoo of models is taken for, and what follows from it."""

import math

import pytest
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrizations, parametrize

from matrix_adagrad import (
    Batched,
    Entry,
    Factored,
    MatrixMomentum,
    Row,
    Spectral,
    SteepestDescent,
    geometry_groups,
    matrix_optimizer,
    state_bytes,
)
from matrix_adagrad.geometry import Column
from matrix_adagrad.text import size


class Named(nn.Module):
    """Modules and parameters by name, in this order."""

    def __init__(self, **members):
        super().__init__()
        for name, member in members.items():
            setattr(self, name, nn.Parameter(torch.zeros(member)) if isinstance(member, tuple) else member)


def gpt(tied):
    head = nn.Linear(8, 50, bias=False)
    blocks = [Named(norm=nn.LayerNorm(8), attention=nn.MultiheadAttention(8, 2), up=nn.Linear(8, 16)) for _ in range(2)]
    model = Named(tokens=nn.Embedding(50, 8), places=(1, 12, 8), blocks=nn.ModuleList(blocks), lm_head=head)
    if tied:
        model.lm_head.weight = model.tokens.weight
    return model


GPT_MATRICES = {
    "places",
    *(f"blocks.{i}.{name}" for i in (0, 1) for name in ("attention.in_proj_weight", "attention.out_proj.weight")),
    *(f"blocks.{i}.up.weight" for i in (0, 1)),
}


def experts(**more):
    """Experts as parameters of three dimensions, with a bias for each."""
    return Named(router=nn.Linear(8, 4), w1=(4, 8, 16), b1=(4, 16), w2=(4, 16, 8), b2=(4, 8), **more)


def lora(base, name="base_layer"):
    """As PEFT puts it around a layer: the frozen layer, and two factors."""
    base.requires_grad_(False)
    a = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False)})
    b = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False)})
    return Named(**{name: base, "lora_A": a, "lora_B": b})


class LowRank(nn.Module):
    """A weight of shape (m, n) as the product of two factors."""

    def forward(self, left, right):
        return left @ right

    def right_inverse(self, weight):
        return weight[:, :2].clone(), weight[:2].clone()


def low_rank(layer):
    parametrize.register_parametrization(layer, "weight", LowRank(), unsafe=True)
    return layer


def linear(*sizes):
    return nn.Linear(*sizes, bias=False)


# Of each model: its tables, heads, hidden matrices, and what has more than one dimension and is a vector all the same.
ZOO = {
    "a GPT": (lambda: gpt(False), {"tokens.weight"}, {"lm_head.weight"}, GPT_MATRICES, set()),
    "a GPT with a tied head": (lambda: gpt(True), {"tokens.weight"}, set(), GPT_MATRICES, set()),
    "nn.Transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
        set(),
        set(),
        {
            *(f"{side}.layers.0.linear{i}.weight" for side in ("encoder", "decoder") for i in (1, 2)),
            *(f"{side}.layers.0.self_attn.in_proj_weight" for side in ("encoder", "decoder")),
            *(f"{side}.layers.0.self_attn.out_proj.weight" for side in ("encoder", "decoder")),
            *(f"decoder.layers.0.multihead_attn.{name}" for name in ("in_proj_weight", "out_proj.weight")),
        },
        set(),
    ),
    "attention with biases of keys and values": (
        lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
        *(set(), set(), {"in_proj_weight", "out_proj.weight"}, {"bias_k", "bias_v"}),
    ),
    "experts and their stacked biases": (
        lambda: Named(tokens=nn.Embedding(50, 8), block=experts(), head=linear(8, 50)),
        *(
            {"tokens.weight"},
            {"head.weight"},
            {"block.router.weight", "block.w1", "block.w2"},
            {"block.b1", "block.b2"},
        ),
    ),
    "parametrised experts": (
        lambda: parametrizations.weight_norm(Named(w=(4, 8, 16), b=(4, 16)), "w"),
        *(set(), set(), {"parametrizations.w.original1"}, {"parametrizations.w.original0", "b"}),
    ),
    "biases with a dimension to spare": (
        lambda: Named(layer=Named(weight=(5, 8, 16), bias=(5, 1, 16)), gains=Named(g=(6, 1, 1))),
        *(set(), set(), {"layer.weight"}, {"layer.bias", "gains.g"}),
    ),
    "positions of patches and of windows": (
        lambda: Named(
            patches=nn.Conv2d(3, 8, 4),
            pos_embed=(1, 17, 8),
            wpe=(9, 8),
            layer=Named(bias_table=(25, 2), pos_emb=(9, 8)),
            out=linear(8, 5),
        ),
        *({"pos_embed", "wpe", "layer.bias_table", "layer.pos_emb"}, {"out.weight"}, {"patches.weight"}, set()),
    ),
    "a table of vectors that is next to no batch": (lambda: Named(memory=(4, 16)), set(), set(), {"memory"}, set()),
    "a convolutional net": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv1d(6, 6, 3), nn.Conv2d(6, 1, 3), nn.Flatten(), linear(4, 10)),
        *(set(), {"4.weight"}, {"0.weight", "1.weight"}, {"2.weight"}),
    ),
    "single rows and columns": (
        lambda: Named(up=linear(1, 32), middle=linear(32, 32), down=linear(32, 1), out=linear(32, 5)),
        *(set(), {"out.weight"}, {"middle.weight"}, {"up.weight", "down.weight"}),
    ),
    "a table of numbers": (lambda: nn.Embedding(20, 1), {"weight"}, set(), set(), set()),
    "weight norm": (
        lambda: Named(
            table=parametrizations.weight_norm(nn.Embedding(9, 4)),
            body=parametrizations.weight_norm(linear(4, 4)),
            conv=parametrizations.weight_norm(nn.Conv1d(4, 4, 3)),
            head=parametrizations.weight_norm(linear(4, 9)),
        ),
        {"table.parametrizations.weight.original1"},
        {"head.parametrizations.weight.original1"},
        {f"{name}.parametrizations.weight.original1" for name in ("body", "conv")},
        {f"{name}.parametrizations.weight.original0" for name in ("table", "body", "conv", "head")},
    ),
    "a parametrised last layer": (
        lambda: nn.Sequential(linear(4, 4), parametrizations.spectral_norm(linear(4, 9))),
        *(set(), {"1.parametrizations.weight.original"}, {"0.weight"}, set()),
    ),
    "an orthogonal last layer": (
        lambda: nn.Sequential(linear(4, 4), parametrizations.orthogonal(linear(4, 9))),
        *(set(), {"1.parametrizations.weight.original"}, {"0.weight"}, set()),
    ),
    "a last layer in two factors": (
        lambda: nn.Sequential(linear(4, 4), low_rank(linear(4, 9))),
        set(),
        {"1.parametrizations.weight.original0"},
        {"0.weight", "1.parametrizations.weight.original1"},
        set(),
    ),
    "LoRA around every layer": (
        lambda: Named(body=lora(linear(8, 8)), head=lora(linear(8, 50))),
        set(),
        {"head.base_layer.weight", "head.lora_B.default.weight"},
        {f"body.{name}.weight" for name in ("base_layer", "lora_A.default", "lora_B.default")}
        | {"head.lora_A.default.weight"},
        set(),
    ),
    "LoRA around a last layer without a name": (
        lambda: Named(body=linear(8, 8), out=lora(linear(8, 50), "linear")),
        set(),
        {"out.linear.weight", "out.lora_B.default.weight"},
        {"body.weight", "out.lora_A.default.weight"},
        set(),
    ),
    "LoRA of a head as bare parameters": (
        lambda: Named(head=Named(base_layer=linear(8, 50), lora_A=(2, 8), lora_B=(50, 2)), body=linear(8, 8)),
        *(set(), {"head.base_layer.weight", "head.lora_B"}, {"head.lora_A", "body.weight"}, set()),
    ),
    "LoRA of a head that has the weight itself": (
        lambda: Named(head=Named(weight=(50, 8), lora_a=linear(8, 2), lora_b=linear(2, 50)), body=linear(8, 8)),
        *(set(), {"head.weight", "head.lora_b.weight"}, {"head.lora_a.weight", "body.weight"}, set()),
    ),
    "LoRA of a table": (
        lambda: Named(tokens=Named(base_layer=nn.Embedding(50, 8), lora_A=(2, 50), lora_B=(8, 2))),
        *({"tokens.base_layer.weight", "tokens.lora_A"}, set(), {"tokens.lora_B"}, set()),
    ),
    "a head before the body": (
        lambda: Named(head=linear(8, 50), emb=nn.Embedding(50, 8), body=linear(8, 8)),
        *({"emb.weight"}, {"head.weight"}, {"body.weight"}, set()),
    ),
    "a head before the blocks, with the shape of the table next to it": (
        lambda: Named(
            tokens=nn.Embedding(50, 8), out=linear(8, 50), blocks=nn.Sequential(linear(8, 16), linear(16, 8))
        ),
        *({"tokens.weight"}, {"out.weight"}, {"blocks.0.weight", "blocks.1.weight"}, set()),
    ),
    "LoRA around such a head": (
        lambda: Named(tokens=nn.Embedding(50, 8), out=lora(linear(8, 50)), blocks=nn.Sequential(linear(8, 8))),
        {"tokens.weight"},
        {"out.base_layer.weight", "out.lora_B.default.weight"},
        {"out.lora_A.default.weight", "blocks.0.weight"},
        set(),
    ),
    "a block that is as wide as there are positions": (
        lambda: Named(places=nn.Embedding(32, 8), blocks=nn.Sequential(linear(8, 32), linear(32, 8))),
        *({"places.weight"}, set(), {"blocks.0.weight", "blocks.1.weight"}, set()),
    ),
    "a layer that narrows to as many outputs as a table has rows": (
        lambda: Named(hours=nn.Embedding(8, 16), join=linear(32, 8), blocks=nn.Sequential(linear(8, 8))),
        *({"hours.weight"}, set(), {"join.weight", "blocks.0.weight"}, set()),
    ),
    "a head of one output before the body": (
        lambda: Named(head=linear(8, 1), body=linear(8, 8)),
        *(set(), set(), {"body.weight"}, {"head.weight"}),
    ),
    "a score of attention is not the model's head": (
        lambda: Named(attention=Named(score=linear(8, 1)), body=linear(8, 8), out=linear(8, 5)),
        *(set(), {"out.weight"}, {"body.weight"}, {"attention.score.weight"}),
    ),
    "a tied head before the body": (
        lambda: (lambda table: Named(lm_head=table_as_linear(table), tokens=table, body=linear(8, 8)))(
            nn.Embedding(50, 8)
        ),
        *({"lm_head.weight"}, set(), {"body.weight"}, set()),
    ),
    "a head deep inside": (
        lambda: Named(model=Named(inner=Named(lm_head=linear(8, 50))), after=linear(8, 8)),
        *(set(), {"model.inner.lm_head.weight"}, {"after.weight"}, set()),
    ),
    "a head of several layers": (
        lambda: Named(
            body=linear(8, 8), classifier=nn.Sequential(linear(8, 8), nn.ReLU(), linear(8, 5)), last=linear(8, 8)
        ),
        *(set(), {"classifier.2.weight"}, {"body.weight", "classifier.0.weight", "last.weight"}, set()),
    ),
    "two heads": (
        lambda: Named(classifier=linear(8, 5), body=linear(8, 8), score=linear(8, 7)),
        *(set(), {"classifier.weight", "score.weight"}, {"body.weight"}, set()),
    ),
    "no head": (lambda: Named(body=nn.Sequential(linear(8, 8))), set(), set(), {"body.0.weight"}, set()),
    "recurrence": (
        lambda: Named(tokens=nn.Embedding(50, 8), rnn=nn.LSTM(8, 8), out=linear(8, 50)),
        *({"tokens.weight"}, {"out.weight"}, {"rnn.weight_ih_l0", "rnn.weight_hh_l0"}, set()),
    ),
    "a bilinear form for each output": (lambda: nn.Bilinear(4, 5, 6), set(), set(), {"weight"}, set()),
}


def table_as_linear(table):
    layer = linear(*reversed(table.weight.shape))
    layer.weight = table.weight
    return layer


def choices(groups):
    return {name: (group["name"], group["geometry"], param) for group in groups for name, param in group["params"]}


@pytest.fixture(params=ZOO, ids=lambda name: name.replace(" ", "-"))
def specimen(request):
    make, tables, heads, matrices, vectors = ZOO[request.param]
    kinds = {"table": tables, "head": heads, "matrix": matrices, "vector": vectors}
    return make(), {name: kind for kind, names in kinds.items() for name in names}


def test_what_each_parameter_is(specimen):
    model, expected = specimen
    found = choices(geometry_groups(model))
    assert {name: kind for name, (kind, _, param) in found.items() if param.dim() > 1} == expected
    assert {kind for kind, _, param in found.values() if param.dim() < 2} <= {"vector"}


def test_lean_has_a_scale_for_each_row_of_each_matrix(specimen):
    model, expected = specimen
    for name, (_, geometry, param) in choices(geometry_groups(model, "lean")).items():
        scales = geometry.scales(param.shape)
        if expected.get(name, "vector") == "vector":
            assert scales == param.numel()
        elif name == "tokens.lora_A":  # its columns are the items
            assert geometry == Column()
        elif "conv" in name or param.dim() == 4 or isinstance(model, nn.Sequential):
            assert scales == param.shape[0]
        else:
            assert scales == math.prod(param.shape[:-1])


def test_hidden_matrices_are_spectral_tables_and_heads_factored_without_average_and_the_rest_is_adam(specimen):
    model, expected = specimen
    optimizer = matrix_optimizer(model, weight_decay=0.1)
    convolutions = {param for module in model.modules() if isinstance(module, _ConvNd) for param in module.parameters()}
    for part in optimizer.optimizers:
        for group in part.param_groups:
            for name, param in zip(group["param_names"], group["params"], strict=True):
                kind, geometry = expected.get(name, "vector"), group["geometry"]
                is_spectral = kind == "matrix" and param not in convolutions
                assert isinstance(part, SteepestDescent) == (geometry == Spectral()) == is_spectral
                assert (geometry == Factored()) == (kind in ("table", "head"))
                assert is_spectral or (group["betas"][0] == 0) == (kind in ("table", "head"))
                assert group["weight_decay"] == (0.0 if kind == "vector" else 0.1)


def test_all_take_a_step_and_keep_what_the_table_says(specimen, capsys):
    model, _ = specimen
    optimizer = matrix_optimizer(model, explain=True)
    total = capsys.readouterr().out.splitlines()[-1]
    before = {param: param.detach().clone() for param in model.parameters() if param.requires_grad}
    for param in before:
        param.grad = torch.randn(param.shape)
    optimizer.step()
    assert f" {size(state_bytes(optimizer))} " in total
    assert all(param.isfinite().all() and not torch.equal(param, start) for param, start in before.items())


def test_experts_are_scaled_row_by_row_of_each_and_balanced_by_entry():
    model = Named(block=experts())
    by = {rules: choices(geometry_groups(model, rules)) for rules in ("balanced", "lean")}
    assert by["lean"]["block.w1"][1] == Batched(Row())
    assert by["lean"]["block.b1"][1] == by["balanced"]["block.w1"][1] == Entry()


def test_a_rule_may_have_experts_by_entry():
    model = Named(block=experts())
    _, rest = matrix_optimizer(model, rules={"*.w?": "entry"}).optimizers
    assert isinstance(rest, MatrixMomentum)
    assert {str(group["geometry"]) for group in rest.param_groups} == {"entry"}


def test_the_table_says_why_a_layer_next_to_a_table_is_a_head(capsys):
    model = Named(tokens=nn.Embedding(5000, 8), out=linear(8, 5000), blocks=nn.Sequential(linear(8, 8)))
    matrix_optimizer(model, explain=True)
    assert "an output head: an output for each of the 5,000 rows of a table next to it" in capsys.readouterr().out


def test_the_table_says_what_experts_and_biases_are(capsys):
    geometry_groups(Named(block=experts()), "lean", explain=True)
    printed = capsys.readouterr().out
    assert "4 × 8 × 16  Batched(Row())      32  a batch of 4 hidden matrices" in printed
    assert "stacked biases" in printed

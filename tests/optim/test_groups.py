"""Groups by kind of layer, each choice with its reason."""

import pytest
import torch
from torch import nn

from matrix_adagrad import (
    Blocks,
    Entry,
    MatrixAdaGrad,
    MatrixMomentum,
    Row,
    Spectral,
    SteepestDescent,
    geometry_groups,
    state_bytes,
)
from matrix_adagrad.geometry import as_geometry
from matrix_adagrad.text import size


def linear(*sizes):
    return nn.Linear(*sizes, bias=False)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)


class Model(nn.Module):
    """A language model as people write them, with its head tied to its table or not."""

    def __init__(self, tied=False, width=8, vocabulary=50):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.tokens.weight


def geometry_by_name(groups):
    return {name: group["geometry"] for group in groups for name, _ in group["params"]}


def kind_by_name(groups):
    return {name: group["name"] for group in groups for name, _ in group["params"]}


def test_balanced_takes_tables_and_heads_by_row_and_the_rest_by_entry():
    groups = geometry_groups(Model())
    by_row = {name for name, geometry in geometry_by_name(groups).items() if geometry == Row()}
    assert by_row == {"tokens.weight", "lm_head.weight"}
    kinds = kind_by_name(groups)
    assert kinds["tokens.weight"] == "table"
    assert kinds["lm_head.weight"] == "head"
    assert kinds["blocks.0.qkv.weight"] == "matrix"
    assert kinds["blocks.0.norm.weight"] == kinds["cls"] == "vector"


def test_lean_takes_every_matrix_by_row_and_vectors_by_entry():
    geometries = geometry_by_name(geometry_groups(Model(), "lean"))
    assert geometries["blocks.1.proj.weight"] == geometries["tokens.weight"] == Row()
    assert geometries["blocks.1.proj.bias"] == geometries["cls"] == Entry()


@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_in_exactly_one_group_and_tied_ones_are_counted_once(tied):
    model = Model(tied)
    params = [param for group in geometry_groups(model) for _, param in group["params"]]
    assert {id(p) for p in params} == {id(p) for p in model.parameters()}
    assert len(params) == len(list(model.parameters()))


def test_a_tied_head_is_a_table_and_says_so(capsys):
    groups = geometry_groups(Model(tied=True), explain=True)
    assert geometry_by_name(groups)["tokens.weight"] == Row()
    table = capsys.readouterr().out.splitlines()
    row = next(line for line in table if "tokens.weight" in line)
    assert row.endswith("each row is an item (tied: lm_head.weight)")
    assert sum("lm_head" in line for line in table) == 1


def test_explain_prints_parameter_shape_geometry_scales_and_reason(capsys):
    geometry_groups(nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 3)), explain=True)
    assert capsys.readouterr().out.splitlines() == [
        "parameter  shape    geometry  scales  reason",
        "0.weight   100 × 8  row          100  a table: each row is an item",
        "1.weight   3 × 8    row            3  the last linear layer, taken for the output head",
        "1.bias     3        entry          3  a vector: it has no rows",
        "total      827                   106",
        "state: MatrixAdaGrad 436 B or MatrixMomentum 3.74 kB; AdamW 6.63 kB",
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum, torch.optim.AdamW], ids=lambda cls: cls.__name__)
def test_explain_says_what_an_optimizer_keeps(cls, dtype, capsys):
    model = Model().to(dtype)
    optimizer = cls(geometry_groups(model, explain=True))
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert f"{cls.__name__} {size(state_bytes(optimizer))}" in capsys.readouterr().out.splitlines()[-1]


def test_explain_folds_layers_that_differ_in_their_number_alone(capsys):
    class Mixture(nn.Module):
        """Every other layer has experts, and the last layer is frozen."""

        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.ModuleDict({"up": linear(4, 6)}) for _ in range(12)])
            for layer in self.layers[::2]:
                layer["experts"] = nn.ModuleList([linear(6, 6) for _ in range(3)])
            self.layers[11].requires_grad_(False)

    geometry_groups(Mixture(), explain=True)
    assert capsys.readouterr().out.splitlines() == [
        "parameter                                    shape  geometry  scales  reason",
        "layers.{0…10}.up.weight × 11                 6 × 4  entry        264  a hidden matrix",
        "layers.{0,2,…,10}.experts.{0…2}.weight × 18  6 × 6  entry        648  a hidden matrix",
        "layers.11.up.weight                          6 × 4  entry          0  a hidden matrix (frozen)",
        "total                                        912                 912",
        "state: MatrixAdaGrad 3.76 kB or MatrixMomentum 7.41 kB; AdamW 7.41 kB",
    ]


def test_explain_names_the_one_family_that_takes_the_groups(capsys):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = SteepestDescent(geometry_groups(model, {"0.weight": Spectral()}, explain=True))
    optimizer.init_state()
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed.startswith(f"state: SteepestDescent {state_bytes(optimizer)} B; AdamW ")


def test_a_layer_that_is_used_many_times_names_the_other_places_in_short(capsys):
    geometry_groups(nn.ModuleList([linear(4, 4)] * 6), explain=True)
    assert "(tied: {1…5}.weight)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "heads"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), {"2.weight"}),
        (nn.Linear(4, 3), {"weight"}),
        (nn.ModuleDict({"body": Block(4), "classifier": nn.Linear(4, 3)}), {"classifier.weight"}),
        (nn.ModuleDict({"head": nn.Linear(4, 3), "body": nn.Sequential(nn.Linear(4, 4))}), {"head.weight"}),
        (nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 4))}), set()),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False), set()),
        (nn.TransformerEncoderLayer(8, 2, 16), set()),
        (nn.DataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))), {"1.weight"}),
        (torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))), {"1.weight"}),
    ],
)
def test_what_counts_as_an_output_head(model, heads):
    assert {name for name, kind in kind_by_name(geometry_groups(model)).items() if kind == "head"} == heads


def test_a_model_that_knows_its_output_layer_is_believed():
    model = Model()
    model.lm_head, model.unembed = None, nn.Linear(8, 50)
    model.get_output_embeddings = lambda: model.unembed
    model.after = nn.Linear(8, 8)
    assert {name for name, kind in kind_by_name(geometry_groups(model)).items() if kind == "head"} == {"unembed.weight"}


def test_own_rules_by_name_and_by_module_type_first_match_first_and_the_rest_balanced(capsys):
    rules = {"*.qkv.weight": Blocks(rows=3), nn.Linear: "column", nn.Embedding: "lean"}
    groups = geometry_groups(Model(), rules, explain=True)
    geometries = geometry_by_name(groups)
    assert geometries["blocks.0.qkv.weight"] == Blocks(rows=3)
    assert str(geometries["blocks.0.proj.weight"]) == "column"
    assert geometries["tokens.weight"] == Row()
    assert geometries["blocks.0.norm.weight"] == Entry()
    table = capsys.readouterr().out
    assert "rule '*.qkv.weight'" in table
    assert "rule Linear" in table
    MatrixAdaGrad(groups)


@pytest.mark.parametrize("geometry", [Row(), "row", Blocks(columns=2)], ids=str)
def test_one_geometry_for_all(geometry):
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    geometries = geometry_by_name(geometry_groups(model, geometry))
    assert set(geometries.values()) == {as_geometry(geometry)}
    assert geometries == geometry_by_name(geometry_groups(model, {"*": geometry}))


@pytest.mark.parametrize("cls", [MatrixMomentum, torch.optim.AdamW])
def test_weight_decay_is_for_all_but_vectors(cls):
    groups = cls(geometry_groups(Model(), "lean", weight_decay=0.1)).param_groups
    assert {group["name"]: group["weight_decay"] for group in groups} == {
        **dict.fromkeys(("table", "head", "matrix"), 0.1),
        "vector": 0.0,
    }


def test_without_weight_decay_groups_leave_it_to_the_optimizer():
    assert all("weight_decay" not in group for group in geometry_groups(Model()))
    assert {
        group["weight_decay"] for group in MatrixMomentum(geometry_groups(Model()), weight_decay=0.2).param_groups
    } == {0.2}


@pytest.mark.parametrize(("value", "error"), [("x", TypeError), (-0.1, ValueError), (True, TypeError)])
def test_a_weight_decay_that_cannot_be(value, error):
    with pytest.raises(error, match=f"weight_decay must be a finite number, at least 0, got {value!r}"):
        geometry_groups(Model(), weight_decay=value)


@pytest.mark.parametrize(
    ("rules", "error", "words"),
    [
        ("balnced", ValueError, "got 'balnced'; or a set of rules: 'balanced', 'lean'"),
        (
            {"*.qvk.weight": "row"},
            ValueError,
            r"rules match no parameter: '\*.qvk.weight'; the model has cls, tokens.weight.* not regular expressions",
        ),
        ({nn.Conv2d: "row"}, ValueError, "rules match no parameter: .*Conv2d"),
        ({"*": 3}, TypeError, "got 3"),
        ({3: "row"}, TypeError, "a rule's key must be a name pattern or a module type, got 3"),
        (7, TypeError, r"rules must be 'balanced', 'lean', a geometry such as Row\(\), or a mapping .*, got 7"),
        (Row, TypeError, r"write Row\(\) instead of Row"),
    ],
)
def test_rules_that_cannot_be_meant(rules, error, words):
    with pytest.raises(error, match=words):
        geometry_groups(Model(), rules)


def test_parameters_instead_of_a_model():
    with pytest.raises(TypeError, match="model must be a module, got generator: pass the model, not its parameters"):
        geometry_groups(Model().parameters())


@pytest.mark.parametrize(
    ("rules", "lines"),
    [
        (
            {"0.weight": Blocks(columns=2), nn.Linear: "row"},
            ["Blocks(columns=2)", "rule '0.weight'", "rule Linear, by entry: a vector has no rows"],
        ),
        ({"*": "entry", "0.weight": "row"}, ["rule '0.weight' never applies: earlier rules match first"]),
    ],
)
def test_explain_says_geometries_as_they_are_written_and_rules_that_decide_nothing(rules, lines, capsys):
    geometry_groups(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), rules, explain=True)
    printed = capsys.readouterr().out
    assert all(line in printed for line in lines)


def test_a_rule_that_others_come_before_is_not_an_error():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    geometries = geometry_by_name(geometry_groups(model, {nn.Linear: "row", "0.weight": "column", "*": "entry"}))
    assert set(geometries.values()) == {Row()}


def test_a_rule_for_a_type_holds_for_all_that_is_inside():
    geometries = geometry_by_name(geometry_groups(Model(), {Block: "column"}))
    assert str(geometries["blocks.0.proj.weight"]) == "column"
    assert geometries["tokens.weight"] == Row()


def test_a_shared_module_answers_to_all_its_names():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"one": shared, "two": shared, "body": nn.Sequential(nn.Linear(4, 2))})
    geometries = geometry_by_name(geometry_groups(model, {"two.weight": "column"}))
    assert str(geometries["one.weight"]) == "column"


def test_frozen_parameters_are_named_and_have_no_state(capsys):
    model = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    geometry_groups(model, explain=True)
    table = capsys.readouterr().out.splitlines()
    assert table[1].endswith("(frozen)")
    assert table[-2].split() == ["total", "27", "6"]
    assert table[-1] == "state: MatrixAdaGrad 32 B or MatrixMomentum 140 B; AdamW 224 B"


def test_groups_that_cannot_be_made_name_the_parameter():
    with pytest.raises(ValueError, match=r"0.weight, of shape \(100, 8\), does not fit its geometry: .* into 3"):
        geometry_groups(nn.Sequential(nn.Embedding(100, 8)), {"*": Blocks(rows=3)}, explain=True)
    with pytest.raises(ValueError, match="0.weight has no shape yet"):
        geometry_groups(nn.Sequential(nn.LazyLinear(3)))


def test_a_single_row_is_a_vector_whatever_the_rules():
    geometries = geometry_by_name(geometry_groups(nn.Linear(40, 1), "lean"))
    assert set(geometries.values()) == {Entry()}


def test_the_groups_train_a_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(100, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = MatrixAdaGrad(geometry_groups(model), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        bags = torch.arange(20).view(5, 4)
        loss = nn.functional.cross_entropy(model(bags), torch.tensor([0, 1, 2, 0, 1]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert [group["name"] for group in optimizer.param_groups] == ["table", "matrix", "vector", "head"]

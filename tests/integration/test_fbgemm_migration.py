"""Runs move between FBGEMM's tables and ours, and go on as if they had not moved, on random rows.

FBGEMM computes PARTIAL_ROWWISE_ADAM on a GPU only. Its tables and their state are the real ones here. What its kernel
does to them, `partial_rowwise_adam` in FBGEMM's codegen/genscript/optimizers.py, is written down in `adam_there`.
"""

import os
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import embedding_bag

from matrix_adagrad import (
    ColumnAdaGrad,
    CombinedOptimizer,
    EmbeddingBags,
    Factored,
    MatrixMomentum,
    RowAdaGrad,
    RowMomentum,
    Table,
    keep_rows_current,
    step_in_backward,
)
from matrix_adagrad.domains import RowBalls
from tests.interop.runs import assert_same_parameters, options_of, parameters

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports FBGEMM: make test-integrations", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the peer's own


@pytest.fixture
def fbgemm():
    pytest.importorskip("fbgemm_gpu", reason="FBGEMM is not installed: make test-integrations")
    from matrix_adagrad.interop import fbgemm

    return fbgemm


BATCH, BAG = 6, 4
ROWS = (30, 20, 12)


class Batches:
    """Indices and upstream gradients of several orders of magnitude, the same for FBGEMM and for modules."""

    def __init__(self, features, widths, pooled=True):
        self.random, self.pooled = torch.Generator().manual_seed(0), pooled
        self.rows, self.widths = [ROWS[table] for table in features], [widths[table] for table in features]

    def next(self):
        """Indices (feature, bag, place), and what the output is multiplied with."""
        index = torch.stack([torch.randint(n, (BATCH, BAG), generator=self.random) for n in self.rows])
        shape = (BATCH, sum(self.widths)) if self.pooled else (index.numel(), self.widths[0])
        scale = torch.logspace(-3, 3, shape[0])[torch.randperm(shape[0], generator=self.random), None]
        return index, torch.randn(shape, generator=self.random) * scale


def step_there(tables, index, upstream):
    if tables._used_rowwise_adagrad_with_global_weight_decay:
        global_decay_there(tables, index, upstream)
        return
    if len(tables.split_optimizer_states()[0]) == 2:
        adam_there(tables, index, upstream)
        return
    (tables(index.flatten(), torch.arange(0, index.numel() + 1, BAG)) * upstream).sum().backward()


def adam_there(tables, index, upstream, rounded=float):
    tables.iter += 1
    beta1, beta2, t = rounded(tables.optimizer_args.beta1), rounded(tables.optimizer_args.beta2), tables.iter.item()
    eps, decay, lr = tables.optimizer_args.eps, tables.optimizer_args.weight_decay, tables.get_learning_rate()
    weights, features = [w.clone().requires_grad_() for w in tables.split_embedding_weights()], tables.feature_table_map
    mode = tables.pooling_mode.name.lower()
    if mode == "none":
        out = torch.cat([weights[table][own.flatten()] for table, own in zip(features, index, strict=True)])
    else:
        bags = zip(features, index, strict=True)
        out = torch.cat([embedding_bag(own, weights[table], mode=mode) for table, own in bags], 1)
    (out * upstream).sum().backward()
    for table, (m, v) in enumerate(tables.split_optimizer_states()):
        rows = index[[feature == table for feature in features]].unique()
        x, g = tables.split_embedding_weights()[table], weights[table].grad[rows]
        m[rows] = beta1 * m[rows] + (1 - beta1) * g
        v[rows] = beta2 * v[rows] + (1 - beta2) * g.square().mean(1)
        scale = (v[rows] / (1 - rounded(beta2**t))).sqrt() + eps
        x[rows] -= lr * (m[rows] / (1 - rounded(beta1**t)) / scale[:, None] + decay * x[rows])


def global_decay_there(tables, index, upstream):
    """A row is read, and moved, after the decay of the iterations since its last gradient, if it ever had one."""
    tables.iter += 1
    t, lr, eps = tables.iter.item(), tables.get_learning_rate(), tables.optimizer_args.eps
    base = 1 - lr * tables.optimizer_args.weight_decay
    weights, features = tables.split_embedding_weights(), tables.feature_table_map
    read = []
    for weight, (_, last) in zip(weights, tables.split_optimizer_states(), strict=True):
        gap = (t - last - 1).clamp(min=0) * (last != 0)
        read.append((weight * base ** gap[:, None]).requires_grad_())
    bags = zip(features, index, strict=True)
    out = torch.cat([embedding_bag(own, read[table], mode="sum") for table, own in bags], 1)
    (out * upstream).sum().backward()
    for table, (v, last) in enumerate(tables.split_optimizer_states()):
        rows = index[[feature == table for feature in features]].unique()
        x, g = read[table].detach()[rows], read[table].grad[rows]
        v[rows] += g.square().mean(1)
        weights[table][rows] = base * x - lr * g / (v[rows].sqrt() + eps)[:, None]
        last[rows] = float(t)


def read_by(bags):
    return bags.features_by_table.items()


def tables_of(modules):
    return list(modules.tables.values()) if isinstance(modules, EmbeddingBags) else [own.weight for own in modules]


def step_here(modules, optimizer, index, upstream):
    optimizer.zero_grad()
    if isinstance(modules, EmbeddingBags):
        out = modules(index.flatten(), torch.arange(0, index.numel() + 1, BAG))  # as there
    else:
        out = torch.cat([module(own.flatten()) for module, own in zip(modules, index, strict=True)])
    (out * upstream).sum().backward()
    optimizer.step()


def place(fbgemm, kind, is_global=False):
    if is_global or kind == fbgemm.EmbOptimType.PARTIAL_ROWWISE_ADAM:
        return fbgemm.EmbeddingLocation.DEVICE, fbgemm.ComputeDevice.CUDA
    return fbgemm.EmbeddingLocation.HOST, fbgemm.ComputeDevice.CPU


def make_tables(fbgemm, features, pooling, widths, **options):
    kind = fbgemm.EmbOptimType[options.pop("optimizer", "EXACT_ROWWISE_ADAGRAD")]
    made = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
        [
            (ROWS[table], widths[table], *place(fbgemm, kind, "global_weight_decay" in options))
            for table in range(max(features) + 1)
        ],
        feature_table_map=features,
        optimizer=kind,
        device=torch.device("cpu"),
        pooling_mode=fbgemm.PoolingMode[pooling],
        weight_decay_mode=fbgemm.WeightDecayMode[options.pop("mode", "NONE")],
        **{"learning_rate": 0.1, "eps": 1e-3, **options},
    )
    for weight in made.split_embedding_weights():
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(weight))))
    return made


L2, DECOUPLED = {"weight_decay": 0.3, "mode": "L2"}, {"weight_decay": 0.3, "mode": "DECOUPLE"}
ADAM = {"optimizer": "PARTIAL_ROWWISE_ADAM"}
RUNS = [
    ([0], "SUM", (16,), {}),
    ([0, 1, 2], "SUM", (8, 16, 4), {"eps": 0.3}),
    ([0, 1], "MEAN", (8, 4), {}),
    ([0, 0, 1, 2], "SUM", (8, 16, 4), {}),
    ([0, 0, 1, 1], "SUM", (8, 16), L2),
    ([0, 0, 1, 1], "MEAN", (8, 16), DECOUPLED),
    ([0, 1], "NONE", (8, 8), {}),
    ([0, 1], "NONE", (8, 8), L2),
    ([0, 1], "NONE", (8, 8), DECOUPLED),
    ([0], "SUM", (16,), ADAM),
    ([0, 0, 1, 2], "MEAN", (8, 16, 4), {**ADAM, "beta1": 0.5, "beta2": 0.9, "eps": 0.3}),
    ([0, 1], "SUM", (8, 4), {**ADAM, **DECOUPLED}),
    ([0, 1], "NONE", (8, 8), {**ADAM, "beta1": 0.0}),
]


@pytest.mark.parametrize(("features", "pooling", "widths", "options"), RUNS, ids=str)
def test_fbgemms_run_goes_on_here_and_there_again(features, pooling, widths, options, fbgemm):
    unbroken, tables = (make_tables(fbgemm, features, pooling, widths, **options) for _ in range(2))
    batches, modules, optimizer = Batches(features, widths, pooling != "NONE"), None, None
    for step in range(12):
        index, upstream = batches.next()
        step_there(unbroken, index, upstream)
        if step in (0, 4):  # before the first step too, and back at once
            modules, optimizer = fbgemm.from_fbgemm(tables)
        if step in (0, 8):
            tables = fbgemm.to_fbgemm(modules, optimizer)
        if 4 <= step < 8:
            step_here(modules, optimizer, index, upstream)
        else:
            step_there(tables, index, upstream)
    assert_same_parameters(tables.split_embedding_weights(), unbroken.split_embedding_weights())
    ends = zip(tables.split_optimizer_states(), unbroken.split_optimizer_states(), strict=True)
    for (*averages, statistic), (*others, expected) in ends:
        torch.testing.assert_close(statistic, expected, rtol=1e-6, atol=0)
        if options.get("beta1") == 0:  # the average of gradients has no use there, and there is none here
            continue
        size = expected.sqrt()[:, None] + 1e-30
        for average, other in zip(averages, others, strict=True):
            torch.testing.assert_close(average / size, other / size, rtol=0, atol=1e-6)
    assert tables.iter.item() == unbroken.iter.item() == 12
    if isinstance(modules, EmbeddingBags):
        assert [list(modules.tables).index(name) for name, own in read_by(modules) for _ in own] == features
    else:
        assert len({id(module) for module in modules}) == max(features) + 1


@pytest.mark.parametrize(("features", "pooling", "widths", "options"), RUNS, ids=str)
def test_fbgemms_tables_there_and_back_are_the_same_bit_for_bit(features, pooling, widths, options, fbgemm):
    names = [f"t{i}" for i in range(max(features) + 1)]
    tables = make_tables(fbgemm, features, pooling, widths, table_names=names, **options)
    batches = Batches(features, widths, pooling != "NONE")
    for _ in range(3):
        step_there(tables, *batches.next())
    modules, optimizer = fbgemm.from_fbgemm(tables)
    back = fbgemm.to_fbgemm(modules, optimizer)
    again, other = fbgemm.from_fbgemm(back)
    assert optimizer.param_groups[0]["param_names"] == back.table_names == names
    assert (back.optimizer_args, back.get_learning_rate()) == (tables.optimizer_args, tables.get_learning_rate())
    assert (back.feature_table_map, back.pooling_mode) == (features, tables.pooling_mode)
    for returned, original in zip(back.split_embedding_weights(), tables.split_embedding_weights(), strict=True):
        assert torch.equal(returned, original)
    taken = {weight.data_ptr() for weight in tables_of(modules)}
    assert taken.isdisjoint(weight.data_ptr() for weight in tables.split_embedding_weights()), "weights are copies"
    for returned, original in zip(back.split_optimizer_states(), tables.split_optimizer_states(), strict=True):
        assert torch.equal(returned[-1], original[-1])
        assert returned[-1].count_nonzero()
        assert torch.equal(returned[0], original[0] if options.get("beta1") != 0 else torch.zeros_like(original[0]))
    for returned, original in zip(tables_of(modules), tables_of(again), strict=True):
        assert torch.equal(returned, original)
        state, expected = optimizer.state[returned], other.state[original]
        assert set(state) == set(expected)
        assert all(torch.equal(state[key], expected[key]) for key in state)
        assert state["step"] == 3
    numbers = ("lr", "eps", "weight_decay", "decoupled_weight_decay", "reduction")
    numbers += ("betas",) * isinstance(optimizer, RowMomentum)
    assert options_of(optimizer, numbers) == options_of(other, numbers)


@pytest.mark.parametrize("make", [partial(RowAdaGrad, initial_accumulator_value=0.5), RowMomentum, MatrixMomentum])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_run_from_here_goes_on_at_fbgemm_with_a_new_learning_rate(reduction, make, fbgemm):
    bags = EmbeddingBags({"user": (30, 8), "item": (20, 8)})
    dense = nn.Linear(3, 2)  # stays with its optimizer
    user, item = bags.tables.values()
    groups = [{"params": [user]}, {"params": [item]}, {"params": dense.parameters(), "lr": 1}]
    optimizer = make(groups, torch.tensor(0.2), reduction=reduction, eps=1e-3)
    batches = Batches([0, 1], (8, 8))
    for step in range(8):
        index, upstream = batches.next()
        if step == 4:
            tables = fbgemm.to_fbgemm(bags, optimizer)
        if step == 6:
            tables.set_learning_rate(0.05 / 8**0.5 if reduction == "sum" else 0.05)
            for group in optimizer.param_groups:
                group["lr"] = 0.05
        if step >= 4:
            step_there(tables, index, upstream)
        step_here(bags, optimizer, index, upstream)
    assert_same_parameters(tables.split_embedding_weights(), [user.detach(), item.detach()])


@pytest.mark.parametrize("pooling", ["SUM", "MEAN"])
@pytest.mark.parametrize("mode", ["NONE", "L2", "DECOUPLE"])
def test_fbgemm_ignores_weight_decay_of_pooled_tables_of_one_feature_and_it_is_refused(mode, pooling, fbgemm):
    ends = []
    for decay in (0.0, 0.3):
        tables, batches = make_tables(fbgemm, [0], pooling, (8,), weight_decay=decay, mode=mode), Batches([0], (8,))
        for _ in range(3):
            step_there(tables, *batches.next())
        ends.append(tables.split_embedding_weights()[0])
    assert torch.equal(*ends)  # the day this fails, FBGEMM applies it, and it can be carried over
    with pytest.raises(ValueError, match="weight_decay=0.3 .* FBGEMM.* ignores it"):
        fbgemm.from_fbgemm(tables)
    tables.update_hyper_parameters({"weight_decay": 0.0})
    assert fbgemm.from_fbgemm(tables)[1].param_groups[0]["weight_decay"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_clipping": True}, "gradient_clipping=True .* clip by hand"),
        ({"max_norm": 0.5}, "max_norm=0.5 .* ignores it"),
        ({"optimizer": "EXACT_SGD"}, "optimizer=EXACT_SGD .* must be EXACT_ROWWISE_ADAGRAD"),
        ({"weights_precision": "INT8"}, "weights_precision=INT8 .* must be FP32 or FP16"),
        ({**ADAM, "weights_precision": "FP16"}, "weights_precision=FP16 .* must be FP32"),
        ({"output_dtype": "FP16"}, "output_dtype=FP16 .* must be FP32"),
        ({**ADAM, "gradient_clipping": True}, "gradient_clipping=True .* clip by hand"),
        ({**ADAM, "optimizer_state_dtypes": {"momentum2": "BF16"}}, "momentum2=torch.bfloat16 .* torch.float32"),
    ],
    ids=str,
)
def test_what_fbgemm_has_and_rows_have_not_is_refused(options, words, fbgemm):
    kinds = {
        "optimizer": fbgemm.EmbOptimType,
        "weights_precision": fbgemm.SparseType,
        "output_dtype": fbgemm.SparseType,
    }
    options = {"optimizer": "EXACT_ROWWISE_ADAGRAD", **options}
    given = {key: kinds[key][value] if key in kinds else value for key, value in options.items()}
    if "optimizer_state_dtypes" in given:
        given["optimizer_state_dtypes"] = {"momentum2": fbgemm.SparseType.BF16}
    spec = (8, 4, *place(fbgemm, given["optimizer"]))
    tables = fbgemm.SplitTableBatchedEmbeddingBagsCodegen([spec], device=torch.device("cpu"), **given)
    with pytest.raises(ValueError, match=words):
        fbgemm.from_fbgemm(tables)


def bags(*widths, **options):
    return EmbeddingBags({f"t{number}": Table(8, width, **options) for number, width in enumerate(widths)})


MIXED = EmbeddingBags({"a": (8, 4), "b": Table(8, 4, mode="mean")})


@pytest.mark.parametrize(
    ("modules", "make", "words"),
    [
        (bags(4), lambda w: RowAdaGrad(w, maximize=True), "maximize=True .* negate the loss"),
        (bags(4), ColumnAdaGrad, "geometry=column of t0"),
        (bags(4), lambda w: RowAdaGrad(w, domain=RowBalls(100.0)), "domain=.* it never projects"),
        (bags(4), lambda w: RowAdaGrad(w, weight_decay=0.1), "weight_decay=0.1 .* ignores it"),
        ([nn.Embedding(8, 4)], lambda w: RowAdaGrad(w, weight_decay=0.1), "sparse=False .* dense gradients move all"),
        ([nn.Embedding(8, 4)], RowMomentum, "sparse=False .* dense gradients move all rows"),
        (bags(4), lambda w: RowMomentum(w, nesterov=True), "nesterov=True .* plain momentum"),
        (bags(4), lambda w: RowMomentum(w, bias_correction=False), "bias_correction=False .* corrects both averages"),
        (bags(4), lambda w: RowMomentum(w, weight_decay=0.1), "weight_decay=0.1 .* decoupled_weight_decay alone"),
        (bags(4), lambda w: RowMomentum(w, eps=0), "eps=0 .* 0/0 is NaN there"),
        (bags(4), lambda w: MatrixMomentum(w, geometry="entry"), "geometry=entry of t0"),
        (bags(4), lambda w: RowAdaGrad(w, eps=0), "eps=0 .* 0/0 is NaN there"),
        (bags(6), RowAdaGrad, "4 must divide their width"),
        (bags(4, dtype=torch.float64), RowAdaGrad, "torch.float64 on cpu"),
        (bags(4, dtype=torch.float16), RowMomentum, "torch.float16 on cpu"),
        (
            bags(4, dtype=torch.float16),
            lambda w: RowAdaGrad(w, stochastic_rounding=True),
            "stochastic_rounding=True .* round to the nearest",
        ),
        (bags(4, 8), RowAdaGrad, "t0 has .*'learning_rate': 0.005.* and t1 has .* one for all tables"),
        (MIXED, RowAdaGrad, "the tables pool by {'a': 'sum', 'b': 'mean'}, and FBGEMM has one mode for all"),
        (bags(4, padding_idx=0), RowAdaGrad, "padding_idx=0 of table 't0'"),
        ([nn.Embedding(8, 4, max_norm=1.0)], RowAdaGrad, "max_norm=1.0 of table 0"),
        (
            bags(4),
            lambda _: RowAdaGrad(parameters([(8, 4)])),
            r"table 't0', of shape \(8, 4\), is not among the optimizer's",
        ),
    ],
)
def test_what_rows_have_and_fbgemm_has_not_is_refused(modules, make, words, fbgemm):
    with pytest.raises(ValueError, match=words):
        fbgemm.to_fbgemm(modules, make(tables_of(modules)))


def test_features_of_one_table_that_are_apart_frozen_tables_and_other_types_are_refused(fbgemm):
    first, second = nn.Embedding(8, 4), nn.Embedding(8, 4)
    optimizer = RowAdaGrad([first.weight, second.weight])
    with pytest.raises(ValueError, match=r"tables \[0, 1, 0\]: FBGEMM needs those of one table next to each other"):
        fbgemm.to_fbgemm([first, second, first], optimizer)
    second.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad=False of table 1"):
        fbgemm.to_fbgemm([first, second], optimizer)
    with pytest.raises(TypeError, match=r"Factored\(.* does not partition"):
        fbgemm.to_fbgemm([first], MatrixMomentum([first.weight], geometry=Factored()))
    with pytest.raises(
        TypeError, match="tables must be an instance of SplitTableBatchedEmbeddingBagsCodegen, got Embedding"
    ):
        fbgemm.from_fbgemm(first)
    for given in ([], [nn.EmbeddingBag(8, 4)], nn.Embedding(8, 4)):
        with pytest.raises(TypeError, match="must be an EmbeddingBags, which EmbeddingBags.from_modules makes"):
            fbgemm.to_fbgemm(given, optimizer)


def test_tables_with_momentum_that_took_different_numbers_of_steps_are_refused(fbgemm):
    both = bags(4, 4)
    optimizer, modules = RowMomentum(both.parameters(), reduction="mean"), both.to_modules()
    modules["t0"](torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"taken \[1, 0\] steps, .* one number"):
        fbgemm.to_fbgemm(both, optimizer)
    for name, taken in (("t0", 1), ("t1", 0)):
        assert fbgemm.to_fbgemm(EmbeddingBags.from_modules({name: modules[name]}), optimizer).iter.item() == taken


def test_tables_and_features_have_fbgemms_names_and_those_that_are_given(fbgemm):
    features, widths = [0, 0, 1], (8, 4)
    tables = make_tables(fbgemm, features, "SUM", widths)
    bags, _ = fbgemm.from_fbgemm(tables)
    assert bags.features_by_table == {"table_0": ("table_0_0", "table_0_1"), "table_1": ("table_1",)}
    tables = make_tables(fbgemm, features, "SUM", widths, table_names=["item", "user"])
    bags, _ = fbgemm.from_fbgemm(tables, ["seen", "bought", "user"])
    assert bags.features_by_table == {"item": ("seen", "bought"), "user": ("user",)}
    index, _ = Batches(features, widths).next()
    by_name = bags(dict(zip(bags.features, index, strict=True)))
    offsets = torch.arange(0, index.numel() + 1, BAG)
    torch.testing.assert_close(by_name, tables(index.flatten(), offsets))
    with pytest.raises(ValueError, match=r"feature_names must have the 3 features' names, got \['seen'\]"):
        fbgemm.from_fbgemm(tables, ["seen"])
    with pytest.raises(ValueError, match=r"table_names=\['item', 'item'\] has a name twice: shards of one table"):
        fbgemm.from_fbgemm(make_tables(fbgemm, features, "SUM", widths, table_names=["item", "item"]))


def test_tables_of_several_modules_of_fbgemm_are_one_module_here(fbgemm):
    """FBGEMM has one mode and one learning rate per module, so TorchRec makes several."""
    runs = [("SUM", {"table_names": ["a", "b"]}), ("MEAN", {"table_names": ["c", "d"], "learning_rate": 0.3})]
    kept, moved = ([make_tables(fbgemm, [0, 1], mode, (8, 4), **own) for mode, own in runs] for _ in range(2))
    (sums, first), (means, second) = map(fbgemm.from_fbgemm, moved)
    bags = EmbeddingBags.from_modules({**sums.to_modules(), **means.to_modules()})
    optimizer = CombinedOptimizer([first, second])
    batches = Batches([0, 1, 0, 1], (8, 4))
    for _ in range(4):
        index, upstream = batches.next()
        for tables, places, columns in zip(
            kept, (slice(0, 2), slice(2, 4)), (slice(0, 12), slice(12, 24)), strict=True
        ):
            step_there(tables, index[places], upstream[:, columns])
        step_here(bags, optimizer, index, upstream)
    modules = bags.to_modules()
    back = [
        fbgemm.to_fbgemm(EmbeddingBags.from_modules({name: modules[name] for name in names}), optimizer.optimizers[i])
        for i, names in enumerate(("ab", "cd"))
    ]
    for tables, expected in zip(back, kept, strict=True):
        assert_same_parameters(tables.split_embedding_weights(), expected.split_embedding_weights())
        assert (tables.pooling_mode, tables.table_names) == (expected.pooling_mode, expected.table_names)
        assert tables.get_learning_rate() == expected.get_learning_rate()


def test_tables_in_float16_are_exchanged_exactly_and_go_on_up_to_their_rounding(fbgemm):
    features, widths = [0, 1, 1], (8, 4)
    tables = make_tables(fbgemm, features, "SUM", widths, weights_precision=fbgemm.SparseType.FP16)
    bags, optimizer = fbgemm.from_fbgemm(tables)
    back = fbgemm.to_fbgemm(bags, optimizer)
    for own, expected in zip(back.split_embedding_weights(), tables.split_embedding_weights(), strict=True):
        assert own.dtype is torch.float16
        assert torch.equal(own, expected)
    batches = Batches(features, widths)
    for _ in range(4):
        batch = batches.next()
        step_there(back, *batch)
        step_there(tables, *batch)
        step_here(bags, optimizer, *batch)
    for own, again, expected in zip(
        bags.tables.values(), back.split_embedding_weights(), tables.split_embedding_weights(), strict=True
    ):
        assert torch.equal(again, expected)
        torch.testing.assert_close(own.detach(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("in_backward", [False, True])
def test_weights_of_samples_are_the_same_there_and_here(in_backward, fbgemm):
    features, widths = [0, 0, 1, 2], (8, 4, 16)
    kept = make_tables(fbgemm, features, "SUM", widths)
    bags, optimizer = fbgemm.from_fbgemm(kept)
    if in_backward:  # as there
        step_in_backward(optimizer)
    batches, random = Batches(features, widths), torch.Generator().manual_seed(1)
    for _ in range(4):
        index, upstream = batches.next()
        batch = index.flatten(), torch.arange(0, index.numel() + 1, BAG), torch.rand(index.numel(), generator=random)
        for tables in (kept, bags):
            (tables(*batch) * upstream).sum().backward()
        if not in_backward:
            optimizer.step()
            optimizer.zero_grad()
    assert_same_parameters(kept.split_embedding_weights(), [table.detach() for table in bags.tables.values()])


def test_tables_with_momentum_are_saved_and_loaded_by_fbgemm_itself(fbgemm):
    """As from the CPU, where they were converted, to a GPU."""
    tables, batches = make_tables(fbgemm, [0], "SUM", (16,), **ADAM), Batches([0], (16,))
    for _ in range(3):
        step_there(tables, *batches.next())
    made, loaded = fbgemm.to_fbgemm(*fbgemm.from_fbgemm(tables)), make_tables(fbgemm, [0], "SUM", (16,), **ADAM)
    loaded.load_state_dict(made.state_dict())
    for own in (tables, loaded):
        step_there(own, *Batches([0], (16,)).next())
    assert torch.equal(loaded.split_embedding_weights()[0], tables.split_embedding_weights()[0])
    assert loaded.iter.item() == 4


def test_fbgemms_bias_correction_in_float32_changes_a_step_by_less_than_a_hundred_thousandth(fbgemm):
    """Its kernel takes betas and their powers in float32, and 1 - 0.999 keeps four digits there."""
    exact, single = (make_tables(fbgemm, [0], "SUM", (16,), **ADAM) for _ in range(2))
    batches, largest = Batches([0], (16,)), 0.0
    for _ in range(50):
        batch, before = batches.next(), exact.split_embedding_weights()[0].clone()
        single.split_embedding_weights()[0].copy_(before)
        adam_there(exact, *batch)
        adam_there(single, *batch, rounded=lambda number: torch.tensor(number).item())
        moved, other = (tables.split_embedding_weights()[0] - before for tables in (exact, single))
        largest = max(largest, ((other - moved).norm() / moved.norm()).item())
    assert 1e-7 < largest < 1e-5


# ------------------------------------------------------------------------------------------------ global weight decay


def with_global_decay(fbgemm, **definition):
    tables = make_tables(
        fbgemm,
        [0, 1],
        "SUM",
        [4, 8],
        mode="DECOUPLE_GLOBAL",
        weight_decay=0.3,
        global_weight_decay=fbgemm.GlobalWeightDecayDefinition(**{"start_iter": 0, "lower_bound": 0.0} | definition),
    )
    return tables, Batches([0, 1], [4, 8])


def test_global_weight_decay_moves_here_and_back(fbgemm):
    tables, batches = with_global_decay(fbgemm)
    unbroken, _ = with_global_decay(fbgemm)
    for own in (tables, unbroken):
        own.iter += 1
        for _, last in own.split_optimizer_states():
            last.fill_(1.0)  # every row has had a gradient
    drawn = [batches.next() for _ in range(9)]
    for index, upstream in drawn:
        step_there(unbroken, index, upstream)
    for index, upstream in drawn[:3]:
        step_there(tables, index, upstream)
    bags, optimizer = fbgemm.from_fbgemm(tables)
    assert optimizer.param_groups[0]["lazy"] == "exact"
    handle = keep_rows_current(bags, optimizer)
    for index, upstream in drawn[3:6]:
        step_here(bags, optimizer, index, upstream)
    handle.remove()
    back = fbgemm.to_fbgemm(bags, optimizer)
    for index, upstream in drawn[6:]:
        step_there(back, index, upstream)
    assert back.iter == unbroken.iter
    for own in (back, unbroken):  # what a row will be when it is read next
        for weight, (_, last) in zip(own.split_embedding_weights(), own.split_optimizer_states(), strict=True):
            weight *= (1 - 0.1 * 0.3) ** (own.iter - last)[:, None]
    for mine, theirs in zip(back.split_embedding_weights(), unbroken.split_embedding_weights(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_global_weight_decay_that_means_something_else_is_refused(fbgemm):
    tables, _ = with_global_decay(fbgemm)
    with pytest.raises(ValueError, match="prev_iter=0 of 50 rows cannot be carried over .* spares rows"):
        fbgemm.from_fbgemm(tables)
    tables, _ = with_global_decay(fbgemm, lower_bound=0.1)
    with pytest.raises(ValueError, match=r"lower_bound of global_weight_decay=0\.1 cannot be carried over"):
        fbgemm.from_fbgemm(tables)
    bag, table = bags(4), nn.Embedding(30, 4, sparse=True)
    decay = {"weight_decay": 0.1, "decoupled_weight_decay": True, "lazy": "exact"}
    with pytest.raises(ValueError, match="lazy='exact' cannot be carried over to FBGEMM: .* without pooling"):
        fbgemm.to_fbgemm([table], RowAdaGrad(table.parameters(), **decay))
    assert fbgemm.to_fbgemm(bag, RowAdaGrad(bag.parameters(), **decay)).split_optimizer_states()[0][1].eq(1).all()
    tables, _ = with_global_decay(fbgemm, start_iter=10)
    with pytest.raises(
        ValueError, match="start_iter=10 of global_weight_decay cannot be carried over .* after 0 steps"
    ):
        fbgemm.from_fbgemm(tables)


def test_exact_averages_are_refused_and_an_exact_run_without_decay_is_an_ordinary_one(fbgemm):
    bag = bags(4)
    with pytest.raises(ValueError, match="lazy='exact' cannot be carried over to FBGEMM with momentum"):
        fbgemm.to_fbgemm(bag, RowMomentum(bag.parameters(), lazy="exact"))
    tables = fbgemm.to_fbgemm(bag, RowAdaGrad(bag.parameters(), lazy="exact"))
    assert tables.use_cpu
    assert tables.optimizer_args.regularization_mode == fbgemm.WeightDecayMode.NONE.value


@pytest.mark.parametrize("mode", ["COUNTER", "COWCLIP"])
def test_regularization_by_counts_is_refused_with_the_reason(fbgemm, mode):
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        CounterBasedRegularizationDefinition,
        CowClipDefinition,
    )

    own = {
        "COUNTER": {"counter_based_regularization": CounterBasedRegularizationDefinition()},
        "COWCLIP": {"cowclip_regularization": CowClipDefinition()},
    }
    tables = make_tables(fbgemm, [0], "SUM", [4], mode=mode, **own[mode])
    with pytest.raises(ValueError, match=f"weight_decay_mode='{mode}' cannot be carried over .* how often a row"):
        fbgemm.from_fbgemm(tables)

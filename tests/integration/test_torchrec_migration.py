"""Runs move between TorchRec's RowWiseAdagrad and RowAdaGrad, and go on as if they had not moved, on random rows."""

import os

import pytest
import torch
from torch import nn

from matrix_adagrad import (
    Blocks,
    ColumnAdaGrad,
    CombinedOptimizer,
    EmbeddingBags,
    Factored,
    MatrixAdaGrad,
    RowAdaGrad,
    RowMomentum,
    SteepestDescent,
    Table,
)
from matrix_adagrad.domains import RowBalls
from tests.interop.runs import assert_bit_equal_states, assert_same_parameters, options_of, parameters, run

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports TorchRec: make test-integrations", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the peer's own


@pytest.fixture
def torchrec():
    pytest.importorskip("torchrec", reason="TorchRec is not installed: make test-integrations")
    from matrix_adagrad.interop import torchrec

    return torchrec


SHAPES = [(30, 6), (20, 4), (12, 16)]
COMMON = ("lr", "eps", "weight_decay", "initial_accumulator_value", "maximize")
OPTIONS = [
    {},
    {"lr": torch.tensor(0.2)},
    {"eps": 0.3},
    {"weight_decay": 0.1},
    {"initial_accumulator_value": 0.5},
    {"maximize": True, "weight_decay": 0.1, "eps": 1e-3},
]


def in_groups(make, params, **options):
    return make([{"params": params[:2]}, {"params": params[2:], "lr": 0.03, "eps": 1e-3}], **{"lr": 0.1, **options})


@pytest.mark.parametrize("before", [0, 4], ids=["before the first step", "mid-run"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("direction", ["from", "to", "to, by the sum"])
def test_a_run_goes_on_at_the_other_as_if_it_had_never_moved(direction, options, before, torchrec):
    make, convert = torchrec.RowWiseAdagrad, torchrec.from_torchrec
    if direction != "from":
        options = {**options, "reduction": "sum" if "sum" in direction else "mean"}
        make, convert = RowAdaGrad, torchrec.to_torchrec
    kept, moved = parameters(SHAPES), parameters(SHAPES)
    unbroken, first = in_groups(make, kept, **options), in_groups(make, moved, **options)
    run(unbroken, kept, range(before + 5), but=1)
    run(first, moved, range(before), but=1)
    run(convert(first), moved, range(before, before + 5), but=1)
    assert_same_parameters(moved, kept)
    assert torch.equal(moved[1], parameters(SHAPES)[1])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_there_and_back_is_the_same_bit_for_bit(options, torchrec):
    params = parameters(SHAPES)
    theirs = in_groups(torchrec.RowWiseAdagrad, [(f"p{i}", param) for i, param in enumerate(params)], **options)
    run(theirs, params, range(3), but=0)
    ours = torchrec.from_torchrec(theirs)
    back = torchrec.to_torchrec(ours)
    for other in (ours, back, torchrec.from_torchrec(back)):
        assert_bit_equal_states(other, theirs, params)
        assert options_of(other, COMMON) == options_of(theirs, COMMON)
        assert {name: other.defaults[name] for name in COMMON} == {name: theirs.defaults[name] for name in COMMON}
    before = theirs.state[params[0]]["sum"].clone()
    run(ours, params, range(1))
    assert torch.equal(theirs.state[params[0]]["sum"], before), "the state is a copy"
    for lr in (ours.defaults["lr"], ours.param_groups[0]["lr"]):
        assert not isinstance(lr, torch.Tensor) or lr is not options["lr"], "and so is a tensor as learning rate"


def test_sparse_gradients_here_go_on_as_dense_ones_there(torchrec):
    random = torch.Generator().manual_seed(0)
    kept, moved = (nn.Embedding.from_pretrained(parameters([(50, 8)])[0].detach(), freeze=False) for _ in range(2))
    peer = torchrec.RowWiseAdagrad(kept.parameters(), lr=0.1)
    optimizer = torchrec.RowWiseAdagrad(moved.parameters(), lr=0.1)
    for step in range(9):
        if step == 3:
            optimizer, moved.sparse = torchrec.from_torchrec(optimizer), True
        if step == 6:
            optimizer, moved.sparse = torchrec.to_torchrec(optimizer), False
        index = torch.randint(50, (12,), generator=random)
        scale = torch.logspace(-3, 3, 12)[torch.randperm(12, generator=random), None]
        target = torch.randn(12, 8, generator=random) * scale
        for table, used in ((kept, peer), (moved, optimizer)):
            used.zero_grad()
            (table(index) * target).sum().backward()
            assert table.weight.grad.is_sparse == (table is moved and 3 <= step < 6)
            used.step()
    assert_same_parameters([moved.weight], [kept.weight])


def test_the_sum_is_split_by_width_and_names_are_kept(torchrec):
    params = parameters(SHAPES)
    ours = RowAdaGrad([(f"p{i}", param) for i, param in enumerate(params)], lr=0.4, initial_accumulator_value=0.8)
    found = options_of(torchrec.to_torchrec(ours), ("lr", "initial_accumulator_value"))
    assert found == [
        [1, ["p0"], 0.4 / 6**0.5, 0.8 / 6],
        [1, ["p1"], 0.2, 0.2],
        [1, ["p2"], 0.1, 0.05],
    ]


def table(rows=8, width=4):
    return parameters([(rows, width)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ColumnAdaGrad(table()), "geometry=column of parameter 0 cannot be carried over to TorchRec"),
        (lambda: MatrixAdaGrad([("w", *table())], geometry=Blocks(rows=2)), r"geometry=blocks\(.*\) of parameter 'w'"),
        (lambda: RowAdaGrad([*table(), *parameters([(5,)])]), r"parameter 1 has shape \(5,\): TorchRec takes matrices"),
        (lambda: RowAdaGrad(parameters([(5, 3, 2)])), r"shape \(5, 3, 2\): TorchRec takes matrices"),
        (lambda: RowAdaGrad(table(), domain=RowBalls(100.0)), "domain=.* to TorchRec: it never projects"),
        (lambda: RowAdaGrad(table(), weight_decay=0.1, decoupled_weight_decay=True), "decoupled_weight_decay=True"),
        (lambda: RowAdaGrad(table(), capturable=True), "capturable=True"),
        (lambda: RowAdaGrad(table(), eps=0), "eps=0 .* 0/0 is NaN there"),
        (lambda: RowAdaGrad([nn.Parameter(table()[0].detach().bfloat16())]), "parameter 0 is torch.bfloat16"),
    ],
)
def test_what_torchrec_does_not_have_is_refused(make, words, torchrec):
    with pytest.raises(ValueError, match=words):
        torchrec.to_torchrec(make())


def test_what_is_not_here_is_refused(torchrec):
    with pytest.raises(ValueError, match="lr_decay=0.1 .* use a scheduler"):
        torchrec.from_torchrec(torchrec.RowWiseAdagrad(table(), lr_decay=0.1))
    with pytest.raises(ValueError, match=r"shape \(5, 3, 2\): TorchRec's steps are for matrices only"):
        torchrec.from_torchrec(torchrec.RowWiseAdagrad(parameters([(5, 3, 2)])))
    with pytest.raises(
        TypeError, match="theirs must be an instance of EmbeddingBagCollection or RowWiseAdagrad, got Adagrad"
    ):
        torchrec.from_torchrec(torch.optim.Adagrad(table()))
    with pytest.raises(TypeError, match=r"Factored\(.* does not partition"):
        torchrec.to_torchrec(MatrixAdaGrad(table(), geometry=Factored()))
    with pytest.raises(
        TypeError, match="ours must be an instance of EmbeddingBags or MatrixAdaGrad, got SteepestDescent"
    ):
        torchrec.to_torchrec(SteepestDescent(table()))


def test_torchrecs_adam_by_row_is_a_name_for_fbgemms_and_moves_there(torchrec):
    from torchrec.distributed.utils import optimizer_type_to_emb_opt_type

    placeholder = torchrec.PartialRowWiseAdam(table(), lr=0.1)
    assert optimizer_type_to_emb_opt_type(type(placeholder)).name == "PARTIAL_ROWWISE_ADAM"
    with pytest.raises(NotImplementedError):
        placeholder.step()
    with pytest.raises(TypeError, match="PartialRowWiseAdam has neither .* use from_fbgemm"):
        torchrec.from_torchrec(placeholder)
    with pytest.raises(TypeError, match="PARTIAL_ROWWISE_ADAM: use to_fbgemm"):
        torchrec.to_torchrec(RowMomentum(table()))


# --------------------------------------------------------------------------------------------------------- collections

ROWS, BATCH = {"item": 30, "user": 20, "city": 12}, 6
FEATURES = {"item": ["seen", "bought"], "user": ["user"], "city": ["city"]}
READ = [(feature, ROWS[name]) for name, features in FEATURES.items() for feature in features]


def collection(is_weighted=False, city="MEAN", data_type="FP32"):
    """Tables of different widths and modes, one with two features."""
    import torchrec

    torch.manual_seed(0)
    options = {"item": {"embedding_dim": 8}, "user": {"embedding_dim": 4}, "city": {"embedding_dim": 16}}
    options["city"] |= {"pooling": torchrec.PoolingType[city]}
    options["user"] |= {"data_type": torchrec.types.DataType[data_type]}
    configs = [
        torchrec.EmbeddingBagConfig(name=name, num_embeddings=rows, feature_names=FEATURES[name], **options[name])
        for name, rows in ROWS.items()
    ]
    return torchrec.EmbeddingBagCollection(configs, is_weighted=is_weighted)


def jagged_batches(count, is_weighted=False):
    """Bags of 0 to 4 ids, with the keys in another order each time, and what the output is multiplied with."""
    import torchrec

    random = torch.Generator().manual_seed(0)
    for _ in range(count):
        read = [READ[i] for i in torch.randperm(len(READ), generator=random)]
        lengths = torch.randint(5, (len(read), BATCH), generator=random)
        ids = [
            torch.randint(rows, (int(own.sum()),), generator=random)
            for (_, rows), own in zip(read, lengths, strict=True)
        ]
        weights = torch.rand(int(lengths.sum()), generator=random) if is_weighted else None
        jagged = torchrec.KeyedJaggedTensor(
            [feature for feature, _ in read], torch.cat(ids), weights, lengths=lengths.flatten()
        )
        yield jagged, torch.randn(BATCH, 36, generator=random)


def train_on(module, optimizer, batches):
    for jagged, upstream in batches:
        optimizer.zero_grad()
        out = module(jagged)
        ((out if isinstance(module, EmbeddingBags) else out.values()) * upstream).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("options", [{}, {"is_weighted": True, "city": "SUM"}], ids=["by modes", "weighted"])
def test_a_collection_goes_on_here_and_there_again(options, torchrec):
    is_weighted = options.get("is_weighted", False)
    kept, moved = collection(**options), collection(**options)
    unbroken, optimizer = (
        torchrec.RowWiseAdagrad(
            [{"params": list(own.parameters())[:2]}, {"params": own.embedding_bags["city"].weight, "lr": 0.3}], lr=0.1
        )
        for own in (kept, moved)
    )
    batches = list(jagged_batches(9, is_weighted))
    train_on(kept, unbroken, batches)
    train_on(moved, optimizer, batches[:3])
    bags, rows = torchrec.from_torchrec(moved), torchrec.from_torchrec(optimizer)
    train_on(bags, rows, batches[3:6])
    back, optimizer = torchrec.to_torchrec(bags, is_weighted=is_weighted), torchrec.to_torchrec(rows)
    train_on(back, optimizer, batches[6:])
    assert_same_parameters(back.parameters(), kept.parameters())
    for name, table in bags.tables.items():
        assert back.embedding_bags[name].weight is table
        own, expected = (x.state[m.embedding_bags[name].weight] for x, m in ((optimizer, back), (unbroken, kept)))
        assert own["step"] == expected["step"]
        torch.testing.assert_close(own["sum"], expected["sum"], rtol=1e-6, atol=0)


def test_a_collection_there_and_back_is_the_same(torchrec):
    theirs = collection(is_weighted=True, data_type="FP16")
    bags = torchrec.from_torchrec(theirs)
    back = torchrec.to_torchrec(bags, is_weighted=True)
    assert (back.is_weighted(), back.device) == (True, theirs.device)
    fields = ("name", "num_embeddings", "embedding_dim", "feature_names", "pooling", "data_type")
    for own, expected in zip(back.embedding_bag_configs(), theirs.embedding_bag_configs(), strict=True):
        assert [getattr(own, field) for field in fields] == [getattr(expected, field) for field in fields]
    for own, expected in zip(back.parameters(), theirs.parameters(), strict=True):
        assert own is expected
    assert list(back.state_dict()) == list(theirs.state_dict())
    assert [x.dtype for x in bags.tables.values()] == [torch.float32, torch.float16, torch.float32]


@pytest.mark.parametrize(("is_weighted", "data_type"), [(False, "FP32"), (True, "FP32"), (False, "FP16")])
def test_the_columns_are_those_of_the_keyed_tensor(is_weighted, data_type, torchrec):
    theirs = collection(is_weighted, city="SUM", data_type=data_type)
    bags = torchrec.from_torchrec(theirs)
    for jagged, _ in jagged_batches(3, is_weighted):
        expected, pooled = theirs(jagged), bags(jagged)
        tolerance = 1e-2 if data_type == "FP16" else 1e-6
        torch.testing.assert_close(pooled, expected.values(), rtol=tolerance, atol=tolerance)
        assert list(bags.features) == expected.keys()
        for feature, columns in bags.by_feature(pooled).items():
            torch.testing.assert_close(columns, expected[feature], rtol=tolerance, atol=tolerance)


def test_other_keys_are_ignored_as_there_and_missing_ones_and_bags_of_different_numbers_are_refused(torchrec):
    import torchrec as theirs

    bags = EmbeddingBags({"a": (10, 4), "b": (10, 4)})
    ids, lengths = torch.arange(8), torch.tensor([1, 0, 2, 2, 0, 3])
    jagged = theirs.KeyedJaggedTensor(["b", "c", "a"], ids, lengths=lengths)
    torch.testing.assert_close(bags(jagged), torchrec.to_torchrec(bags)(jagged).values())
    with pytest.raises(ValueError, match=r"features \['a', 'b'\]: \['a'\] are missing"):
        bags(theirs.KeyedJaggedTensor(["b", "c", "d"], ids, lengths=lengths))
    two_and_four = theirs.KeyedJaggedTensor(["a", "b"], ids, lengths=lengths, stride_per_key_per_rank=[[2], [4]])
    with pytest.raises(ValueError, match=r"same number of bags, got \[2, 4\] of \['a', 'b'\]"):
        bags(two_and_four)


def test_a_collection_that_is_no_embedding_bags_is_refused(torchrec):
    import torchrec as theirs
    from torch.distributed.optim import _apply_optimizer_in_backward

    configs = [
        theirs.EmbeddingBagConfig(name=name, num_embeddings=8, embedding_dim=4, feature_names=["f"]) for name in "ab"
    ]
    with pytest.raises(ValueError, match="the feature 'f' reads two tables"):
        torchrec.from_torchrec(theirs.EmbeddingBagCollection(configs))
    in_backward = collection()
    _apply_optimizer_in_backward(torchrec.RowWiseAdagrad, in_backward.parameters(), {"lr": 0.1})
    with pytest.raises(ValueError, match=r"embedding_bags.item.weight is updated in the backward pass: convert"):
        torchrec.from_torchrec(in_backward)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Table(8, 4, padding_idx=0), "padding_idx=0 of table 'a' cannot be carried over to TorchRec"),
        (Table(8, 4, dtype=torch.float64), "table 'a' is torch.float64: a collection of TorchRec has float32 and"),
    ],
)
def test_tables_that_are_no_collection_are_refused(spec, words, torchrec):
    with pytest.raises(ValueError, match=words):
        torchrec.to_torchrec(EmbeddingBags({"a": spec}))


@pytest.fixture
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sharded(made, optimizer):
    """The model as TorchRec runs it: its tables are in modules of FBGEMM, one for each mode."""
    from torch.distributed.optim import _apply_optimizer_in_backward
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
    from torchrec.distributed.types import ShardingEnv, ShardingPlan

    _apply_optimizer_in_backward(optimizer, made.parameters(), {"lr": 0.1, "eps": 1e-3})
    kinds = {name: table_wise(rank=0, compute_kernel="fused") for name in ROWS}
    sharder, env = EmbeddingBagCollectionSharder(), ShardingEnv.from_process_group(torch.distributed.group.WORLD)
    plan = ShardingPlan({"": construct_module_sharding_plan(made, kinds, sharder, 1, 1, "cpu")})
    return DistributedModelParallel(made, env, torch.device("cpu"), plan, [sharder])


@pytest.mark.usefixtures("one_process")
def test_the_tables_of_a_sharded_collection_go_on_here(torchrec):
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

    from matrix_adagrad.interop.fbgemm import from_fbgemm

    model = sharded(collection(), torchrec.RowWiseAdagrad)

    def train_there(jagged, upstream):
        order = [jagged.keys().index(feature) for feature, _ in READ]  # it expects that of the first batch
        out = model(jagged.permute(order)).to_dict()
        (torch.cat([out[feature] for feature, _ in READ], dim=1) * upstream).sum().backward()

    batches = list(jagged_batches(6))
    for batch in batches[:3]:
        train_there(*batch)
    modules, features, optimizers = {}, {}, []
    for lookup in model.module._lookups:
        for group in lookup._emb_modules:
            assert isinstance(group.emb_module, SplitTableBatchedEmbeddingBagsCodegen)
            part, optimizer = from_fbgemm(group.emb_module, group.config.feature_names())
            modules |= part.to_modules()
            features |= part.features_by_table
            optimizers.append(optimizer)
    assert len(optimizers) == 2  # by modes
    bags = EmbeddingBags.from_modules({name: modules[name] for name in ROWS}, features)
    for batch in batches[3:]:
        train_there(*batch)
    train_on(bags, CombinedOptimizer(optimizers), batches[3:])
    expected = model.state_dict()
    for name, table in bags.tables.items():
        weight = expected[f"embedding_bags.{name}.weight"].local_tensor()
        torch.testing.assert_close(table.detach(), weight, rtol=1e-6, atol=1e-6)

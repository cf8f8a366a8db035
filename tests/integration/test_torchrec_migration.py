"""Runs move between TorchRec's RowWiseAdagrad and RowAdaGrad, and go on as if they had not moved, on random rows."""

import os

import pytest
import torch
from torch import nn

from matrix_adagrad import Blocks, ColumnAdaGrad, Factored, MatrixAdaGrad, RowAdaGrad, RowMomentum, SteepestDescent
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
    with pytest.raises(TypeError, match="optimizer must be an instance of RowWiseAdagrad, got Adagrad"):
        torchrec.from_torchrec(torch.optim.Adagrad(table()))
    with pytest.raises(TypeError, match=r"Factored\(.* does not partition"):
        torchrec.to_torchrec(MatrixAdaGrad(table(), geometry=Factored()))
    with pytest.raises(TypeError, match="optimizer must be an instance of MatrixAdaGrad, got SteepestDescent"):
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

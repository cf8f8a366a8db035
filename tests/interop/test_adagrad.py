"""From entries to rows and back: torch's Adagrad goes on here, and a run from here goes on there."""

import pytest
import torch
from torch.optim import Adagrad

from matrix_adagrad import Blocks, ColumnAdaGrad, Factored, MatrixAdaGrad, RowAdaGrad, RowMomentum
from matrix_adagrad.domains import RowBalls
from matrix_adagrad.interop.adagrad import from_adagrad, to_adagrad
from matrix_adagrad.interop.migration import regroup
from tests.interop.runs import (
    assert_bit_equal_states,
    assert_same_parameters,
    options_of,
    parameters,
    run,
)

SHAPES = [(7, 6), (9, 4), (5,), (6, 2, 3)]
OPTIONS = [
    {},
    {"lr": torch.tensor(0.2)},
    {"eps": 0.3},
    {"weight_decay": 0.1},
    {"initial_accumulator_value": 0.5},
    {"maximize": True, "foreach": True},
    {"fused": True},
]
COMMON = ("lr", "eps", "weight_decay", "initial_accumulator_value", "maximize", "foreach", "fused")
GEOMETRIES = ["row", "column", "entry", "whole", Blocks(columns=2), Blocks(rows=2, columns=1)]


@pytest.mark.parametrize("before", [0, 3], ids=["before the first step", "mid-run"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("make", "convert"),
    [(Adagrad, lambda theirs: from_adagrad(theirs, "entry")), (MatrixAdaGrad, to_adagrad)],
    ids=["from", "to"],
)
def test_by_entries_the_run_goes_on_as_it_was(make, convert, options, before):
    kept, moved = parameters(SHAPES), parameters(SHAPES)
    own = {"geometry": "entry"} if make is MatrixAdaGrad else {}
    unbroken, first = (
        make([{"params": p[:2]}, {"params": p[2:], "lr": 0.03, "eps": 1e-3}], **{"lr": 0.1, **own, **options})
        for p in (kept, moved)
    )
    run(unbroken, kept, range(before + 4), but=1)
    run(first, moved, range(before), but=1)
    run(convert(first), moved, range(before, before + 4), but=1)
    assert_same_parameters(moved, kept)
    assert not torch.equal(moved[0], parameters(SHAPES)[0])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_by_entries_there_and_back_is_the_same_bit_for_bit(options):
    params = parameters(SHAPES)
    named = [(f"p{i}", param) for i, param in enumerate(params)]
    theirs = Adagrad([{"params": named[:1], "lr": 0.3}, {"params": named[1:]}], **{"lr": 0.1, **options})
    run(theirs, params, range(3), but=2)
    ours = from_adagrad(theirs, "entry")
    back = to_adagrad(ours)
    for other in (ours, back):
        assert_bit_equal_states(other, theirs, params)
        assert options_of(other, COMMON) == options_of(theirs, COMMON)
        assert {name: other.defaults[name] for name in COMMON} == {name: theirs.defaults[name] for name in COMMON}
        assert all(p is q for g, h in zip(other.param_groups, theirs.param_groups, strict=True)
                   for p, q in zip(g["params"], h["params"], strict=True))  # fmt: skip
    before = theirs.state[params[0]]["sum"].clone()
    run(back, params, range(1))
    assert torch.equal(theirs.state[params[0]]["sum"], before), "the state is a copy"


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_from_entries_the_state_is_that_of_a_run_by_the_geometry_on_the_same_gradients(geometry, reduction):
    shapes = [(8, 6), (10, 4), (5,), (6, 2, 3)]
    params, twins = parameters(shapes), parameters(shapes)
    entries = Adagrad(params, initial_accumulator_value=0.25)
    run(entries, params, range(5))
    ours = from_adagrad(entries, geometry, reduction)
    own = ours.param_groups[0]["geometry"]
    start = [0.25 * (own.members(twin.shape) if reduction == "sum" else 1) for twin in twins]
    groups = [{"params": [twin], "initial_accumulator_value": value} for twin, value in zip(twins, start, strict=True)]
    alone = MatrixAdaGrad(groups, geometry=geometry, reduction=reduction)
    run(alone, twins, range(5))
    for param, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(ours.state[param]["sum"], alone.state[twin]["sum"], rtol=1e-6, atol=0)
        assert ours.state[param]["step"] == 5


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_blocks_to_entries_and_back_is_exact_and_keeps_the_sums(geometry):
    params = parameters([(8, 6), (4, 14), (3,)])
    blocks = MatrixAdaGrad(params, geometry=geometry, reduction="mean", lr=0.1)
    run(blocks, params, range(3))
    entries = to_adagrad(blocks)
    for param in params:
        squares = entries.state[param]["sum"]
        assert squares.shape == param.shape
        own = blocks.param_groups[0]["geometry"]
        total = own.members(param.shape) * blocks.state[param]["sum"].sum()
        torch.testing.assert_close(squares.sum(), total, rtol=1e-6, atol=0)
    back = from_adagrad(entries, geometry)
    assert_bit_equal_states(back, blocks, params)
    assert options_of(back, (*COMMON, "geometry", "reduction")) == options_of(
        blocks, (*COMMON, "geometry", "reduction")
    )


def test_the_sum_goes_to_entries_and_back_to_rounding_and_where_roots_are_exact_bit_for_bit():
    for shapes, exact in (([(8, 16), (5, 4)], True), ([(8, 7), (5, 3)], False)):
        params = parameters(shapes)
        rows = RowAdaGrad([("a", params[0]), ("b", params[1])], lr=0.1, initial_accumulator_value=0.3)
        run(rows, params, range(3))
        back = from_adagrad(to_adagrad(rows), reduction="sum")
        assert [group["param_names"] for group in back.param_groups] == [["a"], ["b"]]
        for param, group in zip(params, back.param_groups, strict=True):
            given = {"rtol": 0, "atol": 0} if exact else {"rtol": 2e-7, "atol": 0}
            torch.testing.assert_close(back.state[param]["sum"], rows.state[param]["sum"], **given)
            for name in ("lr", "eps", "initial_accumulator_value"):
                assert group[name] == pytest.approx(rows.defaults[name], rel=0 if exact else 1e-15, abs=0)


def test_the_sum_takes_the_steps_of_the_mean_with_a_group_for_each_width():
    shapes = [(7, 6), (9, 6), (5, 4), (8,)]
    entries = [Adagrad(params, lr=0.1, eps=0.5) for params in (parameters(shapes), parameters(shapes))]
    mean, total = (from_adagrad(run, reduction=kind) for run, kind in zip(entries, ("mean", "sum"), strict=True))
    ends = []
    for optimizer, theirs in ((mean, entries[0]), (total, entries[1])):
        params = theirs.param_groups[0]["params"]
        run(optimizer, params, range(6))
        ends.append(params)
    assert_same_parameters(*ends)
    found = [(group["lr"], [tuple(param.shape) for param in group["params"]]) for group in total.param_groups]
    assert found == [(0.1 * 6**0.5, [(7, 6), (9, 6)]), (0.2, [(5, 4)]), (0.1, [(8,)])]


def test_decoupled_weight_decay_stays_the_same_share_of_the_weights():
    kept, moved = parameters([(7, 6)]), parameters([(7, 6)])
    options = {"lr": 0.3, "eps": 0.1, "weight_decay": 0.5, "decoupled_weight_decay": True}
    unbroken = RowAdaGrad(kept, **options)
    run(unbroken, kept, range(5))
    run(RowAdaGrad(regroup(RowAdaGrad(moved, **options).param_groups[0], "mean")), moved, range(5))
    assert_same_parameters(moved, kept)


def test_what_schedulers_keep_in_a_group_is_scaled_with_the_learning_rate():
    rows = RowAdaGrad(parameters([(7, 4)]), lr=0.2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(rows, 0.5)
    rows.step()
    scheduler.step()
    rows.param_groups[0].update(max_lr=0.4, min_lr=0.02)
    (group,) = to_adagrad(rows).param_groups
    assert [group[key] for key in ("lr", "initial_lr", "max_lr", "min_lr")] == [0.05, 0.1, 0.2, 0.01]


def test_decoupled_decay_of_nothing_is_carried_over():
    assert to_adagrad(RowAdaGrad(a_parameter(), decoupled_weight_decay=True)).param_groups[0]["weight_decay"] == 0


def test_a_parameter_that_torch_has_no_state_for_starts_where_torch_starts_it():
    kept, moved = parameters([(7, 6), (4, 5)]), parameters([(7, 6), (4, 5)])
    results = []
    for params, convert in ((kept, lambda theirs: theirs), (moved, lambda theirs: from_adagrad(theirs, "entry"))):
        theirs = Adagrad(params[:1], lr=0.1, initial_accumulator_value=0.7)
        theirs.add_param_group({"params": params[1:], "initial_accumulator_value": 50.0})  # torch ignores this one
        run(convert(theirs), params, range(2))
        results.append(params)
    assert_same_parameters(*results)


@pytest.mark.parametrize("convert", [lambda ours: from_adagrad(to_adagrad(ours), "entry"), to_adagrad])
def test_a_tensor_as_learning_rate_is_copied_for_schedulers_write_into_it(convert):
    ours = MatrixAdaGrad(a_parameter(), torch.tensor(0.1), geometry="entry", reduction="mean")
    moved = convert(ours)
    for lr in (moved.param_groups[0]["lr"], moved.defaults["lr"]):
        lr.fill_(0.5)
    assert ours.param_groups[0]["lr"] == ours.defaults["lr"] == torch.tensor(0.1)


@pytest.mark.parametrize("geometry", ["entry", "row"])
def test_narrow_sums_are_taken_over_as_they_are_and_go_on_wide(geometry):
    weight = torch.nn.Parameter(parameters([(7, 6)])[0].detach().bfloat16())
    entries = Adagrad([weight], lr=0.1)
    run(entries, [weight], range(3))
    found = from_adagrad(entries, geometry).state[weight]["sum"]
    squares = entries.state[weight]["sum"].float()
    assert found.dtype is torch.float32
    torch.testing.assert_close(
        found, squares if geometry == "entry" else squares.mean(1, keepdim=True), rtol=1e-6, atol=0
    )


def a_parameter():
    return parameters([(4, 4)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: from_adagrad(Adagrad(a_parameter(), lr_decay=0.1)), "lr_decay=0.1 .* use a scheduler"),
        (lambda: from_adagrad(Adagrad(a_parameter(), differentiable=True)), "differentiable=True"),
        (lambda: from_adagrad(Adagrad([torch.nn.Parameter(torch.ones(2, 2) + 1j)])), "parameter 0 is torch.complex64"),
        (lambda: from_adagrad(Adagrad(a_parameter()), "diagonal"), "geometry must be one of"),
        (lambda: from_adagrad(Adagrad(a_parameter()), reduction="max"), "reduction must be 'sum' or 'mean', got 'max'"),
        (lambda: to_adagrad(RowAdaGrad(a_parameter(), domain=RowBalls(100.0))), "domain=.* never projects"),
        (
            lambda: to_adagrad(RowAdaGrad(a_parameter(), weight_decay=0.1, decoupled_weight_decay=True)),
            "decoupled_.*=True",
        ),
        (lambda: to_adagrad(RowAdaGrad(a_parameter(), capturable=True)), "capturable=True"),
        (lambda: to_adagrad(ColumnAdaGrad(a_parameter(), differentiable=True)), "differentiable=True"),
        (lambda: to_adagrad(RowAdaGrad(a_parameter(), eps=0)), "eps=0 .* 0/0 is NaN there"),
        (
            lambda: to_adagrad(RowAdaGrad([a_parameter()[0].detach().bfloat16().requires_grad_()])),
            "0 is torch.bfloat16",
        ),
    ],
)
def test_what_cannot_be_carried_over_is_refused_by_name(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_other_optimizers_are_refused():
    with pytest.raises(TypeError, match="optimizer must be an instance of Adagrad, got SGD"):
        from_adagrad(torch.optim.SGD(a_parameter(), lr=0.1))
    with pytest.raises(TypeError, match=r"Factored\(.* does not partition"):
        to_adagrad(MatrixAdaGrad(a_parameter(), geometry=Factored(), reduction="mean"))
    with pytest.raises(TypeError, match="optimizer must be an instance of MatrixAdaGrad, got RowMomentum"):
        to_adagrad(RowMomentum(a_parameter()))

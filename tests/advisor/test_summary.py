"""What a summary says is what the gradients say, all of which a plain reference keeps."""

import math

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad.advisor import Probe
from matrix_adagrad.advisor.squared_gradients import BINS, WINDOWS, SquaredGradients

STEPS = 13
EXACT = {"rel": 1e-5, "abs": 1e-9}  # but for the order of sums


class Model(nn.Module):
    def __init__(self, *params):
        super().__init__()
        for i, param in enumerate(params):
            self.register_parameter(f"p{i}", param)


def random(shape, seed, dtype=torch.float64):
    """Rows and columns differ by orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=dtype if dtype.is_complex else torch.float64)
    for d, size in enumerate(shape):
        along = [1] * len(shape)
        along[d] = size
        x = x * 10 ** torch.rand(along, generator=generator, dtype=torch.float64)
    return x.to(dtype)


def gradients(shape, dtype=torch.float64, steps=STEPS):
    """Late in the run another row leads; one is always silent, one at every second step, and one explodes."""
    found = [random(shape, seed, dtype) for seed in range(steps)]
    for t, grad in enumerate(found):
        if len(shape) and shape[0] > 3:
            grad[0] *= 0
            grad[1] *= t % 2
            grad[2] *= 100 if t >= 4 else 1  # the last two powers of 2 are 4 and 8
            grad[3] *= 30 if t < 4 else 1
    return found


def observe(param, grads, lr=0.1):
    """The summary after plain gradient descent; and the parameter's values before each step, and at the end."""
    optimizer = torch.optim.SGD([param], lr=lr)
    values = [param.detach().clone()]
    with Probe(Model(param), optimizer, every=1) as probe:
        for grad in grads:
            param.grad = grad
            optimizer.step()
            values.append(param.detach().clone())
    return probe.report()["p0"], values


def matrix(x):
    return x.reshape(len(x), -1) if x.dim() > 1 else x.reshape(-1, 1)


def participation(v):
    return float(v.sum() ** 2 / (v.numel() * v.square().sum()))


def overlap(early, late):
    return float((early / early.sum() * late / late.sum()).sqrt().sum())


def reference(grads, values):
    """Every number of a summary, from all entries of all gradients."""
    G = torch.stack([matrix(grad) for grad in grads]).to(torch.complex128 if grads[0].is_complex() else torch.float64)
    squares = G.abs().square()
    V, early, late = squares.sum(0), squares[:4].sum(0), squares[4:].sum(0)
    m, n = V.shape
    # A vector has one scale for each entry, but for "whole".
    by_column = V.sum(0) if grads[0].dim() > 1 else V.sum(1)
    sums = {"row": V.sum(1), "column": by_column, "entry": V.flatten(), "whole": V.sum()[None]}
    S = {key: float(v.sqrt().sum()) for key, v in sums.items()}
    end = matrix(values[-1]).to(G.dtype).abs().square()
    lengths = {"row": end.sum(1), "column": end.sum(0 if grads[0].dim() > 1 else 1), "entry": end, "whole": end.sum()}
    had = squares.sum(2, keepdim=True) > 0
    X = torch.stack([matrix(value) for value in values]).to(G.dtype)
    moved, weights = ((had * x.abs().square()).sum() for x in (X[1:] - X[:-1], X[:-1]))
    before, after = early.sum(1) / 4, late.sum(1) / (len(grads) - 4)
    along = 0 if grads[0].dim() > 1 else 1
    return {
        "participation": (participation(V.sum(1)), participation(by_column), participation(V)),
        "inactive": (
            float((squares.sum(2) == 0).double().mean()),
            float((squares.sum(1 + along) == 0).double().mean()),
        ),
        "drift": (1 - overlap(early.sum(1), late.sum(1)), 1 - overlap(early.sum(along), late.sum(along))),
        "agreement": {key: S["entry"] / (math.sqrt(m * n / len(v)) * S[key]) for key, v in sums.items()},
        "gradient_norm": S,
        "weight_norm": {key: math.sqrt(float(x.max())) for key, x in lengths.items()},
        "update_ratio": math.sqrt(float(moved / weights)),
        "dead": int((V.sum(1) == 0).sum()),
        "exploding": int(((before > 0) & (after > 100 * before)).sum()),
    }


def told(summary):
    """The same numbers of a summary."""
    return {
        "participation": (summary.rows.participation, summary.columns.participation, summary.entry_participation),
        "inactive": (summary.rows.inactive, summary.columns.inactive),
        "drift": (summary.rows.drift, summary.columns.drift),
        **{
            key: getattr(summary, key)
            for key in ("agreement", "gradient_norm", "weight_norm", "update_ratio", "dead", "exploding")
        },
    }


def assert_equal(mine, theirs, **tolerance):
    for key, value in theirs.items():
        assert mine[key] == pytest.approx(value, **tolerance), key


@pytest.mark.parametrize("shape", [(12, 5), (5, 8), (3, 40), (9, 2, 2, 2), (7,), (), (1, 6), (6, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex128], ids=str)
def test_every_number_is_exact_if_the_sample_covers_all_entries(shape, dtype):
    grads = gradients(shape, dtype)
    summary, values = observe(Parameter(random(shape, 100, dtype)), grads)
    assert (summary.shape, summary.steps, summary.observed, summary.nonfinite) == (shape, STEPS, STEPS, 0)
    assert_equal(told(summary), reference(grads, values), **EXACT)
    assert summary.bound == pytest.approx(
        {key: summary.gradient_norm[key] * summary.weight_norm[key] for key in summary.weight_norm}
    )
    if len(shape) and shape[0] > 3:
        assert summary.dead == summary.exploding == 1
        assert summary.rows.inactive >= 1.5 / shape[0]
        assert summary.rows.drift > 0.05


def test_sums_of_rows_and_columns_are_exact_even_if_entries_are_sampled():
    grads = gradients((60, 90), steps=STEPS)
    summary, values = observe(Parameter(random((60, 90), 100)), grads)
    expected = reference(grads, values)
    for name in ("row", "column", "whole"):
        assert summary.gradient_norm[name] == pytest.approx(expected["gradient_norm"][name], **EXACT)
    assert summary.weight_norm == pytest.approx(expected["weight_norm"], **EXACT)
    mine = told(summary)
    assert mine["participation"][:2] == pytest.approx(expected["participation"][:2], **EXACT)
    for key in ("inactive", "drift", "dead", "exploding"):
        assert mine[key] == pytest.approx(expected[key], **EXACT), key


@pytest.mark.parametrize("along", ["rows", "columns", "both", "neither"])
def test_a_sample_reveals_the_structure_of_a_large_matrix(along):
    m, n = 300, 200
    a, b = 10 ** (2 * torch.rand(m, 1)), 10 ** (2 * torch.rand(1, n))
    planted = {"rows": a, "columns": b, "both": a * b, "neither": torch.ones(1, 1)}
    grads = [(torch.randn(m, n) * planted[along]).double() for _ in range(10)]
    summary, values = observe(Parameter(random((m, n), 100)), grads)
    expected = reference(grads, values)
    # m·8 entries stand for all: their mean is off by 1/√(8m) of an entry's spread, here 2 % of about its mean, for S;
    # fourth powers of gradients spread more.
    assert summary.agreement == pytest.approx(expected["agreement"], rel=0.1)
    assert summary.update_ratio == pytest.approx(expected["update_ratio"], rel=0.1)
    assert summary.entry_participation == pytest.approx(expected["participation"][2], rel=0.3)
    assert (summary.agreement["row"] > 0.95) == (along in ("rows", "neither"))
    assert (summary.agreement["column"] > 0.95) == (along in ("columns", "neither"))


def test_rows_are_the_columns_of_the_transpose():
    grads = gradients((30, 20))
    start = random((30, 20), 100)
    summary, _ = observe(Parameter(start.clone()), grads)
    other, _ = observe(Parameter(start.T.contiguous()), [grad.T.contiguous() for grad in grads])
    lying, _ = observe(Parameter(start.T), [grad.T for grad in grads])
    for key in ("participation", "inactive", "drift"):
        assert getattr(summary.rows, key) == pytest.approx(getattr(other.columns, key))
        assert getattr(summary.columns, key) == pytest.approx(getattr(other.rows, key))
    for ours, theirs in (("row", "column"), ("column", "row"), ("whole", "whole")):
        assert summary.gradient_norm[ours] == pytest.approx(other.gradient_norm[theirs])
        assert summary.weight_norm[ours] == pytest.approx(other.weight_norm[theirs])
    assert_equal(told(lying), told(other), **EXACT)


def test_the_memory_order_of_dimensions_does_not_matter():
    start, grads = random((8, 6, 5, 5), 100), gradients((8, 6, 5, 5))
    summary, _ = observe(Parameter(start.clone()), grads)
    last = {"memory_format": torch.channels_last}
    other, _ = observe(Parameter(start.contiguous(**last)), [grad.contiguous(**last) for grad in grads])
    assert_equal(told(other), told(summary), **EXACT)


@pytest.mark.parametrize("width", [6, 40], ids=["all entries", "a sample"])
def test_sparse_gradients_are_observed_like_dense_ones(width):
    start, dense, sparse = random((9, width), 100), [], []
    for t in range(STEPS):
        rows = torch.randint(9, (5 * (t != 3),), generator=torch.Generator().manual_seed(t))  # repeated; once none
        values = random((len(rows), width), t)
        sparse.append(torch.sparse_coo_tensor(rows[None], values, (9, width), check_invariants=True))
        dense.append(sparse[-1].to_dense())
    summary, _ = observe(Parameter(start.clone()), dense)
    other, _ = observe(Parameter(start.clone()), sparse)
    everything, _ = observe(Parameter(start.clone()), [grad.to_sparse() for grad in dense])  # sparse in both dimensions
    assert_equal(told(other), told(summary), **EXACT)
    assert_equal(told(everything), told(summary), **EXACT)
    for mine, theirs in zip(
        summary.rows.history + summary.columns.history, other.rows.history + other.columns.history, strict=True
    ):
        assert mine == pytest.approx(theirs)
    assert not sparse[0].is_coalesced()  # as it was


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,)], ids=str)
def test_parameters_without_entries_have_a_summary(shape):
    summary, _ = observe(Parameter(torch.zeros(shape)), [torch.zeros(shape)] * 3)
    assert (summary.observed, summary.nonfinite, summary.update_ratio, summary.gradient_norm["entry"]) == (
        3,
        0,
        0.0,
        0.0,
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_gradients_are_counted_and_change_nothing_else(bad):
    grads, start = gradients((6, 4)), random((6, 4), 100)
    clean, _ = observe(Parameter(start.clone()), grads, lr=0.0)
    broken = grads[0].clone()
    broken[3, 2] = bad
    param = Parameter(start.clone())
    optimizer = torch.optim.SGD([param], lr=0.0)
    with Probe(Model(param), optimizer, every=1) as probe:
        for grad in [*grads, broken, broken]:
            param.grad = grad
            optimizer.step()
            param.data.copy_(start)  # lr 0 times infinity is not a number
    summary = probe.report()["p0"]
    assert (summary.steps, summary.observed, summary.nonfinite) == (STEPS + 2, STEPS + 2, 2)
    assert summary.rows.participation == clean.rows.participation
    assert (summary.rows.inactive, summary.columns.inactive) == (clean.rows.inactive, clean.columns.inactive)
    assert (summary.rows.drift, summary.dead, summary.exploding) == (clean.rows.drift, clean.dead, clean.exploding)
    assert summary.agreement == pytest.approx(clean.agreement)
    # As ever, what was seen stands for what was not.
    more = math.sqrt((STEPS + 2) / STEPS)
    assert summary.gradient_norm == pytest.approx({key: value * more for key, value in clean.gradient_norm.items()})


def test_tiny_gradients_have_the_same_spread_as_large_ones():
    grads = gradients((6, 4), torch.float32)
    summary, _ = observe(Parameter(random((6, 4), 100, torch.float32)), grads)
    tiny, _ = observe(Parameter(random((6, 4), 100, torch.float32)), [grad * 1e-13 for grad in grads])
    assert tiny.entry_participation == pytest.approx(summary.entry_participation, rel=1e-4)
    assert tiny.agreement == pytest.approx(summary.agreement, rel=1e-4)


def test_the_history_stays_bounded_and_contains_all_squared_gradients():
    squared = SquaredGradients(torch.zeros(100, 3))
    for t in range(10_000):
        squared.add(squared.observe(torch.full((100, 3), 1.0 + (t >= 5000))))
        assert len(squared.history) <= 2 * WINDOWS
    assert len(squared.history) >= WINDOWS
    assert sum(window.observations for window in squared.history) == 10_000
    assert max(len(window.rows) for window in squared.history) <= BINS
    assert float(sum(window.rows.sum() for window in squared.history)) == 300 * 5000 * (1 + 4)
    levels = [float(window.rows[0] / window.finite) for window in squared.history]
    assert levels[0] == 3 * 3
    assert levels[-1] == 3 * 3 * 4

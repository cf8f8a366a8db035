"""Batches of tensors and rules for them, drawn and fixed, that the tests of single steps share."""

import torch
from hypothesis import strategies as st

from matrix_adagrad.geometry import Blocks, Column, Entry, Geometry, Row, Whole, wide_dtype
from matrix_adagrad.optim.step import Batch, Rule, seen
from tests.optim.training import assert_bitwise

GEOMETRIES = (Row(), Column(), Entry(), Whole(), Blocks(rows=2), Blocks(columns=2), Blocks(rows=1, columns=2))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# One unit in the last place of a narrow parameter, and what sums in another order differ by.
TOLERANCE = {
    torch.float32: (3e-6, 1e-6),
    torch.float64: (1e-12, 1e-13),
    torch.bfloat16: (2**-7, 1e-6),
    torch.float16: (2**-9, 1e-6),
}
sizes = st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 33, 64, 65, 130, 520]))


@st.composite
def rules(draw, geometries=GEOMETRIES):
    momentum = draw(st.booleans())
    return Rule(
        geometry=draw(st.sampled_from(geometries)),
        reduction=draw(st.sampled_from(["sum", "mean"])),
        lr=draw(st.sampled_from([0.1, 1e-3])),
        eps=draw(st.sampled_from([0.0, 1e-10, 0.1])),
        betas=draw(st.sampled_from([(0.9, 0.99), (0.0, 0.5), (0.5, 0.0)])) if momentum else None,
        bias_correction=momentum and draw(st.booleans()),
        weight_decay=draw(st.sampled_from([0.0, 0.0, 0.1])),
        decoupled_weight_decay=draw(st.booleans()),
        maximize=draw(st.booleans()),
        stochastic_rounding=False,
        capturable=False,
    )


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "every other column": lambda x: torch.stack([x, x], -1)[..., 0],
    "every other row": lambda x: torch.stack([x, x], 1)[:, 0],
    "transposed, with gaps": lambda x: torch.stack([x.t(), x.t()], -1)[..., 1].t(),
    "offset": lambda x: torch.cat([x.flatten(), x.flatten()])[x.numel() :].view(x.shape),
}
layouts = st.sampled_from(sorted(LAYOUTS))


def spread(shape, seed, dtype):
    """Normal numbers over some orders of magnitude, rounded to the dtype."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=random, dtype=torch.float64)
    return (x * 10 ** torch.rand(shape, generator=random, dtype=torch.float64)).to(dtype)


def state_of(params, grads, rule):
    wide = [wide_dtype(param.dtype) for param in params]
    batch = Batch(
        params,
        grads,
        [torch.zeros_like(p, dtype=w) for p, w in zip(params, wide, strict=True)] if rule.betas else [],
        [torch.zeros(rule.geometry.statistic_shape(p.shape), dtype=w) for p, w in zip(params, wide, strict=True)],
        [torch.zeros(()) for _ in params],
        rule.members(params),
        [False] * len(params),
        list(range(len(params))),
    )
    return batch if any(grad.is_sparse for grad in grads) else seen(batch, rule.geometry)


def copied(batch):
    """A batch of its own memory, and of the same layout."""
    tensors = [[x.detach().clone() if x.is_sparse else _with_gaps(x) for x in tensors] for tensors in batch[:5]]
    return Batch(*tensors, *batch[5:])


def _with_gaps(x):
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).clone()
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())


def written(batch):
    return [*batch.params, *batch.averages, *batch.statistics, *batch.steps]


def assert_close(one, two):
    for a, b in zip(written(one), written(two), strict=True):
        rtol, atol = TOLERANCE[a.dtype]
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def assert_equal(one, two):
    assert_bitwise(written(one), written(two))


@st.composite
def batches(draw):
    rule, dtype = draw(rules()), draw(st.sampled_from(DTYPES))
    params, grads = [], []
    for seed in range(draw(st.integers(1, 3))):
        m, n = 2 * draw(sizes), 2 * draw(sizes)
        params.append(LAYOUTS[draw(layouts)](spread((m, n), seed, dtype)))
        grads.append(LAYOUTS[draw(layouts)](spread((m, n), 100 + seed, dtype)))
    return state_of(params, grads, rule), rule


def a_rule(geometry: Geometry, **options):
    given = {"reduction": "sum", "lr": 0.1, "eps": 1e-10, "betas": None, "bias_correction": False, "weight_decay": 0.0}
    flags = {"decoupled_weight_decay": False, "maximize": False, "stochastic_rounding": False, "capturable": False}
    return Rule(**{"geometry": geometry, **given, **flags, **options})

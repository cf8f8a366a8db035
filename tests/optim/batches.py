"""Updates and configurations for them, drawn and fixed, that the tests of single steps share."""

from dataclasses import replace

import torch
from hypothesis import strategies as st

from matrix_adagrad.geometry import Blocks, Column, Entry, Factored, Geometry, Partition, Row, Whole, wide_dtype
from matrix_adagrad.native.matrices import NotCoveredError
from matrix_adagrad.optim.step.config import MatrixAdaGradConfig, MatrixMomentumConfig, SteepestConfig
from matrix_adagrad.optim.step.dispatch import NATIVE, REFERENCE, SPARSE, STEEPEST
from matrix_adagrad.optim.step.update import Update
from tests.optim.training import assert_bitwise

FACTORED = (Factored(), Factored("geometric"), Factored("minimum"))
KINDS = (Row(), Column(), Entry(), Whole(), *FACTORED)  # that have a kernel of their own
PARTITIONS = (*KINDS[:4], Blocks(rows=2), Blocks(columns=2), Blocks(rows=1, columns=2))
GEOMETRIES = (*PARTITIONS, *FACTORED)
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
def configs(draw, geometries=GEOMETRIES, families=("adagrad", "momentum", "steepest"), floors=(0.0, 0.0, 0.5)):
    options = {
        "geometry": draw(st.sampled_from(geometries)),
        "lr": draw(st.sampled_from([0.1, 1e-3])),
        "weight_decay": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "decoupled_weight_decay": draw(st.booleans()),
        "maximize": draw(st.booleans()),
    }
    has_norm = isinstance(options["geometry"], Partition)
    family = draw(st.sampled_from([family for family in families if has_norm or family != "steepest"]))
    if family == "steepest":
        options |= {"scale": draw(st.sampled_from(["rms", None])), "floor": draw(st.sampled_from(floors))}
        return SteepestConfig(momentum=draw(st.sampled_from([0.9, 0.5, 0.0])), nesterov=draw(st.booleans()), **options)
    options |= {
        "reduction": draw(st.sampled_from(["sum", "mean"])),
        "eps": draw(st.sampled_from([0.0, 1e-10, 0.1])),
    }
    if family == "adagrad":
        return MatrixAdaGradConfig(**options)
    betas = draw(st.sampled_from([(0.9, 0.99), (0.0, 0.5), (0.5, 0.0)]))
    flags = {"bias_correction": draw(st.booleans()), "nesterov": draw(st.booleans())}
    return MatrixMomentumConfig(betas=betas, **flags, **options)


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


class Batch(list):
    """Updates, and their tensors list by list."""

    @property
    def params(self):
        return [update.param for update in self]

    @property
    def grads(self):
        return [update.grad for update in self]

    @property
    def averages(self):
        return [update.average for update in self if update.average is not None]

    @property
    def statistics(self):
        return [v for update in self for v in update.statistics]

    def replaced(self, change):
        """With other tensors of full size, and other statistics."""
        return Batch(
            replace(
                update,
                param=change(update.param),
                grad=change(update.grad),
                average=None if update.average is None else change(update.average),
                statistics=tuple(map(change, update.statistics)),
            )
            for update in self
        )


def state_of(params, grads, config):
    batch, geometry = Batch(), config.geometry
    for number, (param, grad) in enumerate(zip(params, grads, strict=True)):
        wide = wide_dtype(param.dtype)
        average = torch.zeros_like(param, dtype=wide) if config.keeps_average else None
        is_steepest = isinstance(config, SteepestConfig)
        shapes = () if is_steepest else geometry.statistic_shapes(param.shape)
        statistics = tuple(torch.zeros(shape, dtype=wide) for shape in shapes)
        members = geometry.entries(param.shape) if config.reduction == "mean" else (1,) * len(statistics)
        divisors = tuple(max(1, number) for number in members)
        stream = number + 1 if config.stochastic_rounding else 0
        update = Update(param, grad, average, statistics, torch.zeros(()), geometry, divisors, stream)
        batch.append(update if grad.is_sparse or is_steepest else update.viewed())
    return batch


def fused(batch, config):
    """A step in the kernels; `NotCoveredError` if they do not cover it."""
    described(batch, config)
    NATIVE.step(batch, config)


def described(batch, config):
    for update in batch:
        update.prepared = None
        if reason := NATIVE.reason_against(update, config):
            raise NotCoveredError(reason)


def reference(batch, config):
    (STEEPEST if isinstance(config, SteepestConfig) else REFERENCE).step(batch, config)


def sparse(batch, config):
    (STEEPEST if isinstance(config, SteepestConfig) else SPARSE).step(batch, config)


def copied(batch):
    """A batch of its own memory, and of the same layout."""

    def copy(x):
        return x.detach().clone() if x.is_sparse else _with_gaps(x)

    return Batch(replace(update, step=update.step.clone(), prepared=None) for update in batch.replaced(copy))


def _with_gaps(x):
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).clone()
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())


def written(batch):
    statistics = [statistic for update in batch for statistic in update.statistics]
    return [*batch.params, *batch.averages, *statistics, *(update.step for update in batch)]


def assert_close(batch, expected):
    """Equal up to rounding. Sums of n squares in another order differ by some √n roundings."""
    entries = max((update.param.numel() / max(1, v.numel()) for update in batch for v in update.statistics), default=1)
    for a, b in zip(written(batch), written(expected), strict=True):
        rtol, atol = TOLERANCE[a.dtype]
        rounding = torch.finfo(torch.promote_types(a.dtype, torch.float32)).eps
        torch.testing.assert_close(a, b, rtol=max(rtol, rounding * entries**0.5), atol=atol)


def assert_equal(batch, expected):
    assert_bitwise(written(batch), written(expected))


@st.composite
def batches(draw, **choices):
    config, dtype = draw(configs(**choices)), draw(st.sampled_from(DTYPES))
    params, grads = [], []
    for seed in range(draw(st.integers(1, 3))):
        m, n = 2 * draw(sizes), 2 * draw(sizes)
        params.append(LAYOUTS[draw(layouts)](spread((m, n), seed, dtype)))
        grads.append(LAYOUTS[draw(layouts)](spread((m, n), 100 + seed, dtype)))
    return state_of(params, grads, config), config


def a_config(geometry: Geometry, betas=None, bias_correction=False, momentum=None, **options):
    if momentum is not None:
        return SteepestConfig(geometry=geometry, lr=0.1, momentum=momentum, **options)
    given = {"geometry": geometry, "lr": 0.1, "eps": 1e-10, **options}
    if betas is None:
        return MatrixAdaGradConfig(**given)
    return MatrixMomentumConfig(betas=betas, bias_correction=bias_correction, **given)

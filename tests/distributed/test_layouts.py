"""A run on any layout gives the result of a single process."""

import functools

import pytest
import torch
from torch.distributed.tensor import Shard
from torch.nn import Parameter

from matrix_adagrad import Batched, Blocks, Factored, Full, MatrixAdaGrad, MatrixMomentum, Spectral, SteepestDescent
from matrix_adagrad.domains import ColumnBalls, FrobeniusBall, NonNegative, RowBalls, RowSimplex
from matrix_adagrad.geometry import Column, Entry, Row, Whole
from matrix_adagrad.torch_private import StridedShard
from tests.distributed.layouts import LAYOUTS, Layout, assert_follows, mesh_of, shared_out
from tests.optim.own_geometries import FullRows, RelativeToMean, RowPlusColumn, SumOfPartitions

GEOMETRIES = (
    *(Row(), Column(), Entry(), Whole()),
    *(Blocks(rows=2), Blocks(columns=2), Blocks(rows=2, columns=None), Batched(Row())),
)
OPTIMIZERS = (MatrixAdaGrad, MatrixMomentum)
MOST_MIXED = Layout((2, 2), (StridedShard(0, split_factor=2), Shard(0)))
SETTINGS = (
    {"reduction": "mean"},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
    {"eps": 0.0},
    {"capturable": True},
    {"foreach": True},
    {"foreach": False, "fused": False},
    {"fused": True},
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_run_on_any_layout_matches_a_single_process(ranks, layout, geometry, optimizer):
    ranks.run(layout.world, assert_follows, functools.partial(optimizer, lr=0.1, geometry=geometry), layout)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("geometry", [Row(), Column(), Blocks(rows=2)], ids=str)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_with_every_option(ranks, setting, geometry, optimizer):
    make = functools.partial(optimizer, lr=0.1, geometry=geometry, **setting)
    for layout in (Layout((3,), (Shard(0),)), MOST_MIXED):
        ranks.run(layout.world, assert_follows, make, layout, 5)


WITHOUT_AVERAGE = functools.partial(MatrixMomentum, betas=(0.0, 0.9))
PAIRS = {  # each geometry and each optimizer; all optimizers in the first
    "factored-AdaGrad": (Factored(), MatrixAdaGrad),
    "factored-momentum": (Factored(), MatrixMomentum),
    "factored-no average": (Factored(), WITHOUT_AVERAGE),
    "geometric-AdaGrad": (Factored("geometric"), MatrixAdaGrad),
    "minimum-momentum": (Factored("minimum"), MatrixMomentum),
    "sum-no average": (SumOfPartitions(), WITHOUT_AVERAGE),
}


@pytest.mark.parametrize(("geometry", "optimizer"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_scales_from_several_partitions_match_a_single_process_on_any_layout(ranks, layout, geometry, optimizer):
    ranks.run(layout.world, assert_follows, functools.partial(optimizer, lr=0.1, geometry=geometry), layout)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(
    "setting", [it for it in SETTINGS if True not in (it.get("foreach"), it.get("fused"))], ids=str
)
def test_scales_from_several_partitions_with_every_option(ranks, setting, optimizer):
    make = functools.partial(optimizer, lr=0.1, geometry=Factored(), **setting)
    for layout in (Layout((3,), (Shard(0),)), MOST_MIXED):
        ranks.run(layout.world, assert_follows, make, layout, 5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("geometry", [RowPlusColumn(), RelativeToMean(), FullRows()], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_geometry_that_needs_the_whole_gradient_gathers_it(ranks, layout, geometry, optimizer):
    make = functools.partial(optimizer, lr=0.1, geometry=geometry, eps=1e-3)
    ranks.run(layout.world, assert_follows, make, layout, 5, [(12, 8), (8, 2), (2, 14), (7,), ()])


BEYOND_PARTITIONS = (
    *((cls, {"geometry": Full("row", every=2), "eps": 1e-3}) for cls in OPTIMIZERS),
    (MatrixMomentum, {"geometry": Row(), "betas": (0.0, 0.9)}),
    *((SteepestDescent, {"geometry": own}) for own in (Row(), Column(), Entry(), Blocks(rows=2), Spectral())),
    (SteepestDescent, {"geometry": Row(), "floor": 0.1}),
    *((SteepestDescent, {"geometry": own, "rescale": Row()}) for own in (Row(), Spectral())),
    (SteepestDescent, {"geometry": Spectral(), "rescale": Column(), "momentum": 0.0, "scale": None}),
)
DIFFERENT_LAYOUTS = (
    Layout((2,), (Shard(0),)),
    Layout((4,), (Shard(0),)),
    Layout((4,), (Shard(1),)),
    Layout((2, 2), (Shard(0), Shard(1))),
    MOST_MIXED,
)


@pytest.mark.parametrize("layout", DIFFERENT_LAYOUTS, ids=str)
@pytest.mark.parametrize(("cls", "options"), BEYOND_PARTITIONS, ids=lambda it: getattr(it, "__name__", str(it)))
def test_geometries_beyond_partitions_and_steepest_descent_match_a_single_process(ranks, cls, options, layout):
    ranks.run(layout.world, assert_follows, functools.partial(cls, lr=0.1, **options), layout, 5)


@pytest.mark.parametrize("layout", [Layout((3,), (Shard(0),)), Layout((2,), (Shard(1),)), MOST_MIXED], ids=str)
@pytest.mark.parametrize("geometry", [RowPlusColumn(), Factored()], ids=str)
@pytest.mark.parametrize("domain", [FrobeniusBall(3.0), RowBalls(2.0), NonNegative()], ids=str)
def test_a_geometry_that_is_no_partition_with_a_domain(ranks, domain, geometry, layout):
    options = {"geometry": geometry, "domain": domain, "project_start": True}
    make = functools.partial(MatrixAdaGrad, lr=0.1, **options)
    ranks.run(layout.world, assert_follows, make, layout, 5, [(12, 8), (8, 2), (2, 14)])


@pytest.mark.parametrize("geometry", [Row(), Column()], ids=str)
@pytest.mark.parametrize("layout", [Layout((3,), (Shard(0),)), Layout((2, 2), (Shard(0), Shard(1)))], ids=str)
@pytest.mark.parametrize("domain", [FrobeniusBall(3.0), RowBalls(2.0), ColumnBalls(2.0), NonNegative()], ids=str)
def test_with_a_domain(ranks, domain, layout, geometry):
    make = functools.partial(MatrixAdaGrad, lr=0.1, geometry=geometry, domain=domain, project_start=True)
    ranks.run(layout.world, assert_follows, make, layout)


def one_row(domain, start):
    """One rank holds the only row, and the other one nothing: they must agree on what they do."""
    param = Parameter(shared_out(torch.full((1, 4), start), mesh_of((2,)), [Shard(0)]))
    param.grad = shared_out(torch.ones(1, 4), param.device_mesh, param.placements)
    make = functools.partial(MatrixAdaGrad, [param], lr=0.1, geometry="entry", domain=domain)
    if not domain.contains(torch.full((1, 4), start)):
        with pytest.raises(ValueError, match="starts outside"):
            make()
    make(project_start=True).step()
    assert domain.contains(param.full_tensor().detach())


@pytest.mark.parametrize("start", [0.25, 2.0])
@pytest.mark.parametrize("domain", [RowBalls(1.0), RowSimplex(), FrobeniusBall(1.0)], ids=str)
def test_a_parameter_of_one_row_with_a_domain(ranks, domain, start):
    ranks.run(2, one_row, domain, start, timeout=30)

"""A probe of sharded parameters tells, without a word between machines until it is asked, what one machine would."""

import math

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import Parameter

from matrix_adagrad import MatrixAdaGrad
from matrix_adagrad.advisor import Probe
from matrix_adagrad.optim import sharding
from matrix_adagrad.torch_private import StridedShard
from tests.distributed import engines
from tests.distributed.layouts import SHAPES, Layout, gradient, mesh_of, random, shared_out

LAYOUTS = (
    Layout((4,), (Shard(0),)),
    Layout((4,), (Shard(1),)),
    Layout((4,), (Replicate(),)),
    Layout((2, 2), (Replicate(), Shard(0))),
    Layout((2, 2), (Shard(0), Shard(1))),
    Layout((2, 2), (StridedShard(0, split_factor=2), Shard(0))),
)
LARGE = (40, 36)  # of which entries are sampled, as of the convolution
EXACT = ("steps", "observed", "nonfinite", "dead", "exploding", "weight_norm", "shape")


def reports(layout, steps=6):
    """Of one machine, and of several; and how often these spoke to each other."""
    mesh = mesh_of(layout.mesh)
    starts = [random(shape, seed) for seed, shape in enumerate((*SHAPES, LARGE))]
    alone = [Parameter(start.clone()) for start in starts]
    shared = [Parameter(shared_out(start, mesh, layout.of(start.shape))) for start in starts]
    # By entry, nothing crosses machines: what is counted are the probe's own calls.
    single, sharded = (MatrixAdaGrad(params, lr=0.1, geometry="entry") for params in (alone, shared))
    probes = [Probe(nn.ParameterList(params), o, every=1) for params, o in ((alone, single), (shared, sharded))]
    calls = 0
    with probes[0], probes[1]:
        for step in range(steps):
            for i, (mine, theirs) in enumerate(zip(alone, shared, strict=True)):
                whole, _ = gradient(mine.shape, 100 * step + i, mesh, theirs.placements)
                whole = whole * (100.0 if step > 1 else 1.0)  # after the first mark, all rows explode
                if whole.dim() > 1:
                    whole[0] = 0
                mine.grad, theirs.grad = whole, shared_out(whole, mesh, theirs.placements)
            single.step()
            with CommDebugMode() as counted:
                sharded.step()
            calls += counted.get_total_counts()
    return [probe.report().to_dict() for probe in probes], calls, [str(p.placements) for p in shared]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sharded_parameters_have_the_same_summary_as_unsharded_ones(ranks, layout):
    for (alone, shared), calls, placements in ranks.run(layout.world, reports, layout):
        assert calls == 0
        for name, summary in alone.items():
            other, where = shared[name], f"{summary['shape']} {placements[int(name)]}"
            sampled = summary["shape"] in (LARGE, (6, 4, 3, 3))
            for key in EXACT:
                assert other[key] == pytest.approx(summary[key], rel=1e-5), (where, key)
            # Where a machine has no other row than the dead one, its parts of columns are silent: (2, 14) is left out.
            inactive = ("inactive",) * (summary["shape"] != (2, 14))
            for part in ("rows", "columns"):
                for key in ("participation", "drift", *inactive):
                    assert other[part][key] == pytest.approx(summary[part][key], rel=1e-5, abs=1e-7), (where, part, key)
            for key in ("row", "column", "whole"):
                assert other["gradient_norm"][key] == pytest.approx(summary["gradient_norm"][key], rel=1e-5), (
                    where,
                    key,
                )
            close = {"rel": 0.25 if sampled else 1e-5}
            assert other["agreement"] == pytest.approx(summary["agreement"], **close), where
            assert other["gradient_norm"]["entry"] == pytest.approx(summary["gradient_norm"]["entry"], **close), where
            assert other["update_ratio"] == pytest.approx(summary["update_ratio"], **close), where
            assert other["entry_participation"] == pytest.approx(
                summary["entry_participation"], **(close if not sampled else {"rel": 0.5})
            ), where
            if len(summary["shape"]) > 1:
                assert summary["dead"] == 1
                assert summary["exploding"] == summary["shape"][0] - 1


def unfinished_sum():
    """A gradient that is a sum over ranks which is not taken yet."""
    mesh = mesh_of((4,))
    grad = random((6, 4), 1)
    param = Parameter(shared_out(random((6, 4), 0), mesh, [Replicate()]))
    param.grad = sharding.DTensor.from_local(grad, mesh, [Partial()])
    optimizer = MatrixAdaGrad([param], lr=0.1)
    with Probe(nn.ParameterList([param]), optimizer, every=1) as probe:
        optimizer.step()
    assert param.grad.placements == (Partial(),)  # as the user left it
    return probe.report()["0"].gradient_norm["whole"] / float(4 * grad.norm())


def test_a_partial_gradient_is_observed_as_its_sum(ranks):
    assert ranks.run(4, unfinished_sum) == pytest.approx([1.0] * 4)


def broken_on_one_machine():
    mesh = mesh_of((4,))
    param = Parameter(shared_out(random((8, 4), 0), mesh, [Shard(0)]))
    optimizer = torch.optim.SGD([param], lr=0.0)
    with Probe(nn.ParameterList([param]), optimizer, every=1) as probe:
        for bad in (1.0, math.nan, 1.0):
            grad = torch.ones(8, 4)
            grad[3] *= bad
            param.grad = shared_out(grad, mesh, [Shard(0)])
            optimizer.step()
    summary = probe.report()["0"]
    return summary.observed, summary.nonfinite, summary.dead, math.isfinite(summary.gradient_norm["row"])


def test_non_finite_gradients_on_one_machine_count_for_all(ranks):
    assert ranks.run(4, broken_on_one_machine) == [(3, 1, 0, True)] * 4


def zero_redundancy():
    """A model on several machines, of which each steps some of the parameters; and on one."""
    found = []
    for wrap in (False, True):
        model = engines.Network()
        if wrap:
            model = engines.replicated(model)
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Probe(model, optimizer, every=1) as probe:
            for step in range(4):
                x = torch.randn(12, engines.WIDTH, generator=torch.Generator().manual_seed(step))
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        found.append(
            {
                name: (summary["gradient_norm"], summary["update_ratio"], summary["dead"])
                for name, summary in probe.report().to_dict().items()
            }
        )
    return found


def test_an_optimizer_divided_over_machines_is_observed_on_each_of_them(ranks):
    for alone, divided in ranks.run(4, zero_redundancy):
        assert alone.keys() == divided.keys()
        for name, (gradients, update, dead) in alone.items():
            assert divided[name][0] == pytest.approx(gradients, rel=1e-4)
            assert divided[name][1] == pytest.approx(update, rel=1e-3)
            assert divided[name][2] == dead

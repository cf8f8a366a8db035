"""Known optimizers are pairs of a geometry and a family: the rows of docs/family.md, against other people's code."""

import os

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad import (
    Blocks,
    Entry,
    Factored,
    Full,
    MatrixAdaGrad,
    MatrixMomentum,
    Row,
    Spectral,
    SteepestDescent,
    Whole,
)
from tests.integration import optax_runs
from tests.optim.test_family import gradients, start, train

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports pytorch-optimizer, TorchRec and optax: make test-integrations", allow_module_level=True)
peers = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed: make test-integrations")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the peers' own


def start_single(shape):
    return Parameter(start(shape).detach().float())


def train_single(optimizer, x):
    for g in gradients(x.shape):
        x.grad = g.float()
        optimizer.step()
    return x.detach()


# ------------------------------------------------------------------------------------------------------------ AdaGrad


def one_entry_a_row(n=5, steps=6):
    """Gradients with one entry in each row and column, at other places in each step: GGᵀ and GᵀG are diagonal."""
    for g, t in zip(gradients((n, n)), range(steps), strict=True):
        places = torch.randperm(n, generator=torch.Generator().manual_seed(t))
        yield g * torch.eye(n)[places]


def test_factored_geometric_is_shampoo_where_its_preconditioners_are_diagonal():
    ours, theirs = start((5, 5)), start((5, 5))
    optimizer = MatrixAdaGrad([ours], lr=0.1, geometry=Factored("geometric"), eps=0.0)
    shampoo = peers.Shampoo([theirs], lr=0.1, matrix_eps=0.0)
    for g in one_entry_a_row():
        ours.grad, theirs.grad = g.clone(), g.clone()
        optimizer.step()
        shampoo.step()
    assert (ours - start((5, 5))).abs().max() > 0.1
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("side", "shape"), [("row", (4, 8)), ("column", (8, 4))])
@pytest.mark.parametrize("beta2", [1.0, 0.9], ids=["sums", "averages"])
def test_full_is_one_sided_shampoo(side, shape, beta2):
    from pytorch_optimizer.optimizer.utils.graft import LayerWiseGrafting
    from pytorch_optimizer.optimizer.utils.partition import PreConditionerType

    ours, theirs = start(shape), start(shape)
    shampoo = peers.ScalableShampoo(
        [theirs],
        lr=0.1,
        betas=(0.0, 0.9),
        nesterov=False,
        graft_type=LayerWiseGrafting.NONE,
        pre_conditioner_type=PreConditionerType.INPUT if side == "row" else PreConditionerType.OUTPUT,
        start_preconditioning_step=1,
        preconditioning_compute_steps=1,
        matrix_eps=0.0,
        use_svd=True,
        shape_interpretation=False,
    )
    shampoo.param_groups[0]["betas"] = (0.0, beta2)  # at 1 it sums, but its constructor refuses that
    options = {"lr": 0.1, "geometry": Full(side), "eps": 0.0}
    if beta2 == 1:
        train(MatrixAdaGrad([ours], **options), ours)
    else:
        train(MatrixMomentum([ours], betas=(0.0, beta2), bias_correction=False, **options), ours)
    torch.testing.assert_close(ours.detach(), train(shampoo, theirs), rtol=1e-9, atol=1e-9)


def test_sm3s_steps_lie_between_those_of_entry_and_factored_minimum():
    """It covers the largest square of each row and column, and Factored("minimum") the sum of all."""
    points = [start((6, 4)) for _ in range(3)]
    optimizers = (
        MatrixAdaGrad([points[0]], lr=0.1, geometry="entry", eps=0.0),
        peers.SM3([points[1]], lr=0.1),
        MatrixAdaGrad([points[2]], lr=0.1, geometry=Factored("minimum"), eps=0.0),
    )
    for t, g in enumerate(gradients((6, 4))):
        before = [x.detach().clone() for x in points]
        for x, optimizer in zip(points, optimizers, strict=True):
            x.grad = g.clone()
            optimizer.step()
        entry, sm3, minimum = ((x.detach() - y).abs() for x, y in zip(points, before, strict=True))
        assert (minimum <= sm3 * (1 + 1e-9)).all()
        assert (sm3 <= entry * (1 + 1e-9)).all()
        assert (minimum < 0.99 * sm3).any()
        assert t == 0 or (sm3 < 0.99 * entry).any()


def test_on_one_column_sm3_entry_and_factored_minimum_are_the_same():
    ends = [start((6, 1)) for _ in range(3)]
    train(MatrixAdaGrad([ends[0]], lr=0.1, geometry="entry", eps=0.0), ends[0])
    train(MatrixAdaGrad([ends[1]], lr=0.1, geometry=Factored("minimum"), eps=0.0), ends[1])
    train(peers.SM3([ends[2]], lr=0.1), ends[2])
    torch.testing.assert_close(ends[0], ends[2])
    torch.testing.assert_close(ends[1], ends[2])


@pytest.mark.parametrize(("geometry", "blocks"), [(Whole(), 1), (Blocks(rows=2), 2), (Row(), 6)], ids=str)
def test_blocks_are_torchrecs_row_wise_adagrad_on_one_row_per_block(geometry, blocks):
    rowwise = pytest.importorskip("torchrec.optim.rowwise_adagrad", reason="TorchRec is not installed")
    ours, theirs = start_single((6, 4)), Parameter(start_single((6, 4)).detach().view(blocks, -1))
    train_single(MatrixAdaGrad([ours], lr=0.1, geometry=geometry, reduction="mean"), ours)
    optimizer = rowwise.RowWiseAdagrad([theirs], lr=0.1)
    for g in gradients((6, 4)):
        theirs.grad = g.float().view(blocks, -1)
        optimizer.step()
    torch.testing.assert_close(ours.detach(), theirs.detach().view(6, 4), rtol=1e-6, atol=1e-6)


# ----------------------------------------------------------------------------------------------------------- momentum


@pytest.mark.parametrize(
    ("name", "shape", "heads", "geometry"),
    [
        ("q_proj", (8, 8), 4, Blocks(rows=4)),  # one second moment per head
        ("k_proj", (8, 8), 8, Row()),  # per row, if each is a head
        ("attn.qkv", (24, 8), 4, Blocks(rows=12)),  # per head of queries, keys and values
        ("mlp", (12, 8), 4, Whole()),  # per tensor
        ("embed", (12, 8), 4, Entry()),  # per entry, as Adam
    ],
    ids=str,
)
def test_partitions_with_the_mean_are_adam_mini_which_goes_by_names(name, shape, heads, geometry):
    model = nn.Module()
    *parents, last = f"{name}.weight".split(".")
    place = model
    for parent in parents:
        place.add_module(parent, nn.Module())
        place = getattr(place, parent)
    place.register_parameter(last, start_single(shape))
    (theirs,), ours = model.parameters(), start_single(shape)
    options = {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1}
    adam_mini = peers.AdamMini(model, num_embeds=8, num_heads=heads, **options)
    optimizer = MatrixMomentum(
        [ours], geometry=geometry, reduction="mean", decoupled_weight_decay=True, eps=1e-8, **options
    )
    torch.testing.assert_close(train_single(optimizer, ours), train_single(adam_mini, theirs), rtol=1e-6, atol=1e-6)
    kept = {key: value.numel() for key, value in adam_mini.state[theirs].items() if torch.is_tensor(value)}
    assert kept["v_mean" if geometry != Entry() else "v"] == optimizer.state[ours]["exp_avg_sq"].numel()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_entry_with_nesterov_is_optax_nadam(decay):
    optax = pytest.importorskip("optax", reason="optax is not installed: make test-integrations")
    options = {"betas": (0.8, 0.9), "eps": 1e-6, "nesterov": True, "geometry": "entry"}
    options |= {"weight_decay": decay, "decoupled_weight_decay": True}
    params = [start_single((6, 4))]
    theirs, _ = optax_runs.train_jax(optax.nadamw(0.1, b1=0.8, b2=0.9, eps=1e-6, weight_decay=decay), params, 6)
    ours, _ = optax_runs.train_torch(MatrixMomentum, params, 6, **options)
    optax_runs.assert_same(theirs, ours, 1e-6)


# --------------------------------------------------------------------------------------------------- steepest descent


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("shape", [(16, 24), (24, 16)])
@pytest.mark.parametrize("rescale", [None, Row()], ids=["Muon", "NorMuon"])
def test_spectral_is_muon_and_rescaled_by_row_normuon(shape, nesterov, rescale):
    ours, theirs = start_single(shape), start_single(shape)
    options = {"lr": 0.02, "momentum": 0.95, "nesterov": nesterov, "weight_decay": 0.1}
    hidden = [{"params": [theirs], "use_muon": True}]
    peer = (
        peers.NorMuon(hidden, beta2=0.9, update_scale="match_rms", **options)
        if rescale
        else peers.Muon(hidden, use_adjusted_lr=True, **options)
    )
    geometry = Spectral(dtype=torch.bfloat16)
    options |= {"rescale": rescale, "rescale_beta": 0.9, "decoupled_weight_decay": True}
    train_single(SteepestDescent([ours], geometry=geometry, **options), ours)
    torch.testing.assert_close(ours.detach(), train_single(peer, theirs), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["sign descent", "Signum"])
def test_entry_is_signum(momentum):
    ours, native, theirs = start((6, 4)), start((6, 4)), start((6, 4))
    options = {"lr": 0.1, "geometry": "entry", "scale": None, "momentum": momentum}
    train(SteepestDescent([ours], fused=False, **options), ours)
    train(SteepestDescent([native], **options), native)
    train(peers.SignSGD([theirs], lr=0.1, momentum=momentum), theirs)
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(native.detach(), theirs.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("geometry", "norm", "options", "factor"),
    [
        ("row", "ROW", {"normalized": False}, 1),
        ("column", "COL", {}, 4),
        ("entry", "SIGN", {"normalize": False}, 1),
        (Spectral(dtype=torch.bfloat16), "SPECTRAL", {}, 2),  # which it rounds to bfloat16
    ],
    ids=str,
)
def test_without_scale_it_is_scion_which_by_row_is_row_normalised_momentum(geometry, norm, options, factor):
    """Up to the factor of each of Scion's norms, and the 1e-8 that it adds to the length of a row."""
    ours, theirs = start_single((16, 4)), start_single((16, 4))
    kind = peers.optimizer.scion.LMONorm[norm]
    scion = peers.SCION([theirs], lr=0.1, momentum=0.1, norm_type=kind, norm_kwargs=options)
    train_single(SteepestDescent([ours], lr=0.1 * factor, geometry=geometry, scale=None, momentum=0.9), ours)
    torch.testing.assert_close(ours.detach(), train_single(scion, theirs), rtol=1e-6, atol=1e-6)

"""Steepest descent moves along the steepest direction of the momentum in the geometry's norm."""

import io

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad import Batched, Blocks, Column, Entry, Factored, Full, Row, Spectral, SteepestDescent, Whole, native

GEOMETRIES = (Row(), Column(), Entry(), Whole(), Blocks(rows=2), Blocks(2, 3), Batched(Row()), Spectral(steps=None))
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
EXACT = {"scale": None, "floor": 0.0}


def gradients(shape, steps=4):
    return [torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(t)) for t in range(steps)]


def trained(geometry, shape=(4, 6), steps=4, **options):
    x = Parameter(torch.ones(shape, dtype=torch.float64))
    optimizer = SteepestDescent([x], **{"lr": 0.1, "geometry": geometry, **options})
    for g in gradients(shape, steps):
        x.grad = g
        optimizer.step()
    return x.detach(), optimizer


def by_hand(direction, shape=(4, 6), steps=4, beta=0.9):
    """x after steps along a function of the averaged gradient and the gradient."""
    x, average = torch.ones(shape, dtype=torch.float64), 0
    for g in gradients(shape, steps):
        average = beta * average + (1 - beta) * g
        x = x - 0.1 * direction(average, g)
    return x


@every_geometry
def test_the_step_is_the_steepest_direction_of_the_average(geometry):
    x, _ = trained(geometry, **EXACT)
    torch.testing.assert_close(x, by_hand(lambda average, _: geometry.steepest(average)))


def test_by_row_it_is_row_normalised_momentum():
    x, _ = trained("row", **EXACT)
    torch.testing.assert_close(x, by_hand(lambda average, _: average / average.norm(dim=1, keepdim=True)))


def test_by_entry_it_is_signum():
    x, _ = trained("entry", **EXACT)
    torch.testing.assert_close(x, by_hand(lambda average, _: average.sign()))


@every_geometry
def test_nesterov_looks_one_step_ahead(geometry):
    x, _ = trained(geometry, nesterov=True, **EXACT)
    torch.testing.assert_close(x, by_hand(lambda average, g: geometry.steepest(0.1 * g + 0.9 * average)))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("shape", [(16, 24), (24, 16)])
def test_in_the_spectral_norm_it_is_torch_muon(shape, nesterov):
    ours, theirs = (Parameter(torch.ones(shape)) for _ in range(2))
    geometry = Spectral(dtype=torch.bfloat16)
    options = {"lr": 0.02, "momentum": 0.95, "nesterov": nesterov, "weight_decay": 0.1}
    optimizer = SteepestDescent([ours], geometry=geometry, decoupled_weight_decay=True, **options)
    muon = torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **options)
    for g in gradients(shape):
        ours.grad, theirs.grad = g.float(), g.float()
        optimizer.step()
        muon.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(optimizer.state[ours]["momentum_buffer"], muon.state[theirs]["momentum_buffer"])


@every_geometry
@pytest.mark.parametrize("shape", [(4, 6), (12, 6)])
def test_with_scale_rms_all_steps_have_the_size_of_adamws(geometry, shape):
    x, _ = trained(geometry, shape, steps=1, scale="rms", floor=0.0)
    assert (x - 1).square().mean().sqrt().item() == pytest.approx(0.2 * 0.1)


def test_a_floor_keeps_rows_whose_momentum_died_away_from_moving_at_full_size():
    moved = {}
    for floor in (0.0, 0.1):
        x = Parameter(torch.zeros(20, 4))
        optimizer = SteepestDescent([x], lr=1.0, scale=None, floor=floor)
        torch.manual_seed(0)
        for t in range(150):
            x.grad = torch.randn(20, 4)
            if t > 0:
                x.grad[3] = 0  # only its momentum is left
            before = x.detach().clone()
            optimizer.step()
        moved[floor] = (x.detach() - before).norm(dim=1)
    assert moved[0.0][3].item() == pytest.approx(1)
    assert moved[0.1][3] < 1e-4
    torch.testing.assert_close(moved[0.1][4:], torch.ones(16))


def test_rescaled_by_row_in_the_spectral_norm_it_is_normuon():
    x, _ = trained(Spectral(steps=None), rescale=Row(), momentum=0.95, nesterov=True, rescale_beta=0.9)
    hand, average, v = torch.ones(4, 6).double(), 0, 0
    for g in gradients((4, 6)):
        average = 0.95 * average + 0.05 * g
        polar = Spectral(steps=None).steepest(0.05 * g + 0.95 * average)
        v = 0.9 * v + 0.1 * polar.square().mean(1, keepdim=True)
        scaled = polar / (v.sqrt() + 1e-8)
        hand = hand - 0.1 * 0.2 * scaled * (24**0.5 / scaled.norm())
    torch.testing.assert_close(x, hand)


@every_geometry
def test_it_keeps_the_average_alone_and_without_momentum_nothing(geometry):
    _, optimizer = trained(geometry)
    (state,) = optimizer.state.values()
    assert {key: tuple(value.shape) for key, value in state.items()} == {"step": (), "momentum_buffer": (4, 6)}
    _, optimizer = trained(geometry, momentum=0.0)
    (state,) = optimizer.state.values()
    assert list(state) == ["step"]


@every_geometry
def test_without_momentum_it_is_normalised_gradient_descent(geometry):
    x, _ = trained(geometry, momentum=0.0, **EXACT)
    torch.testing.assert_close(x, by_hand(lambda _, g: geometry.steepest(g)))


@every_geometry
def test_the_learning_rate_is_the_largest_change_in_the_geometrys_norm(geometry):
    x, _ = trained(geometry, steps=1, **EXACT)
    assert geometry.norm(x - 1).item() == pytest.approx(0.1)


@every_geometry
@pytest.mark.parametrize(
    "options",
    [{}, {"nesterov": True}, {"weight_decay": 0.1}, {"maximize": True}, {"momentum": 0.0}, {"rescale": Row()}],
    ids=str,
)
def test_a_saved_run_goes_on_with_the_same_bits(geometry, options):
    x, optimizer = trained(geometry, **options)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    y = Parameter(x.clone())
    other = SteepestDescent([y], geometry=geometry, **options)
    other.load_state_dict(torch.load(file, weights_only=True))
    (z,) = optimizer.param_groups[0]["params"]
    for param, own in ((z, optimizer), (y, other)):
        param.grad = gradients((4, 6), 5)[-1]
        own.step()
    assert torch.equal(y, z)


def test_maximize_climbs_and_weight_decay_shrinks():
    up, _ = trained("row", maximize=True)
    down, _ = trained("row")
    torch.testing.assert_close(up - 1, 1 - down)
    decayed, _ = trained("row", weight_decay=0.5, decoupled_weight_decay=True)
    by_rate, average = torch.ones(4, 6).double(), 0
    for g in gradients((4, 6)):
        average = 0.9 * average + 0.1 * g
        by_rate = (1 - 0.1 * 0.5) * by_rate - 0.1 * 0.2 * 6**0.5 * Row().steepest(average)
    torch.testing.assert_close(decayed, by_rate)


def test_sparse_gradients_move_touched_rows_alone():
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = SteepestDescent(table.parameters(), lr=1.0, scale=None, floor=0.0)
    before = table.weight.detach().clone()
    table(torch.tensor([3, 5, 3])).square().sum().backward()
    optimizer.step()
    moved = (table.weight.detach() - before).norm(dim=1)
    torch.testing.assert_close(moved[[3, 5]], torch.ones(2))
    assert (moved[[0, 1, 2, 4, 6, 7, 8, 9]] == 0).all()


# ------------------------------------------------------------------------------------------------- the native kernels

BY_BLOCK = (Row(), Column(), Entry(), Whole(), Blocks(rows=2), Blocks(columns=2), Batched(Row()))
needs_kernels = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


@needs_kernels
@pytest.mark.parametrize("geometry", BY_BLOCK, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"scale": None}, {"nesterov": True}, {"momentum": 0.0}, {"floor": 0.5}, {"maximize": True}),
        *({"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
        {"floor": 0.9, "nesterov": True, "maximize": True, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_the_kernels_take_the_step_of_torchs_operators(geometry, options):
    native_x, native_optimizer = trained(geometry, fused=True, **options)
    x, optimizer = trained(geometry, fused=False, **options)
    torch.testing.assert_close(native_x, x, rtol=1e-12, atol=1e-13)
    (native_state,), (state,) = native_optimizer.state.values(), optimizer.state.values()
    torch.testing.assert_close(native_state, state, rtol=1e-12, atol=1e-13)


@needs_kernels
def test_many_tensors_are_one_call_of_the_kernels(monkeypatch):
    params = [Parameter(torch.ones(3, 4)) for _ in range(20)] + [Parameter(torch.ones(5)) for _ in range(20)]
    optimizer, calls = SteepestDescent(params), []
    kernel = native.load().matrix_adagrad_step
    monkeypatch.setattr(native.load(), "matrix_adagrad_step", lambda *given: calls.append(given[1]) or kernel(*given))
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        calls.clear()
        optimizer.step()
    assert [count for count in calls if count == 40] == [40]


@needs_kernels
@pytest.mark.parametrize("edit", [{"floor": 0.9}, {"scale": None}, {"momentum": 0.0}, {"nesterov": True}], ids=str)
@pytest.mark.parametrize("geometry", [Row(), Entry()], ids=str)
def test_options_that_are_edited_between_steps_count_from_the_next_one(edit, geometry):
    ends = []
    for fused in (True, False):
        _, optimizer = trained(geometry, fused=fused)
        optimizer.param_groups[0].update(edit)
        (param,) = optimizer.param_groups[0]["params"]
        param.grad = gradients((4, 6), 5)[-1] * torch.logspace(0, 4, 4).double()[:, None]
        optimizer.step()
        ends.append(param.detach())
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-13)


@needs_kernels
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"geometry": Spectral()}, "Spectral is not a partition"),
        ({"rescale": Row()}, "rescale is for torch's operators"),
    ],
    ids=str,
)
def test_what_the_kernels_do_not_cover_is_refused_if_they_are_asked_for(options, words):
    x = Parameter(torch.ones(3, 4))
    x.grad = torch.ones_like(x)
    with pytest.raises(RuntimeError, match=f"fused=True is not possible here: {words}.*; leave fused=None"):
        SteepestDescent([x], fused=True, **options).step()
    SteepestDescent([x], **options).step()


@needs_kernels
@pytest.mark.parametrize("geometry", ["row", "entry"])
def test_sparse_gradients_reach_the_kernels_too(geometry):
    ends = []
    for fused in (True, False):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True)
        optimizer = SteepestDescent(table.parameters(), geometry=geometry, weight_decay=0.1, fused=fused)
        for rows in ([3, 5, 3], [5], [0, 9]):
            table.zero_grad()
            table(torch.tensor(rows)).square().sum().backward()
            optimizer.step()
        ends.append([table.weight.detach(), optimizer.state[table.weight]["momentum_buffer"]])
    torch.testing.assert_close(*ends)


def test_vectors_move_by_entry_unless_the_geometry_is_whole():
    x, _ = trained("row", (5,), steps=1, **EXACT)
    torch.testing.assert_close((x - 1).abs(), torch.full((5,), 0.1).double())
    x, _ = trained("whole", (5,), steps=1, **EXACT)
    assert (x - 1).norm().item() == pytest.approx(0.1)


@pytest.mark.parametrize("geometry", [Factored(), Full("row")], ids=str)
def test_a_geometry_without_a_norm_is_refused_by_name(geometry):
    with pytest.raises(ValueError, match="parameter 0.*has no direction of steepest descent"):
        SteepestDescent([Parameter(torch.zeros(3, 4))], geometry=geometry)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"momentum": 1.0}, ValueError, "momentum must be"),
        ({"scale": "adam"}, ValueError, "scale must be 'rms' or None, got 'adam'"),
        ({"floor": -0.1}, ValueError, "floor must be"),
        ({"floor": 0.1, "geometry": Spectral()}, ValueError, "leave floor=0"),
        ({"betas": (0.9, 0.99)}, TypeError, "unknown option 'betas'"),
        ({"eps": 1e-8}, TypeError, "unknown option 'eps'"),
        ({"domain": None}, TypeError, "unknown option 'domain'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_named(options, error, words):
    with pytest.raises(error, match=words):
        SteepestDescent([Parameter(torch.zeros(3, 4))], **options)

"""A checkpoint brings its betas, or its momentum, and with them the average of gradients or its absence."""

import functools

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import Shard

from matrix_adagrad import CombinedOptimizer, Factored, MatrixMomentum, Row, Spectral, SteepestDescent
from tests.distributed.layouts import Layout
from tests.distributed.test_checkpoints import FIRST, LAST, SQUARE, Model, a_run, assert_is_unbroken, save_first_half

MOMENTUM = functools.partial(MatrixMomentum, geometry=Factored(), lr=0.1)
STEEPEST = functools.partial(SteepestDescent, geometry=Row(), lr=0.1)


def combined(params, **options):
    first, *rest = params
    return CombinedOptimizer([SteepestDescent([first], lr=0.1, geometry=Spectral()), MOMENTUM(rest, **options)])


both_ways = pytest.mark.parametrize(
    ("make", "with_average", "without"),
    [
        (MOMENTUM, {"betas": (0.9, 0.99)}, {"betas": (0.0, 0.9)}),
        (STEEPEST, {"momentum": 0.9}, {"momentum": 0.0}),
        (combined, {"betas": (0.9, 0.99)}, {"betas": (0.0, 0.9)}),
    ],
    ids=["MatrixMomentum", "SteepestDescent", "CombinedOptimizer"],
)


def assert_goes_on_as(saved, made, layout, folder):
    """The optimizer is made with other options, and goes on with those of the saved run."""
    model, optimizer, checkpoints = a_run(made, layout, folder)
    assert checkpoints.resume() == FIRST
    model.train_until(optimizer, FIRST, LAST)
    assert_is_unbroken(saved, model, optimizer, LAST)


@both_ways
def test_a_run_without_an_average_resumes_in_an_optimizer_with_one(ranks, tmp_path, make, with_average, without):
    saved, made = (functools.partial(make, **options) for options in (without, with_average))
    ranks.run(2, save_first_half, saved, Layout((2,), (Shard(0),)), tmp_path)
    ranks.run(4, assert_goes_on_as, saved, made, SQUARE, tmp_path)
    assert_goes_on_as(saved, made, None, tmp_path)


@both_ways
def test_a_run_with_an_average_resumes_in_an_optimizer_without_one(ranks, tmp_path, make, with_average, without):
    saved, made = (functools.partial(make, **options) for options in (with_average, without))
    ranks.run(2, save_first_half, saved, Layout((2,), (Shard(0),)), tmp_path)
    ranks.run(4, assert_goes_on_as, saved, made, SQUARE, tmp_path)
    assert_goes_on_as(saved, made, None, tmp_path)


@pytest.mark.parametrize(
    ("make", "words"), [(MOMENTUM, r"had betas=\(0.9, 0.999\)"), (STEEPEST, r"had momentum=0.9")], ids=["β", "momentum"]
)
def test_a_state_from_which_the_average_was_left_out_names_the_option(make, words):
    """As `torch.distributed.checkpoint.load` does, which fills the state that an optimizer without momentum has."""
    model = Model(None)
    optimizer = make(model.parameters())
    model.train_until(optimizer, 0, 2)
    loaded = get_optimizer_state_dict(model, optimizer)
    for own in loaded["state"].values():
        del own[optimizer.AVERAGE]
    with pytest.raises(ValueError, match=rf"{words}, but .* has no '{optimizer.AVERAGE}': make the optimizer with"):
        set_optimizer_state_dict(model, optimizer, loaded)
    assert all(torch.isfinite(param).all() for param in model.parameters())

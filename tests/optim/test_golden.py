"""Other people's optimizers as references: in the entry geometry this is AdaGrad, and with momentum Adam and AdamW."""

import itertools

import pytest
import torch
from torch.optim import Adagrad, Adam, AdamW

from matrix_adagrad import ColumnAdaGrad, MatrixAdaGrad, MatrixMomentum, RowAdaGrad, RowMomentum
from tests.optim.training import assert_same, make_grads, make_params, train

LR = (0.1, torch.tensor(0.1, dtype=torch.float64))
both_paths = pytest.mark.parametrize("foreach", [False, True], ids=["reference", "foreach"])


def grid(**options):
    """Every combination of the options."""
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def name(options):
    return "-".join(f"{key}={value}" for key, value in options.items()) if isinstance(options, dict) else None


ADAGRAD = grid(
    lr=LR, weight_decay=(0, 0.1), initial_accumulator_value=(0, 0.5), eps=(1e-10, 1e-2), maximize=(False, True)
)
ADAM = grid(lr=LR, betas=((0.9, 0.999), (0.5, 0.8)), weight_decay=(0, 0.1), eps=(1e-8, 1e-2), maximize=(False, True))


@both_paths
@pytest.mark.parametrize("options", ADAGRAD, ids=name)
def test_entry_is_torch_adagrad(options, foreach):
    ours, mine = train(lambda params: MatrixAdaGrad(params, geometry="entry", foreach=foreach, **options))
    theirs, reference = train(lambda params: Adagrad(params, **options))
    assert_same(ours, theirs, rtol=1e-12, atol=1e-14)
    assert_same([mine.state[p]["sum"] for p in ours], [reference.state[p]["sum"] for p in theirs], rtol=1e-12, atol=0)


@both_paths
@pytest.mark.parametrize("decoupled", [False, True], ids=["Adam", "AdamW"])
@pytest.mark.parametrize("options", ADAM, ids=name)
def test_entry_with_momentum_is_torch_adam(options, decoupled, foreach):
    ours, mine = train(
        lambda params: MatrixMomentum(
            params, geometry="entry", decoupled_weight_decay=decoupled, foreach=foreach, **options
        )
    )
    theirs, reference = train(lambda params: (AdamW if decoupled else Adam)(params, foreach=False, **options))
    assert_same(ours, theirs, rtol=1e-11, atol=1e-13)
    for key in ("exp_avg", "exp_avg_sq", "step"):
        assert_same(
            [mine.state[p][key].double() for p in ours],
            [reference.state[p][key].double() for p in theirs],
            rtol=1e-12,
            atol=1e-15,
        )


@both_paths
@pytest.mark.parametrize("options", ADAGRAD, ids=name)
def test_row_on_one_column_and_column_on_one_row_are_torch_adagrad(options, foreach):
    for cls, shape in ((RowAdaGrad, (7, 1)), (ColumnAdaGrad, (1, 7))):
        ours, _ = train(lambda params, cls=cls: cls(params, foreach=foreach, **options), make_params(shapes=[shape]))
        theirs, _ = train(lambda params: Adagrad(params, **options), make_params(shapes=[shape]))
        assert_same(ours, theirs, rtol=1e-12, atol=1e-14)


@both_paths
def test_row_momentum_on_one_column_is_torch_adam(foreach):
    ours, _ = train(lambda params: RowMomentum(params, lr=0.1, foreach=foreach), make_params(shapes=[(7, 1)]))
    theirs, _ = train(lambda params: Adam(params, lr=0.1), make_params(shapes=[(7, 1)]))
    assert_same(ours, theirs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}], ids=["native", "foreach", "reference"])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_entry_with_nesterov_is_nadam_written_out_by_hand(options, bias_correction):
    """Dozat's, with a constant β₁: m̂ = β₁ m_t / (1 - β₁ᵗ⁺¹) + (1 - β₁) g_t / (1 - β₁ᵗ)."""
    options = {"betas": (0.8, 0.9), "bias_correction": bias_correction, "nesterov": True, **options}
    (x,), _ = train(lambda params: MatrixMomentum(params, lr=0.1, geometry="entry", **options), one_matrix(), steps=5)
    (by_hand,) = one_matrix()
    y, m, v = by_hand.detach().clone(), 0, 0
    for t in range(1, 6):
        g = make_grads([by_hand], t - 1)[0]
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g.square()
        now, following, squares = (1 - 0.8**t, 1 - 0.8 ** (t + 1), 1 - 0.9**t) if bias_correction else (1, 1, 1)
        y -= 0.1 * (0.8 * m / following + 0.2 * g / now) / ((v / squares).sqrt() + 1e-8)
    assert_same([x], [y], rtol=1e-12, atol=1e-14)


def one_matrix():
    return make_params(shapes=[(5, 3)])


@both_paths
def test_row_adagrad_is_algorithm_1_written_out_by_hand(foreach):
    (x,), _ = train(
        lambda params: RowAdaGrad(params, lr=0.3, eps=0.01, foreach=foreach), make_params(shapes=[(3, 2)]), steps=4
    )
    by_hand = make_params(shapes=[(3, 2)])[0].detach().tolist()
    sums = [0.0, 0.0, 0.0]
    for t in range(4):
        grad = make_grads([x], t)[0].tolist()
        for i in range(3):
            sums[i] += sum(g * g for g in grad[i])
            scale = sums[i] ** 0.5 + 0.01
            for j in range(2):
                by_hand[i][j] -= 0.3 * grad[i][j] / scale
    assert_same([x], [torch.tensor(by_hand, dtype=torch.float64)], rtol=1e-13, atol=1e-15)

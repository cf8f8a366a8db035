"""Known optimizers are pairs of a geometry and a family: the rows of docs/family.md that need torch alone."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

import matrix_adagrad
from matrix_adagrad import Blocks, Factored, Full, MatrixAdaGrad, MatrixMomentum, Row, Whole

SHAPES = [(6, 4), (4, 8), (3, 4, 6)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
STEPS = 6


def start(shape):
    return Parameter(torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(99)))


def gradients(shape):
    """Rows and columns whose sizes differ by orders of magnitude."""
    for t in range(STEPS):
        generator = torch.Generator().manual_seed(t)
        rows = torch.randn(*shape[:-1], 1, generator=generator, dtype=torch.float64)
        columns = torch.randn(*shape[:-2], 1, shape[-1], generator=generator, dtype=torch.float64)
        yield torch.randn(shape, generator=generator, dtype=torch.float64) * rows.exp() * columns.exp()


def train(optimizer, x, before=lambda *_: None):
    for t, g in enumerate(gradients(x.shape), start=1):
        before(optimizer, x, t)
        x.grad = g
        optimizer.step()
    return x.detach()


@every_shape
def test_factored_and_momentum_without_an_average_is_torchs_adafactor(shape):
    """Its second moment, and so its steps, at the rates and decays that Adafactor derives from its own."""
    theirs, ours = start(shape), start(shape)
    adafactor = torch.optim.Adafactor([theirs], lr=0.05, d=math.inf, eps=(1e-30, 1e-3), beta2_decay=-0.8)
    options = {"geometry": Factored(), "betas": (0.0, 0.0), "bias_correction": False, "eps": 0.0, "reduction": "mean"}
    optimizer = MatrixMomentum([ours], lr=0.0, **options)

    def as_adafactor(optimizer, x, t):
        (group,) = optimizer.param_groups
        group["betas"] = (0.0, 1 - t**-0.8)
        group["lr"] = max(1e-3, x.detach().square().mean().sqrt().item()) * min(0.05, t**-0.5)

    train(adafactor, theirs)
    train(optimizer, ours, as_adafactor)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(optimizer.state[ours]["exp_avg_sq_row"], adafactor.state[theirs]["row_var"])
    torch.testing.assert_close(optimizer.state[ours]["exp_avg_sq_column"], adafactor.state[theirs]["col_var"])


def test_factored_geometric_and_adagrad_is_shampoo_with_diagonal_preconditioners():
    x = start((6, 4))
    train(MatrixAdaGrad([x], lr=0.1, geometry=Factored("geometric"), eps=0.0), x)
    hand, left, right = start((6, 4)).detach(), torch.zeros(6, 6).double(), torch.zeros(4, 4).double()
    for g in gradients((6, 4)):
        left, right = left + torch.diag((g @ g.T).diagonal()), right + torch.diag((g.T @ g).diagonal())
        hand -= 0.1 * torch.diag(left.diagonal() ** -0.25) @ g @ torch.diag(right.diagonal() ** -0.25)
    torch.testing.assert_close(x.detach(), hand)


def test_sm3_lies_between_entry_and_factored_minimum():
    """SM3 adds up the largest square in each row and column, and Factored("minimum") all of them."""
    own = row = column = torch.zeros(())
    r = c = torch.zeros(())
    for g in gradients((6, 4)):
        squares = g.square()
        own, r, c = own + squares, r + squares.sum(1, keepdim=True), c + squares.sum(0, keepdim=True)
        row, column = row + squares.amax(1, keepdim=True), column + squares.amax(0, keepdim=True)
    sm3, ours = torch.minimum(row, column).sqrt(), Factored("minimum").scale(r, c)
    assert (own.sqrt() <= sm3 * (1 + 1e-12)).all()
    assert (sm3 <= ours * (1 + 1e-12)).all()


@pytest.mark.parametrize(("geometry", "blocks"), [(Whole(), 1), (Blocks(rows=2), 2), (Blocks(rows=3), 3)], ids=str)
def test_blocks_and_adagrad_is_blockwise_adagrad(geometry, blocks):
    """One accumulator for each group of rows, as if each were a parameter with a scalar AdaGrad."""
    x = start((6, 4))
    train(MatrixAdaGrad([x], lr=0.1, geometry=geometry, eps=1e-8), x)
    hand, sums = list(start((6, 4)).detach().chunk(blocks)), [0.0] * blocks
    for g in gradients((6, 4)):
        for b, part in enumerate(g.chunk(blocks)):
            sums[b] += part.square().sum().item()
            hand[b] = hand[b] - 0.1 * part / (math.sqrt(sums[b]) + 1e-8)
    torch.testing.assert_close(x.detach(), torch.cat(hand))


def test_row_and_momentum_with_the_mean_is_adam_mini_for_rows():
    """Adam with one second moment a row, the mean of the squares of its entries."""
    x = start((6, 4))
    train(MatrixMomentum([x], lr=0.1, geometry=Row(), reduction="mean", betas=(0.9, 0.99)), x)
    hand, m, v = start((6, 4)).detach(), 0, 0
    for t, g in enumerate(gradients((6, 4)), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g.square().mean(1, keepdim=True)
        hand = hand - 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-8)
    torch.testing.assert_close(x.detach(), hand)


def test_entry_and_momentum_without_an_average_is_torchs_rmsprop():
    ours, theirs = start((6, 4)), start((6, 4))
    options = {"geometry": "entry", "betas": (0.0, 0.9), "bias_correction": False, "eps": 1e-6}
    train(MatrixMomentum([ours], lr=0.1, **options), ours)
    train(torch.optim.RMSprop([theirs], lr=0.1, alpha=0.9, eps=1e-6), theirs)
    torch.testing.assert_close(ours, theirs)


def test_full_and_adagrad_is_one_sided_shampoo():
    x = start((4, 8))
    train(MatrixAdaGrad([x], lr=0.1, geometry=Full("row"), eps=1e-3), x)
    hand, products = start((4, 8)).detach(), torch.zeros(4, 4, dtype=torch.float64)
    for g in gradients((4, 8)):
        products += g @ g.T
        values, vectors = torch.linalg.eigh(products)
        hand -= 0.1 * vectors @ torch.diag(1 / (values.clamp(min=0).sqrt() + 1e-3)) @ vectors.T @ g
    torch.testing.assert_close(x.detach(), hand, rtol=1e-7, atol=1e-9)


# ----------------------------------------------------------------------------------------------------------- the page

ROOT = Path(__file__).parents[2]


def rows_of(heading):
    """The rows of the table in a section of the page, as lists of cells."""
    section = (ROOT / "docs" / "family.md").read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]


def code_in(cell):
    return re.findall("`(.*?)`", cell)


def value_of(code, **names):
    return eval(code.translate(str.maketrans({"·": "*", "²": "**2", "₂": "2"})), vars(matrix_adagrad) | names)


@pytest.mark.parametrize("row", rows_of("Known optimizers as pairs"), ids=lambda row: row[0])
def test_the_pairs_of_the_page_keep_what_it_says(row):
    _, geometries, pair, keeps, _ = row
    (m, n), b, (family, *options) = (6, 4), 3, code_in(pair)
    sizes = [value_of(size, m=m, n=n, b=b) for size in keeps.split(" or ")]
    for i, geometry in enumerate(code_in(geometries)):
        x = start((m, n))
        options_here = ", ".join([f"geometry={geometry}", *options])
        optimizer = value_of(f"{family}([x], lr=0.1, {options_here})", x=x, b=b, β2=0.99)
        train(optimizer, x)
        kept = [value.numel() for key, value in optimizer.state[x].items() if key != "step"]
        assert sum(kept) == sizes[i % len(sizes)]


def test_every_pair_of_the_page_names_tests_that_exist():
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = set(re.findall(r"^def (test_\w+)\(", "\n".join(files), flags=re.MULTILINE))
    named = {name: set(code_in(cell)) for name, _, cell in rows_of("Equal to the originals")}
    assert list(named) == [name for name, *_ in rows_of("Known optimizers as pairs")]
    for name, own in named.items():
        assert own, name
        assert own <= tests, name

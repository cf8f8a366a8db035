"""A geometry is a partition of the entries; its norms are dual; transposing swaps rows and columns."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrix_adagrad import MatrixAdaGrad
from matrix_adagrad.geometry import (
    Batched,
    Blocks,
    Column,
    Entry,
    Factored,
    Full,
    Partition,
    Row,
    Spectral,
    Whole,
    as_geometry,
)

NAMED = (Row(), Column(), Entry(), Whole())
GRIDS = (Blocks(rows=2), Blocks(columns=3), Blocks(2, 3), Blocks(rows=1, columns=3), Blocks(rows=2, columns=None))
BATCHED = tuple(Batched(geometry) for geometry in (*NAMED, *GRIDS))
geometries = st.sampled_from((*NAMED, *GRIDS, *BATCHED))
# Every matrix, and the last two dimensions of more, can be cut into the grids.
shapes = st.sampled_from([(), (5,), (4, 6), (2, 3), (6, 12), (4, 6, 3), (2, 6, 4, 3), (0, 3), (2, 0)])


def matrix(shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(geometries, shapes)
def test_a_spread_statistic_gives_each_entry_the_number_of_its_block(geometry, shape):
    if 0 in shape:
        return
    numbers = torch.arange(geometry.scales(shape)).view(geometry.statistic_shape(shape))
    spread = geometry.spread(numbers, shape)
    assert torch.equal(geometry.view(spread.expand(shape).contiguous()), numbers.expand(geometry.cut(shape)))
    if geometry in (Row(), Blocks(rows=2)) and len(shape) > 1:
        assert spread.shape == (shape[0], *(1 for _ in shape[1:]))  # no larger than it must be


@pytest.mark.parametrize(
    ("geometry", "shape", "expected"),
    [
        (Row(), (5, 3), (5, 1)),
        (Column(), (5, 3), (1, 3)),
        (Entry(), (5, 3), (5, 3)),
        (Whole(), (5, 3), (1, 1)),
        (Row(), (8, 4, 3, 3), (8, 1, 1, 1)),
        (Column(), (8, 4, 3, 3), (1, 4, 3, 3)),
        (Whole(), (8, 4, 3, 3), (1, 1, 1, 1)),
        (Blocks(rows=2), (8, 6), (2, 1, 1)),
        (Blocks(columns=3), (8, 6), (8, 3, 1)),
        (Blocks(rows=2, columns=3), (8, 6), (2, 1, 3, 1)),
        (Blocks(rows=2, columns=None), (8, 6), (2, 1, 6)),
        (Blocks(columns=2), (8, 4, 3, 3), (8, 2, 1, 1, 1)),
        *((geometry, (7,), (7,)) for geometry in (Row(), Column(), Entry(), Blocks(rows=3))),
        *((geometry, (), ()) for geometry in (*NAMED, Blocks(rows=3))),
        (Whole(), (7,), (1,)),
        (Batched(Row()), (5, 3), (5, 1)),
        (Batched(Row()), (8, 5, 3), (8, 5, 1)),
        (Batched(Column()), (8, 5, 3), (8, 1, 3)),
        (Batched(Entry()), (8, 5, 3), (8, 5, 3)),
        (Batched(Whole()), (8, 5, 3), (8, 1, 1)),
        (Batched(Row()), (2, 8, 5, 3), (2, 8, 5, 1)),
        (Batched(Blocks(rows=3)), (8, 6, 4), (8, 3, 1, 1)),
        (Batched(Blocks(columns=2)), (8, 6, 4), (8, 6, 2, 1)),
        (Batched(Blocks(2, 2)), (8, 6, 4), (8, 2, 1, 2, 1)),
        *((Batched(geometry), (7,), geometry.statistic_shape((7,))) for geometry in (*NAMED, Blocks(rows=3))),
        (Batched(Row()), (), ()),
    ],
)
def test_statistic_has_one_number_a_scale_and_keeps_the_dimensions(geometry, shape, expected):
    x = matrix(shape)
    assert geometry.statistic_shape(shape) == expected
    assert geometry.statistic(x).shape == expected
    assert geometry.scales(shape) == geometry.statistic(x).numel()
    assert geometry.scales(shape) * geometry.members(shape) == x.numel()


@given(geometries, shapes)
def test_the_blocks_are_a_partition(geometry, shape):
    x = matrix(shape)
    torch.testing.assert_close(geometry.statistic(x).sum(), x.square().sum())
    assert geometry.view(x).numel() == x.numel()
    if x.numel():
        assert geometry.view(x).data_ptr() == x.data_ptr()  # a view, never a copy


def test_blocks_group_consecutive_rows_and_cut_rows_into_consecutive_slices():
    x = matrix((6, 4))
    by_hand = torch.stack([x[:3].square().sum(), x[3:].square().sum()])
    torch.testing.assert_close(Blocks(rows=2).statistic(x).flatten(), by_hand)
    by_hand = torch.stack([x[:, :2].square().sum(1), x[:, 2:].square().sum(1)], 1)
    torch.testing.assert_close(Blocks(columns=2).statistic(x).squeeze(), by_hand)


@pytest.mark.parametrize(
    ("blocks", "named"),
    [(Blocks(None, 1), Row()), (Blocks(1, None), Column()), (Blocks(None, None), Entry()), (Blocks(1, 1), Whole())],
)
def test_the_named_geometries_are_blocks(blocks, named):
    x = matrix((4, 6, 2))
    torch.testing.assert_close(blocks.statistic(x), named.statistic(x), rtol=0, atol=0)


@given(st.sampled_from((*NAMED, *GRIDS)), st.integers(0, 2**16))
def test_a_batch_of_matrices_is_scaled_matrix_by_matrix(geometry, seed):
    x, batched = matrix((3, 2, 4, 6), seed), Batched(geometry)
    each = [geometry.statistic(single) for single in x.flatten(0, 1)]
    torch.testing.assert_close(batched.statistic(x).flatten(0, 1), torch.stack(each), rtol=0, atol=0)
    torch.testing.assert_close(batched.statistic(x[0, 0]), geometry.statistic(x[0, 0]), rtol=0, atol=0)
    assert batched.parts(x.shape) == [[0], [1], *([2 + d for d in own] for own in geometry.parts((4, 6)))]


@given(geometries, st.integers(0, 2**16))
def test_transposing_the_matrix_transposes_the_geometry(geometry, seed):
    x = matrix((4, 6), seed)
    assert geometry.transpose.transpose == geometry
    assert geometry.transpose.scales((6, 4)) == geometry.scales((4, 6))
    torch.testing.assert_close(geometry.transpose.norm(x.T), geometry.norm(x))
    torch.testing.assert_close(geometry.transpose.dual_norm(x.T), geometry.dual_norm(x))
    transposed, straight = geometry.transpose.statistic(x.T), geometry.statistic(x)
    torch.testing.assert_close(transposed.flatten().sort().values, straight.flatten().sort().values)


@given(geometries, shapes, st.integers(0, 2**16))
def test_norm_and_dual_norm_satisfy_hoelder_with_equality_at_the_aligned_point(geometry, shape, seed):
    x, g = matrix(shape, seed), matrix(shape, seed + 1)
    assert (x * g).sum().abs() <= geometry.norm(x) * geometry.dual_norm(g) * (1 + 1e-12)
    lengths = geometry.statistic(g).sqrt()
    aligned = geometry.view(g) / lengths  # every block of length 1: norm 1, and ⟨aligned, g⟩ is the dual norm
    torch.testing.assert_close((aligned * geometry.view(g)).sum(), geometry.dual_norm(g))


def test_row_norm_is_the_papers_and_column_norm_that_of_the_transpose():
    x = matrix((5, 3))
    assert Row().norm(x) == max(torch.linalg.vector_norm(row) for row in x)
    assert Column().norm(x) == Row().norm(x.T)
    assert Entry().norm(x) == x.abs().max()
    torch.testing.assert_close(Whole().norm(x), torch.linalg.matrix_norm(x, "fro"))


def test_complex_entries_count_with_their_magnitude():
    z = torch.tensor([[3 + 4j, 0], [1j, 1]])
    statistic = Row().statistic(z)
    assert statistic.dtype is torch.float32
    torch.testing.assert_close(statistic, torch.tensor([[25.0], [2.0]]))


def test_statistics_and_norms_of_narrow_numbers_are_wide():
    x = torch.full((2, 4), 300.0, dtype=torch.float16)  # its square is past float16
    assert Row().statistic(x).dtype is torch.float32
    assert Row().norm(x) == 600.0


VALUES = (*NAMED, Blocks(rows=3), Blocks(columns=2), Batched(Row()), Batched(Blocks(rows=3)))


@pytest.mark.parametrize("geometry", VALUES, ids=str)
def test_geometries_are_values(geometry, tmp_path):
    assert copy.deepcopy(geometry) == geometry
    assert pickle.loads(pickle.dumps(geometry)) == geometry
    assert hash(copy.deepcopy(geometry)) == hash(geometry)
    assert len(set(VALUES)) == len({str(value) for value in VALUES}) == len(VALUES)
    assert eval(repr(geometry)) == geometry
    with pytest.raises(FrozenInstanceError):
        geometry.rows = 5
    torch.save(geometry, tmp_path / "geometry")
    assert torch.load(tmp_path / "geometry", weights_only=True) == geometry


PRINTED = (*NAMED, *GRIDS, *BATCHED, Factored(), Factored("minimum"), Full("row", every=3), Spectral())


@pytest.mark.parametrize("geometry", [*PRINTED, Spectral(steps=None, dtype=torch.bfloat16)], ids=str)
def test_a_geometry_is_the_text_it_is_printed_as(geometry):
    assert as_geometry(str(geometry)) == geometry
    assert as_geometry(repr(geometry)) == geometry


def test_names():
    assert [as_geometry(name) for name in ("row", "column", "entry", "whole")] == list(NAMED)
    assert [str(geometry) for geometry in NAMED] == ["row", "column", "entry", "whole"]
    assert as_geometry(Blocks(rows=3)) == Blocks(rows=3)
    for geometry in (Row(), Column(), Whole()):
        assert as_geometry(f"batched({geometry})") == Batched(geometry) == Batched(str(geometry))
    assert str(Batched(Blocks(rows=3))) == "batched(blocks(rows=3, columns=1))"
    assert repr(Batched(Blocks(rows=3))) == "Batched(Blocks(rows=3))"


@pytest.mark.parametrize("two", [np.int64(2), np.uint8(2), torch.tensor(2)], ids=lambda two: type(two).__name__)
def test_blocks_take_the_integers_of_other_libraries(two):
    blocks = Blocks(rows=two, columns=two)
    assert blocks == Blocks(2, 2)
    assert (type(blocks.rows), type(blocks.columns)) == (int, int)
    assert (str(blocks), repr(blocks)) == (str(Blocks(2, 2)), repr(Blocks(2, 2)))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: as_geometry("rows"), ValueError, "'row', 'column', 'entry', 'whole'.* got 'rows'"),
        (lambda: as_geometry(3), TypeError, "got 3"),
        (lambda: as_geometry("Blocks(open('x'))"), ValueError, "is not a geometry"),
        (lambda: as_geometry("spectral(dtype=torch.nn)"), ValueError, "is not a geometry"),
        (lambda: as_geometry("factored(combine=sum)"), ValueError, "combine must be 'product'"),
        (lambda: as_geometry(Row), TypeError, r"write Row\(\)"),
        (lambda: as_geometry(Blocks), TypeError, r"write Blocks\(rows=3\)"),
        (lambda: as_geometry(Batched), TypeError, r"write Batched\(Row\(\)\) instead of Batched"),
        (lambda: Batched(Row), TypeError, r"write Row\(\)"),
        (lambda: Batched("rows"), ValueError, "got 'rows'"),
        (lambda: Batched(Batched(Row())), ValueError, r"Batched\(Row\(\)\) has its batch already"),
        (lambda: Blocks(rows=True), TypeError, "rows must be an int or None, got True"),
        (lambda: Blocks(rows=0), ValueError, "rows must be at least 1, got 0"),
        (lambda: Blocks(columns=2.5), TypeError, "columns must be an int or None, got 2.5"),
        (lambda: Blocks(rows=np.True_), TypeError, "rows must be an int or None, got np.True_"),
        (lambda: Blocks(rows=torch.tensor([2, 3])), TypeError, "rows must be an int or None, got tensor"),
        (lambda: Blocks(rows=np.int64(0)), ValueError, "rows must be at least 1, got 0"),
        (lambda: Batched(Blocks(rows=3)).check_fits("w", (3, 4, 6)), ValueError, "cannot cut 4 rows into 3"),
        (lambda: Blocks(rows=3).statistic_shape((100, 4)), ValueError, "cannot cut 100 rows into 3 equal parts"),
        (lambda: Blocks(columns=3).statistic_shape((3, 100)), ValueError, "cannot cut 100 columns into 3 equal parts"),
    ],
)
def test_what_is_wrong_is_said_with_its_value(call, error, words):
    with pytest.raises(error, match=words):
        call()


@dataclass(frozen=True)
class Wrong(Partition):
    own_cut: tuple[int, ...]
    own_dims: tuple[int, ...]

    def cut(self, _):
        return self.own_cut

    def dims(self, _):
        return self.own_dims

    @property
    def transpose(self):
        return self


@pytest.mark.parametrize(
    ("geometry", "words"),
    [
        (Wrong((7, 6), (5,)), r"sums over the dimensions \(5,\) of \(7, 6\)"),
        (Wrong((3, 2, 6), (1,)), r"views it as \(3, 2, 6\), of another size"),
    ],
)
def test_a_wrong_geometry_of_ones_own_is_refused_with_the_parameter_and_the_reason(geometry, words):
    with pytest.raises(ValueError, match=rf"parameter 'w', of shape \(7, 6\), does not fit its geometry: .*{words}"):
        MatrixAdaGrad([("w", torch.nn.Parameter(torch.ones(7, 6)))], geometry=geometry)


def test_a_geometry_says_in_which_norm_its_regret_is_bounded():
    spectral = Spectral(steps=None)
    bounded = {Row(): Row(), Factored(): Entry(), Full("row"): spectral, spectral: None}
    assert {geometry: geometry.regret_geometry for geometry in bounded} == bounded
    assert [geometry.is_diagonal for geometry in bounded] == [True, True, False, False]
    assert [geometry.has_root_scale for geometry in bounded] == [True, False, False, False]


def test_the_largest_of_the_squared_lengths_is_the_square_of_the_norm():
    x = torch.randn(5, 3, dtype=torch.float64)
    for geometry in (Row(), Column(), Blocks(columns=3), Whole(), Spectral(steps=None)):
        assert torch.allclose(geometry.squared_lengths(x).max(), geometry.norm(x).square())
        assert geometry.norm(x) <= geometry.norm_partition.norm(x) + 1e-12


def test_a_geometry_without_a_norm_and_without_a_diagonal_metric_says_so():
    with pytest.raises(TypeError, match=r"Factored\(.*\) has no norm"):
        _ = Factored().norm_partition
    with pytest.raises(TypeError, match=r"Full\('row'\) has no diagonal metric"):
        Full("row").scale(torch.eye(2))


def test_the_metric_on_one_side_is_put_together_from_its_eigenvectors():
    g = torch.randn(4, 6, dtype=torch.float64)
    for side, (dim, product) in {"row": (0, g @ g.T), "column": (1, g.T @ g)}.items():
        found, roots, vectors = Full(side).one_sided(g.shape, *Full(side).measure(g))
        assert found == dim
        assert torch.allclose((vectors * roots.square()) @ vectors.T, product)
    assert Full("row", block=2).one_sided(g.shape, *Full("row", block=2).measure(g)) is None
    assert Row().one_sided(g.shape, *Row().measure(g)) is None

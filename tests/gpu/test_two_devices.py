"""Training over two GPUs follows a single process: NCCL, FSDP2, DDP. On a CPU the same runs over gloo."""

import functools

import pytest
import torch

from matrix_adagrad import MatrixAdaGrad, MatrixMomentum
from matrix_adagrad.geometry import Column, Entry, Row, Whole
from tests.gpu import ranks as bodies

is_missing = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
kind = pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=is_missing)])


@kind
@pytest.mark.parametrize("geometry", [Row(), Column(), Entry(), Whole()], ids=str)
@pytest.mark.parametrize("engine", [bodies.fsdp, bodies.replicated], ids=lambda engine: engine.__name__)
@pytest.mark.parametrize("optimizer", [MatrixAdaGrad, MatrixMomentum], ids=lambda cls: cls.__name__)
def test_training_under_an_engine_follows_a_single_process(ranks, tmp_path, kind, engine, geometry, optimizer):
    make = functools.partial(optimizer, lr=0.03, geometry=geometry, eps=1e-3)
    store = str(tmp_path / "store")
    for names in ranks.run(2, bodies.in_group, kind, store, bodies.follows_a_single_process, engine, make):
        assert names or kind == "cpu"


@kind
@pytest.mark.parametrize("optimizer", [MatrixAdaGrad, MatrixMomentum], ids=lambda cls: cls.__name__)
def test_sparse_gradients_of_two_ranks_follow_a_single_process(ranks, tmp_path, kind, optimizer):
    make = functools.partial(optimizer, lr=0.03, geometry=Row(), eps=1e-3)
    store = str(tmp_path / "store")
    for names in ranks.run(2, bodies.in_group, kind, store, bodies.sparse_tables_follow, make):
        assert names or kind == "cpu"

"""The contestants of benchmarks/dlrm that are AdaGrad by row take the same steps, also by TorchRec in two processes."""

import itertools
import os

import pytest
import torch

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports TorchRec and FBGEMM: make test-integrations", allow_module_level=True)
pytest.importorskip("torchrec.distributed", reason="TorchRec is not installed: make test-integrations")

import torch.distributed as dist

from benchmarks.dlrm.peers import FBGEMM, OURS, PEERS, SHARDED, TORCHREC
from benchmarks.dlrm.processes import together
from benchmarks.dlrm.training import Run, Setting, _Trainer
from matrix_adagrad.datasets.clicks import auc

pytestmark = pytest.mark.filterwarnings("ignore")  # of the peers' own
SMALL = Setting(tables=4, rows=40, width=4, ids=3, dense=2, batch=32, steps=12, held_out=2000)


@pytest.fixture
def _group():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("_group")
def test_all_that_are_adagrad_by_row_end_with_the_same_scores():
    batches, ends = list(itertools.islice(SMALL.clicks(0).batches(32), 12)), []
    for make in (PEERS[OURS], PEERS[TORCHREC], PEERS[FBGEMM], *SHARDED.values()):
        trainer = _Trainer(make, 0.1, 0, SMALL)
        for batch in batches:
            trainer.step(batch)
        ends.append(trainer.scores(batches)[0])
    for other in ends[1:]:
        torch.testing.assert_close(other, ends[0], rtol=1e-4, atol=1e-5)
    assert auc(ends[0], torch.cat([batch.clicked for batch in batches])) > 0.5


def test_two_processes_train_one_model():
    found = [together(Run(name, 0.1, 0, SMALL, 1)) for name in SHARDED]
    for ranks in found:
        assert ranks[0].auc == ranks[1].auc <= ranks[0].ceiling
    assert found[0][0].auc == pytest.approx(found[1][0].auc, abs=1e-3)  # the same optimizer, the same batches

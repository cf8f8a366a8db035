"""The code of the pages that need other packages runs as printed."""

import os

import pytest

from tests.test_docs import ELSEWHERE, ROOT, run

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports TorchRec, Transformers, Lightning and JAX: make test-integrations", allow_module_level=True)


@pytest.mark.filterwarnings("ignore")  # of the packages' own
@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_code_runs_as_printed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run(ROOT / "docs" / name)

"""The paper, statement by statement: each holds on random matrices, and each check is shown to be able to fail."""

import pytest
import torch

from tests.online.paper import evolution, examples, functions, games, mirror_descent, transposition
from tests.online.paper.statements import STATEMENTS

PARTS = [part.__name__ for part in (functions, mirror_descent, evolution, games, examples, transposition)]
IN_ORDER = sorted(STATEMENTS, key=lambda statement: PARTS.index(statement.claims.__module__))  # of the paper


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """On matrices so small threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("statement", IN_ORDER, ids=str)
def test_the_statement_holds(statement):
    claims = [failure for case in statement.over for failure in statement.failures(case)]
    assert claims
    failures = [failure for failure in claims if failure]
    assert not failures, f"{len(failures)} of {len(claims)} claims fail, first {failures[0]}"


@pytest.mark.parametrize("statement", IN_ORDER, ids=str)
def test_broken_on_purpose_each_claim_of_the_statement_fails_somewhere(statement):
    claims, fallen = set(), set()
    for case in statement.over:
        for number, failure in enumerate(statement.failures(case, broken=True)):
            claims.add(number)
            if failure:
                fallen.add(number)
    assert fallen == claims

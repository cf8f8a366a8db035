"""No cell is asked for without a reason."""

import pytest

from reproduction.experiments import EXPERIMENTS, Results
from tests.reproduction.fakes import played


@pytest.mark.parametrize("what", EXPERIMENTS)
def test_a_part_of_it_needs_only_its_own_cells(what):
    other = [cell for name in EXPERIMENTS if name != what for cell in Results({}, is_quick=True).needed(name)]
    assert not set(played(what, is_quick=True).known) & set(other)

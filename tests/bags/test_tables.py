"""The bags that many tables take, in all forms: sums and steps are the subject of test_fuzz.py."""

import pytest
import torch

from matrix_adagrad import (
    RowAdaGrad,
    Table,
    native,
    step_in_backward,
)
from tests.bags.tables import FEATURES, bags_of, batch, one_table, train
from tests.optim.table import TABLE
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


def test_bags_by_name_in_a_matrix_in_pairs_and_in_one_list_are_the_same():
    bags = bags_of()
    index = torch.arange(8).view(2, 4) % 20
    offsets = torch.tensor([0, 4, 8])
    all_index, all_offsets = index.reshape(-1).repeat(4), torch.arange(0, 33, 4)
    names = ["user", "seen", "bought", "type"]
    outs = [
        bags(all_index, all_offsets),
        bags(all_index.int(), all_offsets.int()),
        bags(all_index.tolist(), all_offsets.tolist()),
        bags(dict.fromkeys(names, index)),
        bags(dict.fromkeys(reversed(names), (index.reshape(-1), offsets))),
        bags(dict.fromkeys(names, index.tolist())),
        bags({**dict.fromkeys(names, index.int()), "seen": (index.reshape(-1).tolist(), offsets.tolist())}),
    ]
    assert outs[0].shape == (2, 8 + 4 + 4 + 6)
    assert_bitwise(outs[:1] * 6, outs[1:])


@pytest.mark.parametrize("empty", [[[], []], ([], [0, 0, 0])], ids=["matrix", "pair"])
def test_bags_may_be_empty_lists(empty):
    bags = bags_of({"user": (5, 2), "type": (5, 3)})
    out = bags({"user": empty, "type": [[1], [2]]})
    assert_bitwise([out], [torch.cat([torch.zeros(2, 2), bags.tables["type"][1:3]], 1)])


def test_the_columns_of_each_feature_have_its_name():
    bags = bags_of()
    out = bags(*batch())
    by_feature = bags.by_feature(out)
    assert list(by_feature) == ["user", "seen", "bought", "type"]
    assert_bitwise([torch.cat(list(by_feature.values()), 1)], [out])


@pytest.mark.parametrize("entrant", TABLE, ids=str)
def test_a_batch_without_bags_and_one_of_empty_bags_are_the_same_step(entrant):
    ends = []
    for offsets in (torch.zeros(1, dtype=torch.long), torch.zeros(2 * len(FEATURES) + 1, dtype=torch.long)):
        for in_backward in (False, True):
            bags = bags_of()
            optimizer = entrant(bags.parameters())
            train(bags, optimizer, 1)
            if in_backward:
                step_in_backward(optimizer)
            bags.zero_grad()
            out = bags(torch.zeros(0, dtype=torch.long), offsets)
            assert out.shape == ((len(offsets) - 1) // len(FEATURES), sum(bags.widths))
            out.sum().backward()
            optimizer.step()
            ends.append([x for table in bags.tables.values() for x in (table, *optimizer.state[table].values())])
    for end in ends[1:]:
        assert_bitwise(end, ends[0])


def test_a_table_without_rows_takes_part():
    bags = bags_of({"user": (0, 4), "type": (5, 2)})
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    before = bags.tables["type"].detach().clone()
    out = bags({"user": [[], []], "type": [[1], [2]]})
    out.sum().backward()
    assert out.shape == (2, 6)
    assert bags.tables["type"][1:3].ne(before[1:3]).all()
    with pytest.raises(IndexError, match="the table 'user' has 0 rows, and its bags have rows 3 to 3"):
        bags({"user": [[3]], "type": [[1]]})


def test_tables_of_several_dtypes_are_summed_in_the_widest():
    bags = bags_of({"user": Table(5, 2, dtype=torch.bfloat16), "type": Table(5, 3, dtype=torch.float64)})
    out = bags({"user": [[1]], "type": [[2]]})
    assert out.dtype == torch.float64
    assert_bitwise([out], [torch.cat([bags.tables["user"][1:2].double(), bags.tables["type"][2:3]], 1)])


def test_padding_rows_start_as_zeros_and_stay():
    bags = bags_of({"user": Table(10, 4, padding_idx=3), "type": Table(10, 4, mode="mean", padding_idx=0)})
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    out = bags({"user": [[3, 1]], "type": [[0, 4]]})
    assert_bitwise([out], [torch.cat([bags.tables["user"][1:2], bags.tables["type"][4:5]], 1)])
    out.sum().backward()
    assert not bags.tables["user"][3].any()
    assert not bags.tables["type"][0].any()


@pytest.mark.parametrize("given", ["list", "tensor", "names"])
def test_the_default_device_does_not_matter_to_tables_on_the_cpu(given):
    bags, weights = one_table(), torch.ones(2, requires_grad=True)
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    index, offsets = torch.tensor([1, 2]), torch.tensor([0, 2])
    with torch.device("meta"):
        out = {
            "list": lambda: bags([1, 2], [0, 2], weights),
            "tensor": lambda: bags(index, offsets, weights),
            "names": lambda: bags({"user": [[1, 2]]}),
        }[given]()
        out.sum().backward()
    assert out.is_cpu
    assert given == "names" or weights.grad.is_cpu

"""Many tables at once: what they promise besides their sums and steps, which test_fuzz.py is about."""

import copy
import functools
import io
import pickle
import re
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from matrix_adagrad import (
    EmbeddingBags,
    MatrixAdaGrad,
    RowAdaGrad,
    RowMomentum,
    SteepestDescent,
    Table,
    native,
    step_in_backward,
)
from matrix_adagrad.advisor import Probe
from matrix_adagrad.bags import BagGradient
from matrix_adagrad.domains import RowBalls
from matrix_adagrad.geometry import Column, Row
from matrix_adagrad.torch_private import has_free_memory
from tests.bags.tables import BAGS, FEATURES, TABLES, bags_of, batch, copies, one_table
from tests.optim.table import TABLE
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


def assert_same_tables(bags, other):
    assert_bitwise(list(bags.tables.values()), list(other.tables.values()))


def train(bags, optimizer, steps=4, start=0, after=lambda _: None):
    for step in range(start, start + steps):
        optimizer.zero_grad()
        bags(*batch(step)).square().sum().backward()
        optimizer.step()
        after(step)


def both_ways(make, edit=lambda *_: None, steps=5, **options):
    """Bags trained by optimizer.step(), and in the backward pass. After each step comes edit(optimizer, t)."""
    ends = []
    for in_backward in (False, True):
        bags = bags_of(**options)
        optimizer = make(bags)
        if in_backward:
            step_in_backward(optimizer)
        train(bags, optimizer, steps, after=lambda t, optimizer=optimizer: edit(optimizer, t))
        ends.append((bags, optimizer))
    return ends


def assert_both_ways(make, edit=lambda *_: None, **options):
    (after, optimizer), (during, stepping) = both_ways(make, edit, **options)
    assert_same_tables(after, during)
    for table, other in zip(after.tables.values(), during.tables.values(), strict=True):
        assert other.grad is None
        assert_bitwise(list(optimizer.state[table].values()), list(stepping.state[other].values()))


# ----------------------------------------------------------------------------------------------- what a batch may be


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


# ----------------------------------------------------------------------------------------------------- parameter groups


def groups(bags, own):
    return [{"params": [table], **own[name]} for name, table in bags.tables.items()]


@pytest.mark.parametrize(
    "own",
    [
        {"user": {"lr": 0.1}, "items": {"lr": 0.01}, "type": {"lr": torch.tensor(0.3)}},
        {"user": {"geometry": Row()}, "items": {"geometry": Column()}, "type": {"geometry": Row()}},
        {"user": {"domain": RowBalls(0.5), "project_start": True}, "items": {}, "type": {"weight_decay": 0.1}},
        {"user": {"fused": False}, "items": {"foreach": True}, "type": {}},
    ],
    ids=["rates", "geometries", "domains", "backends"],
)
def test_groups_give_each_table_its_own_options(own):
    def make(bags):
        return MatrixAdaGrad(groups(bags, own), geometry=Row(), lr=0.1)

    assert_both_ways(make)
    _, (together, _) = both_ways(make)
    for name, options in own.items():
        bags = bags_of()
        train(bags, MatrixAdaGrad([{"params": [bags.tables[name]], **options}], geometry=Row(), lr=0.1), 5)
        assert torch.equal(bags.tables[name], together.tables[name])


def test_schedules_are_followed():
    def make(bags):
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        schedulers[optimizer] = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        return optimizer

    schedulers = {}
    assert_both_ways(make, lambda optimizer, _: schedulers[optimizer].step())


@pytest.mark.parametrize(
    "edits",
    [
        {"lr": 0.5},
        {"weight_decay": 0.2},
        {"weight_decay": 0.2, "decoupled_weight_decay": True},
        {"maximize": True},
        {"betas": (0.5, 0.6)},
        {"betas": (0.0, 0.6)},
        {"nesterov": True},
        {"reduction": "mean"},
        {"fused": False},
        {"foreach": True},
        {"domain": RowBalls(0.5)},
        {"eps": 0.1},
    ],
    ids=str,
)
def test_edits_of_a_group_count_from_the_next_step_on(edits):
    def edit(optimizer, t):
        if t == 1:
            optimizer.param_groups[0].update(edits)

    def make(bags):
        return RowMomentum(bags.parameters(), lr=0.1)

    assert_both_ways(make, edit)
    (edited, _), _ = both_ways(make, edit)
    (same, _), _ = both_ways(make)
    assert edits == {"fused": False} or not torch.equal(edited.tables["user"], same.tables["user"])


def test_edits_in_place_count_too():
    def edit(optimizer, t):
        optimizer.param_groups[0]["betas"][0] = 0.8 - 0.1 * t
        optimizer.param_groups[0]["lr"].mul_(0.9)

    assert_both_ways(lambda bags: RowMomentum(bags.parameters(), lr=torch.tensor(0.1), betas=[0.9, 0.99]), edit)


def test_another_geometry_is_refused_as_by_a_step():
    bags = bags_of()
    optimizer = MatrixAdaGrad(bags.parameters(), geometry=Row())
    step_in_backward(optimizer)
    train(bags, optimizer, 1)
    optimizer.param_groups[0]["geometry"] = Column()
    before = copies(bags)
    with pytest.raises(RuntimeError, match="made for another: make a new optimizer"):
        train(bags, optimizer, 1)
    assert_bitwise(list(copies(bags).values()), list(before.values()))


def test_groups_in_another_order_are_not_taken_for_each_other():
    bags = bags_of({"user": (10, 4), "type": (10, 4)})
    optimizer = RowAdaGrad([{"params": [table]} for table in bags.tables.values()])
    step_in_backward(optimizer)
    bags([1, 2], [0, 1, 2]).sum().backward()
    optimizer.param_groups.reverse()
    before = copies(bags)
    with pytest.raises(RuntimeError, match="the optimizer's groups have changed since step_in_backward: call it again"):
        bags([1, 2], [0, 1, 2]).sum().backward()
    assert_bitwise(list(copies(bags).values()), list(before.values()))


def test_a_loaded_state_counts_from_the_next_step_on():
    def edit(optimizer, t):
        if t == 1:
            saved = copy.deepcopy(optimizer.state_dict())
            for state in saved["state"].values():
                state["sum"].mul_(9)
            optimizer.load_state_dict(saved)

    def make(bags):
        return RowAdaGrad(bags.parameters(), lr=0.1)

    assert_both_ways(make, edit)
    (edited, _), _ = both_ways(make, edit)
    (same, _), _ = both_ways(make)
    assert not torch.equal(edited.tables["user"], same.tables["user"])


def test_steepest_descent_steps_in_the_backward_pass():
    assert_both_ways(lambda bags: SteepestDescent(bags.parameters(), lr=0.1))


def test_a_probe_sees_what_it_sees_in_the_ordinary_loop():
    reports = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        looked_at = step_in_backward(optimizer).optimizers if in_backward else optimizer
        with Probe(bags, looked_at, every=1) as probe:
            train(bags, optimizer)
        reports.append([(own.name, own.observed, own.gradient_norm, own.bound) for own in probe.report()])
    assert reports[0] == reports[1]
    assert [name for name, *_ in reports[0]] == ["tables.user", "tables.items", "tables.type"]


def test_stochastic_rounding_draws_for_each_table_and_is_right_on_average():
    """A gradient of ones moves a row by lr. That is an eighth of a unit in the last place: an eighth of them move."""
    bags = bags_of({"user": (4000, 8), "type": (4000, 8)}, dtype=torch.bfloat16)
    for table in bags.tables.values():
        nn.init.ones_(table)
    optimizer = MatrixAdaGrad(bags.parameters(), geometry=Row(), lr=2**-11 * 8**0.5, stochastic_rounding=True)
    step_in_backward(optimizer)
    index = torch.arange(4000).repeat(2)
    bags(index, torch.arange(8001)).sum().backward()
    moved = [table.detach().ne(1) for table in bags.tables.values()]
    for own in moved:  # a step of 2^-11 downwards, where neighbours are 2^-8 apart: p = 1/8, 32,000 draws, 6 sigma
        assert abs(own.double().mean() - 1 / 8) < 6 * (1 / 8 * 7 / 8 / 32_000) ** 0.5
    assert not torch.equal(*moved)


# ------------------------------------------------------------------------------------------- one backward pass, and two


def test_two_passes_before_one_backward_are_one_step():
    ends = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        if in_backward:
            step_in_backward(optimizer)
        (bags(*batch(0)).square().sum() + bags(*batch(1)).square().sum()).backward()
        optimizer.step()
        assert {float(state["step"]) for state in optimizer.state.values()} == {1}
        ends.append(bags)
    assert_same_tables(*ends)


def test_two_passes_with_a_backward_each_are_two_steps():
    bags = bags_of()
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    losses = [bags(*batch(seed)).square().sum() for seed in (0, 1)]
    for loss in losses:
        loss.backward()
    assert {float(state["step"]) for state in optimizer.state.values()} == {2}


def test_a_retained_pass_is_as_many_steps_as_it_runs():
    ends = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        if in_backward:
            step_in_backward(optimizer)
        loss = bags(*batch()).sum()
        for _ in range(2):
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
        ends.append(bags)
    assert_same_tables(*ends)


def used_elsewhere(bags, offsets=(0, 1, 2)):
    return bags([1, 2], offsets).sum() + bags.tables["user"][2].sum()


def by_two_modules(bags):
    other = bags_of({"user": (10, 4)})
    other.tables["user"] = bags.tables["user"]
    return bags([1, 2], [0, 1, 2]).sum() + other([2], [0, 1]).sum()


def retained_and_new(bags):
    retained = bags([1, 2], [0, 1, 2]).sum()
    optimizerless = [table.detach().clone() for table in bags.tables.values()]
    retained.backward(retain_graph=True)
    with torch.no_grad():
        for table, before in zip(bags.tables.values(), optimizerless, strict=True):
            table.copy_(before)
            table.grad = None
    return retained + bags([1, 2], [0, 1, 2]).sum()


@pytest.mark.parametrize("loss_of", [used_elsewhere, by_two_modules, retained_and_new])
def test_a_table_whose_gradient_has_parts_is_refused_in_the_backward_pass_and_right_after_it(loss_of):
    bags = bags_of({"user": (10, 4), "type": (10, 4)})
    expected, weight = torch.autograd.grad(loss_of(bags), bags.tables["user"])[0], bags.tables["user"]
    loss_of(bags).backward()
    assert_bitwise([weight.grad.to_dense()], [expected.to_dense()])
    bags.zero_grad()
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    loss = loss_of(bags)
    steps = optimizer.state[weight].get("step", torch.zeros(())).clone()
    with pytest.raises(
        RuntimeError, match=r"a table of shape .* its gradient has two parts, and step_in_backward needs"
    ):
        loss.backward()
    assert optimizer.state[weight]["step"] <= steps + 1


def test_a_table_under_two_names_takes_one_step_along_the_sum():
    ends = []
    for in_backward in (False, True):
        bags = bags_of({"user": (10, 4), "type": (10, 4)})
        bags.tables["type"] = bags.tables["user"]
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        if in_backward:
            step_in_backward(optimizer)
        bags([1, 1, 2], [0, 1, 3]).sum().backward()
        optimizer.step()
        assert optimizer.state[bags.tables["user"]]["step"] == 1
        ends.append(bags)
    assert_same_tables(*ends)


def test_gradients_accumulate_and_the_last_pass_steps():
    ends = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            for seed in (0, 1):
                bags(*batch(10 * step + seed)).square().sum().backward()
            assert all(isinstance(table.grad, BagGradient) for table in bags.tables.values())
            last = bags(*batch(10 * step + 2)).square().sum()
            if in_backward:
                with step_in_backward(optimizer):
                    last.backward()
            else:
                last.backward()
                optimizer.step()
        ends.append(bags)
    assert_same_tables(*ends)
    assert all(table.grad is None for table in ends[1].tables.values())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_frozen_table_stays_and_the_others_move(when):
    bags = bags_of()
    if when == "before":
        bags.tables["user"].requires_grad_(False)
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    bags.tables["user"].requires_grad_(False)
    before = copies(bags)
    train(bags, optimizer)
    assert torch.equal(bags.tables["user"], before["user"])
    assert not torch.equal(bags.tables["type"], before["type"])


def test_without_grad_nothing_is_recorded_and_the_next_pass_steps():
    bags, other = bags_of(), bags_of()
    for own, interrupted in ((bags, False), (other, True)):
        optimizer = RowAdaGrad(own.parameters(), lr=0.1)
        step_in_backward(optimizer)
        out = own(*batch()).square().sum()
        if interrupted:
            for context in (torch.no_grad(), torch.inference_mode()):
                with context:
                    assert not own(*batch(1)).requires_grad
        out.backward()
        train(own, optimizer, 2)
    assert_same_tables(bags, other)


def test_a_gradient_that_is_asked_for_is_returned_and_nothing_moves():
    bags, weights = one_table(), torch.ones(2, requires_grad=True)
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    before = copies(bags)
    loss = bags([1, 2], [0, 2], weights).sum()
    (by_weight,) = torch.autograd.grad(loss, weights, retain_graph=True)
    assert_bitwise([by_weight], [bags.tables["user"][1:3].sum(1)])
    (by_table,) = torch.autograd.grad(loss, bags.tables["user"])
    assert by_table.to_dense()[1:3].eq(1).all()
    assert_bitwise(list(bags.tables.values()), list(before.values()))


def test_a_backward_pass_to_one_table_moves_that_one():
    bags = bags_of()
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    before = copies(bags)
    bags(*batch()).sum().backward(inputs=[bags.tables["type"]])
    assert torch.equal(bags.tables["user"], before["user"])
    assert torch.equal(bags.tables["items"], before["items"])
    assert not torch.equal(bags.tables["type"], before["type"])


def test_a_hook_on_a_table_changes_its_gradient_before_the_step():
    ends = []
    for in_backward in (False, True):
        bags = one_table()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1, eps=1.0)
        if in_backward:
            step_in_backward(optimizer)
        bags.tables["user"].register_hook(lambda grad: grad * 3)
        bags([1, 2], [0, 2]).sum().backward()
        optimizer.step()
        assert optimizer.state[bags.tables["user"]]["sum"].max() == 9 * 4
        ends.append(bags)
    assert_same_tables(*ends)


def test_checkpointed_activations_are_the_same_step():
    ends = []
    for recompute in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        step_in_backward(optimizer)
        for seed in range(3):
            index, offsets = batch(seed)
            if recompute:
                out = torch.utils.checkpoint.checkpoint(bags, index, offsets, use_reentrant=False)
            else:
                out = bags(index, offsets)
            out.square().sum().backward()
        ends.append(bags)
    assert_same_tables(*ends)


def test_a_gradient_of_the_gradient_is_refused():
    bags, weights = one_table(), torch.ones(1, requires_grad=True)
    (grad,) = torch.autograd.grad(bags([1], [0, 1], weights).square().sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


# ---------------------------------------------------------------------------------------------- threads and memory


def test_the_bits_do_not_depend_on_threads():
    """With tables of very different sizes: small ones are shared out, a large one is split."""
    tables = {"user": (40_000, 64), "items": (300, 64), "type": (7, 20), "shop": (2000, 1)}
    random, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    index = torch.cat([torch.randint(rows, (900 * 7,), generator=random) for rows, _ in tables.values()])
    offsets, upstream = torch.arange(900 * 4 + 1) * 7, torch.randn(900, 149, generator=random)
    for geometry in (Row(), Column()):
        ends = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            try:
                bags = bags_of(tables)
                optimizer = MatrixAdaGrad(bags.parameters(), geometry=geometry)
                step_in_backward(optimizer)
                outs = []
                for _ in range(2):
                    outs.append(bags(index, offsets))
                    outs[-1].backward(upstream)
                ends.append([*outs, *bags.tables.values()])
            finally:
                torch.set_num_threads(before)
        assert_bitwise(ends[0] * 2, ends[1] + ends[2])


def saved_for_backward(out):
    square = out.square()
    return lambda: torch.autograd.grad(square.sum(), out, retain_graph=True)[0] / 2


@pytest.mark.parametrize(
    "keep",
    [
        lambda out: out,
        lambda out: out.detach(),
        lambda out: out[1:, 2:],
        lambda out: out.detach().view(-1)[3:].as_strided((2, 3), (1, 1)),
        lambda out: torch.from_numpy(out.detach().numpy()),
        lambda out: torch.from_numpy(np.asarray(out.detach())[1:]),
        lambda out: torch.frombuffer(memoryview(out.detach().numpy()), dtype=torch.float32),
        lambda out: torch.from_dlpack(out.detach()),
        lambda out: out.relu_(),
        saved_for_backward,
        lambda out: functools.partial(torch.tensor([]).set_, out.detach().untyped_storage()),
    ],
    ids=["output", "detached", "view", "strided", "numpy", "array", "buffer", "dlpack", "in_place", "saved", "storage"],
)
def test_an_output_that_somebody_keeps_is_never_overwritten(keep):
    bags = bags_of()
    kept = []
    for seed in range(6):
        found = keep(bags(*batch(seed)))
        read = found if callable(found) and not isinstance(found, torch.Tensor) else lambda found=found: found
        kept.append((read, read().detach().clone()))
        del found, read
    for read, before in kept:
        assert_bitwise([read()], [before])


def test_an_output_that_another_process_may_see_is_never_overwritten():
    """Such as one that was sent through a queue: the sender lets go of it before the receiver has read it."""
    bags = bags_of()
    out = bags(*batch()).detach().share_memory_()
    handle = out.untyped_storage()._share_filename_cpu_()
    expected = out.clone()
    del out
    for seed in range(3):
        bags(*batch(seed + 1))
    received = torch.UntypedStorage._new_shared_filename_cpu(*handle)
    assert_bitwise([torch.tensor([]).set_(received)[: expected.numel()].view_as(expected)], [expected])


def test_outputs_of_threads_are_their_own():
    bags, errors, interval = bags_of({"user": (1000, 16)}), [], sys.getswitchinterval()

    def run(seed):
        random, kept = torch.Generator().manual_seed(seed), []
        try:
            for _ in range(200):
                index = torch.randint(1000, (50,), generator=random)
                kept = [*kept[-2:], (index, bags(index, torch.arange(51)))]
                for own, out in kept:
                    assert torch.equal(out, bags.tables["user"][own])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_the_memory_of_an_output_is_used_again_once_it_is_gone():
    bags = bags_of()
    bags(*batch())  # of this size, and never seen again
    places = {bags(*batch(seed)).data_ptr() for seed in range(5)}
    assert len(places) == 1


def test_an_output_has_memory_for_itself_alone():
    """torch.save writes all the memory that a tensor lies in."""
    bags = bags_of()
    bags(*batch(bags=100))
    out, file = bags(*batch(bags=1)).detach(), io.BytesIO()
    torch.save(out, file)
    assert out.untyped_storage().nbytes() == out.numel() * 4
    assert file.tell() < 100 * out.numel() * 4


def test_memory_that_was_given_back_is_not_used():
    bags = bags_of()
    out = bags(*batch()).detach()
    expected = out.clone()
    out.untyped_storage().resize_(0)
    del out
    assert_bitwise([bags(*batch())], [expected])
    assert has_free_memory(expected)


# ------------------------------------------------------------------------------------------------- a module like others


def test_copies_pickles_and_state_dicts_have_the_same_rows_and_go_their_own_ways():
    bags = bags_of()
    bags(*batch())  # what it knows from this call is not copied
    loaded = EmbeddingBags(TABLES)
    loaded.load_state_dict(bags.state_dict())
    for twin in (copy.deepcopy(bags), pickle.loads(pickle.dumps(bags)), loaded):
        assert_bitwise([twin(*batch())], [bags(*batch())])
        before = copies(bags)
        twin(*batch()).sum().backward()
        RowAdaGrad(twin.parameters(), lr=0.1).step()
        assert_bitwise(list(bags.tables.values()), list(before.values()))
        assert not torch.equal(twin(*batch()), bags(*batch()))
        assert all(table.grad is None for table in bags.tables.values())


NAMES = [
    "items",
    "type",
    "keys",
    "values",
    "training",
    "forward",
    "_parameters",
    "T_destination",
    "user name",
    "1",
    "é",
]


def test_tables_may_have_any_name():
    bags = bags_of(dict.fromkeys(NAMES, (5, 2)))
    for change in (bags.eval, bags.train, bags.float, bags.zero_grad, lambda: bags.requires_grad_(True)):
        change()
    assert list(bags.state_dict()) == [f"tables.{name}" for name in NAMES] == [n for n, _ in bags.named_parameters()]
    twin = copy.deepcopy(bags)
    for assign in (False, True):
        bags.load_state_dict({name: x + 1 for name, x in bags.state_dict().items()}, assign=assign)
    for name in NAMES:
        torch.testing.assert_close(bags.tables[name].detach(), twin.tables[name].detach() + 2)
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    bags(torch.ones(len(NAMES), dtype=torch.long), torch.arange(len(NAMES) + 1)).sum().backward()
    assert pickle.loads(pickle.dumps(bags)).tables["training"][1].ne(twin.tables["training"][1] + 2).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_another_dtype_is_followed_between_steps(dtype):
    ends = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        if in_backward:
            step_in_backward(optimizer)
        train(bags, optimizer, 2)
        bags.to(dtype)
        assert bags(*batch()).dtype == dtype
        train(bags, optimizer, 2, start=2)
        bags.float()
        train(bags, optimizer, 2, start=4)
        ends.append(bags)
    assert_same_tables(*ends)


def test_on_the_meta_device_it_has_shapes():
    bags = bags_of(device="meta")
    index, offsets = batch()
    assert bags(index.to("meta"), offsets.to("meta")).shape == (BAGS, sum(bags.widths))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler asks for it
def test_a_model_around_it_may_be_compiled():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags, self.head = bags_of(), nn.Linear(22, 1)

        def forward(self, index, offsets):
            return self.head(torch.relu(self.bags(index, offsets)))

    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    for seed in range(2):
        grads = []
        for run in (model, compiled):
            model.zero_grad()
            run(*batch(seed)).sum().backward()
            grads.append([param.grad.to_dense() for param in model.parameters()])
        torch.testing.assert_close(*grads)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_functions_are_torchs():
    bags, inputs = bags_of(), batch()
    params = dict(bags.named_parameters())

    def loss(params):
        return torch.func.functional_call(bags, params, inputs).square().sum()

    expected = torch.autograd.grad(loss(params), list(params.values()))
    found = torch.func.grad(loss)({name: param.detach() for name, param in params.items()})
    for name, grad in zip(params, expected, strict=True):
        torch.testing.assert_close(found[name].to_dense(), grad.to_dense())
    stacked = {name: torch.stack([param.detach(), 2 * param.detach()]) for name, param in params.items()}
    torch.testing.assert_close(torch.func.vmap(loss)(stacked), loss(params).detach() * torch.tensor([1.0, 4.0]))


def test_without_kernels_it_is_the_same_in_torchs_operators(monkeypatch):
    bags, weights = bags_of({"user": Table(50, 8, padding_idx=4), "type": (20, 3)}), torch.rand(24)
    index = torch.randint(20, (24,))
    offsets = torch.tensor([0, 0, 5, 9, 20, 24, 24])
    outs = [bags(index, offsets, weights)]
    monkeypatch.setattr(native, "missing", lambda: "taken away")
    outs.append(bags(index, offsets, weights))
    outs[1].sum().backward()
    torch.testing.assert_close(*outs)
    assert type(bags.tables["user"].grad) is torch.Tensor


# ------------------------------------------------------------------------------------------------------------ bad input


WITHOUT_KERNELS = pytest.mark.parametrize("has_kernels", [True, False], ids=["native", "torch"])


def take_away_kernels(monkeypatch, has_kernels):
    if not has_kernels:
        monkeypatch.setattr(native, "missing", lambda: "taken away")


@WITHOUT_KERNELS
@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("wrong", [-1, 20, 2**40, -(2**60)])
def test_a_row_that_no_table_has_is_refused_with_the_tables_name(wrong, padding, has_kernels, monkeypatch):
    take_away_kernels(monkeypatch, has_kernels)
    bags = bags_of({"user": (50, 8), "items": Table(20, 3, features=("seen", "bought"), padding_idx=padding)})
    optimizer = RowAdaGrad(bags.parameters())
    step_in_backward(optimizer)
    low, high = sorted([wrong, 7])
    message = f"the table 'items' has 20 rows, and its bags of 'bought' have rows {low} to {high}"
    with pytest.raises(IndexError, match=re.escape(message)):
        bags({"user": [[40]], "seen": [[1]], "bought": [[7, wrong]]})


@WITHOUT_KERNELS
@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 1, 2, 3, 3], "offsets must go from 0 to the 4 indices, got 0 to 3"),
        ([1, 1, 2, 3, 4], "offsets must go from 0 to the 4 indices, got 1 to 4"),
        ([-1, 1, 2, 3, 4], "offsets must go from 0"),
        ([0, 1, 2, 3, 5], "offsets must go from 0"),
        ([0, 2, 1, 3, 4], "offsets must never decrease"),
        ([0, 1, 3, 2, 4], "offsets must never decrease"),
        ([0, -1, 2, 3, 4], "offsets must never decrease"),
        ([0, 1, 9, 3, 4], "offsets must never decrease"),
        ([0, 2**62, 2, 3, 4], "offsets must never decrease"),
        ([0, 1, 2, 4], "offsets must have one number more than 2 features times the bags of each, got 4"),
        ([], "offsets must be a list of integers, got shape .0,. and dtype torch.float32"),
        ([[0, 1, 2, 3, 4]], "offsets must be a list of integers"),
        ([0.0, 1.0, 2.0, 3.0, 4.0], "offsets must be a list of integers"),
        ([True] * 5, "offsets must be a list of integers"),
    ],
    ids=str,
)
def test_offsets_that_are_none_are_refused(offsets, message, padding, has_kernels, monkeypatch):
    take_away_kernels(monkeypatch, has_kernels)
    bags = bags_of({"user": Table(10, 2, padding_idx=padding), "type": (10, 2)})
    with pytest.raises(ValueError, match=message):
        bags(torch.tensor([1, 2, 3, 4]), torch.tensor(offsets))


@pytest.mark.parametrize(
    ("user", "message"),
    [
        (([1, 2, 3], [0, 1, 2]), "offsets of 'user' must go from 0 to the 3 indices, got 0 to 2"),
        (([1, 2], [1, 1, 2]), "offsets of 'user' must go from 0 to the 2 indices, got 1 to 2"),
        (([1, 2], [0, 1, 3]), "offsets of 'user' must go from 0"),
        (([1, 2], []), "offsets of 'user' must go from 0"),
        (([1, 2], [0, 2]), r"all features need the same number of bags, got \[1, 2\]"),
        (([1, 2, 3], [0, 4, 3]), "offsets must never decrease"),
        ([1, 2], "must be a pair of indices and offsets, or a matrix of integers"),
        ([[1.0], [2.0]], "must be a pair of indices and offsets, or a matrix of integers"),
        (([1.0, 2.0], [0, 1, 2]), "indices of 'user' must be a list of integers"),
    ],
    ids=str,
)
def test_bags_by_name_that_are_none_are_refused(user, message):
    bags = bags_of({"user": (10, 2), "type": (10, 2)})
    with pytest.raises(ValueError, match=message):
        bags({"user": user, "type": [[1], [2]]})


def test_missing_and_unknown_features_are_named():
    bags = bags_of({"user": (10, 2), "type": (10, 2)})
    with pytest.raises(ValueError, match=r"\['type'\] are missing, \['kind'\] are unknown"):
        bags({"user": [[1]], "kind": [[1]]})
    with pytest.raises(ValueError, match="offsets are missing, and indices are a Tensor"):
        bags(torch.tensor([1, 2]))


def test_weights_that_do_not_fit_are_refused():
    index, offsets = torch.tensor([1, 2]), torch.tensor([0, 2])
    with pytest.raises(ValueError, match="one number for each of the 2 indices, got shape"):
        one_table()(index, offsets, torch.ones(3))
    with pytest.raises(ValueError, match="for tables with mode='sum', and some have mode='mean'"):
        one_table(mode="mean")(index, offsets, torch.ones(2))
    with pytest.raises(ValueError, match="offsets are missing"):
        one_table()({"user": [[1]]}, per_sample_weights=torch.ones(1))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "tables must name at least one table"),
        ({"a.b": (1, 1)}, "no dots"),
        ({"": (1, 1)}, "must have letters"),
        ({"a": (-1, 1)}, "rows ≥ 0"),
        ({"a": (1, 0)}, "width ≥ 1"),
        ({"a": Table(1, 1, mode="max")}, "the mode of the table 'a' must be"),
        ({"a": Table(3, 1, padding_idx=3)}, "padding_idx of the table 'a' must be one of its 3 rows, got 3"),
        ({"a": Table(3, 1, features=("b", "b"))}, "the feature 'b' reads two tables, or is listed twice"),
        ({"a": (3, 1), "b": Table(3, 1, features=("a",))}, "the feature 'a' reads two tables"),
        ({"a": Table(3, 1, features=())}, "features of the table 'a' must be a tuple of names"),
        ({"a": Table(3, 1, features="seen")}, "features of the table 'a' must be a tuple of names, got 'seen'"),
    ],
    ids=str,
)
def test_tables_that_are_none_are_refused(tables, message):
    with pytest.raises(ValueError, match=message):
        EmbeddingBags(tables)


def test_a_table_of_another_width_is_refused_and_one_with_more_rows_is_read():
    bags = bags_of({"user": (10, 4), "type": (10, 3)})
    bags([1, 2], [0, 1, 2])
    bags.tables["type"] = nn.Parameter(torch.ones(500, 3))
    assert bags([1, 400], [0, 1, 2])[0, 4:].eq(1).all()
    bags.tables["type"] = nn.Parameter(torch.ones(10, 70))
    with pytest.raises(ValueError, match="the table 'type' was made with width 3, and is 70 wide now"):
        bags([1, 2], [0, 1, 2])
    with pytest.raises(ValueError, match="the table 'user' was made with width 4, and is 5 wide now"):
        torch.func.functional_call(bags, {"tables.user": torch.ones(10, 5)}, ([1, 2], [0, 1, 2]))
    with pytest.raises(KeyError, match="there is no table 'kind', only 'user', 'type'"):
        bags.tables["kind"] = nn.Parameter(torch.ones(10, 3))


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("what", ["indices", "offsets", "weights"])
def test_lists_that_torch_sees_change_before_the_backward_pass_are_refused(what, in_backward):
    bags = bags_of({"user": (10, 4), "type": (10, 4)})
    if in_backward:
        optimizer = RowAdaGrad(bags.parameters())
        step_in_backward(optimizer)
    lists = {"indices": torch.tensor([1, 2, 3]), "offsets": torch.tensor([0, 2, 3]), "weights": torch.ones(3)}
    out, before = bags(*lists.values()).sum(), copies(bags)
    lists[what].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
    assert_bitwise(list(bags.tables.values()), list(before.values()))


def step_along(out, optimizer):
    out.backward()
    optimizer.step()


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("indices", [1, 2, 10]),
        ("indices", [1, 2, -1]),
        ("indices", [1, 2, 2**40]),
        ("offsets", [0, 3, 2]),
        ("offsets", [0, 2, 4]),
        ("offsets", [0, 2, 2**50]),
        ("offsets", [0, -5, 3]),
        ("offsets", [-1, 2, 3]),
        ("offsets", [-(2**50), 2, 3]),
    ],
    ids=str,
)
def test_lists_that_numpy_changes_before_the_backward_pass_move_nothing(what, wrong, in_backward):
    """Torch does not see these writes. Whatever becomes of the gradient, no other memory is read or written."""
    bags = bags_of({"user": (10, 4), "type": (10, 4)})
    optimizer = RowAdaGrad(bags.parameters())
    if in_backward:
        step_in_backward(optimizer)
    lists = {"indices": np.array([1, 2, 3]), "offsets": np.array([0, 2, 3])}
    for is_first in (True, False):  # as long as the tables are not known, and later
        own = {name: array.copy() for name, array in lists.items()}
        out, before = bags(*own.values()).sum(), copies(bags)
        optimizer.zero_grad()
        own[what][:] = wrong
        with pytest.raises((IndexError, ValueError, RuntimeError)):
            step_along(out, optimizer)
        assert_bitwise(list(bags.tables.values()), list(before.values()))
        if is_first:
            optimizer.zero_grad()
            bags(*lists.values()).sum().backward()
            optimizer.step()

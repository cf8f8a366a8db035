"""What is launched for a list of tensors, what the device is sent, and what a graph captures."""

from dataclasses import replace

import pytest
import torch

from matrix_adagrad.geometry import Column, Entry, Factored, Geometry, Row
from matrix_adagrad.optim.step import triton as backend
from matrix_adagrad.optim.step.config import SteepestConfig
from matrix_adagrad.optim.step.dispatch import TRITON
from matrix_adagrad.optim.step.native import _step_as_operator
from tests.optim.batches import (
    KINDS,
    a_config,
    assert_close,
    assert_equal,
    copied,
    reference,
    state_of,
)
from tests.triton.steps import of_shapes, renewed, step


def test_hundreds_of_tensors_are_a_handful_of_launches(ran):
    for geometry, launches in ((Row(), 1), (Entry(), 1), (Column(), 3), (Factored(), 5)):
        ran.clear()
        grads = [torch.ones(4, 16) for _ in range(100)]
        step(state_of([torch.ones(4, 16) for _ in grads], grads, a_config(geometry)), a_config(geometry))
        assert len(ran) == launches


def test_tensors_of_any_height_are_of_few_kinds(ran):
    """A kind is compiled and launched by itself. The entries of a sparse gradient are more or fewer in each batch."""
    for geometry in KINDS:
        config, kinds = a_config(geometry), set()
        step(of_shapes([(rows, 64) for rows in range(2, 40, 3)], config), config)
        assert len(ran) <= 10  # of five kernels: up to 32 rows are one tile
        ran.clear()
        for rows in (1, 3, 30):
            index = torch.arange(rows)[None]
            grad = torch.sparse_coo_tensor(index, torch.ones(rows, 64), (40, 64), check_invariants=True)
            batch = state_of([torch.ones(40, 64)], [grad], config)
            assert not TRITON.reason_against(batch[0], config)
            kinds.add(batch[0].prepared.kind)
        assert len(kinds) == 1


def test_a_table_is_sent_again_only_if_something_has_changed(monkeypatch):
    uploads, upload = [], backend._upload
    monkeypatch.setattr(backend, "_upload", lambda *args: uploads.append(1) or upload(*args))
    config = a_config(Row(), betas=(0.9, 0.99), bias_correction=True)
    batch = state_of([torch.ones(4, 16), torch.ones(5, 16)], [torch.ones(4, 16), torch.ones(5, 16)], config)
    step(batch, config)
    for _ in range(3):  # step counts go up together
        TRITON.step(renewed(batch), config)
    assert len(uploads) == 1
    batch[0].grad = torch.full((4, 16), 2.0)
    TRITON.step(renewed(batch), config)
    assert len(uploads) == 2
    other = state_of([torch.ones(4, 16), torch.ones(5, 16)], [torch.ones(4, 16), torch.ones(5, 16)], config)
    for number in range(5):
        other[0].grad = torch.full((4, 16), 2.0 if number == 4 else 1.0)
        reference(other, config)
    assert_close(batch, other)


def test_a_captured_step_takes_nothing_from_the_cpu(monkeypatch):
    config = replace(a_config(Row(), betas=(0.9, 0.99), bias_correction=True), capturable=True, lr=torch.tensor(0.1))

    def make():
        return of_shapes([(4, 16)] * 6, config)

    batch, other = make(), make()
    monkeypatch.setattr(backend, "_is_capturing", lambda _: True)
    with pytest.raises(RuntimeError, match="take a step first"):
        step(batch, config)
    monkeypatch.undo()
    batch = make()
    step(batch, config)
    reference(other, config)
    monkeypatch.setattr(backend, "_is_capturing", lambda _: True)
    monkeypatch.setattr(backend, "_upload", lambda *_: pytest.fail("the CPU's memory must not be read"))
    for update, same in zip(batch, other, strict=True):
        update.grad = same.grad = torch.full((4, 16), 3.0)
    TRITON.step(renewed(batch), config)
    reference(other, config)
    assert_close(batch, other)


def test_one_geometry_for_each_kind_of_layout():
    kinds: dict[int, Geometry] = {}
    for geometry in KINDS:
        batch = state_of([torch.ones(4, 16)], [torch.ones(4, 16)], a_config(geometry))
        assert not TRITON.reason_against(batch[0], a_config(geometry))
        kinds.setdefault(batch[0].prepared.kind.layout, geometry)
    assert len(kinds) == 5
    assert isinstance(a_config(Row(), momentum=0.9), SteepestConfig)


def test_a_table_is_of_one_stream(monkeypatch):
    """Its memory may be given away as soon as the stream that it was allocated on is done with it."""
    tables, config = [], a_config(Row())
    batch = of_shapes([(4, 16)], config)
    for stream in (1, 1, 2, 2):
        monkeypatch.setattr(backend, "_stream", lambda _, stream=stream: stream)
        step(batch, config) if not tables else TRITON.step(renewed(batch), config)
        tables.append(batch[0].prepared.launch.table)
    assert tables[0] is tables[1]
    assert tables[1] is not tables[2]
    assert tables[2] is tables[3]


def test_tensors_that_are_described_anew_keep_their_table(monkeypatch):
    """As in a group in which other tensors go to other backends: its plan is made anew for each step."""
    uploads, upload = [], backend._upload
    monkeypatch.setattr(backend, "_upload", lambda *args: uploads.append(1) or upload(*args))
    for geometry in KINDS:
        uploads.clear()
        config = a_config(geometry)
        batch = of_shapes([(4, 16), (6, 16)], config)
        for _ in range(3):
            for update in batch:
                assert not TRITON.reason_against(update, config)
            TRITON.step(batch, config)
        assert len(uploads) == 1
        for update in batch:
            update.statistics = tuple(map(torch.clone, update.statistics))
            assert not TRITON.reason_against(update, config)
        TRITON.step(batch, config)
        assert len(uploads) == 2


def test_a_step_that_graphs_cannot_capture_is_refused_before_anything_moves(monkeypatch):
    config = replace(a_config(Row()), capturable=True)
    grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 16), (4, 16), check_invariants=True)
    for batch, own, words in (
        (state_of([torch.ones(4, 16)], [grad], config), config, "sparse"),
        (of_shapes([(4, 16)], config), replace(config, capturable=False), "capturable=True"),
    ):
        step(batch, own)
        before = copied(batch)
        with monkeypatch.context() as patched:
            patched.setattr(backend, "_is_capturing", lambda _: True)
            with pytest.raises(RuntimeError, match=words):
                step(batch, own)
        assert_equal(batch, before)


@pytest.mark.parametrize("geometry", [Row(), Column(), Entry()], ids=str)
@pytest.mark.parametrize("family", [{}, {"betas": (0.9, 0.99), "bias_correction": True, "nesterov": True}])
def test_the_operator_of_a_compiled_step_runs_the_kernels(geometry, family, ran):
    """In a graph a fused step is one operator, whatever the device; this is what it runs on a GPU."""
    config = a_config(geometry, weight_decay=0.1, maximize=True, **family)
    batch = of_shapes([(4, 16), (6, 5)], config)
    other = copied(batch)
    _step_as_operator(batch, config)
    assert ran
    reference(other, config)
    assert_close(batch, other)

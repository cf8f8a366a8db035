"""Tables in files train as tables in memory do, and need none of it."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from matrix_adagrad import EmbeddingBag, MatrixMomentum, RowAdaGrad, RowMomentum, evict, resize_table
from matrix_adagrad.checkpoints import Checkpoints
from matrix_adagrad.tables import map_table
from matrix_adagrad.tables.files import folder_of

ROWS, WIDTH = 200, 8
MAKES = {
    "AdaGrad": lambda p: RowAdaGrad(p, lr=0.1, initial_accumulator_value=0.5),
    "momentum": lambda p: RowMomentum(p, lr=0.1),
    "columns": lambda p: MatrixMomentum(p, lr=0.1, geometry="column"),
    "entries": lambda p: MatrixMomentum(p, lr=0.1, geometry="entry"),
}
every_optimizer = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)


def a_table(seed=0):
    torch.manual_seed(seed)
    return EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)


def train(bags, optimizer, steps=4, rows=ROWS):
    for step in range(steps):
        index = torch.randint(rows, (6, 3), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        bags(index).sum(-1).square().sum().backward()
        optimizer.step()


def contents(bags, optimizer):
    return {"param": bags.weight.detach(), **optimizer.state[bags.weight]}


def by_row(bags, optimizer):
    return [x for x in contents(bags, optimizer).values() if x.dim() and len(x) == len(bags.weight)]


@every_optimizer
@pytest.mark.parametrize("has_state", [False, True])
def test_a_table_in_files_trains_bit_for_bit_as_one_in_memory(make, has_state, tmp_path):
    ends = []
    for is_mapped in (False, True):
        bags = a_table()
        optimizer = make(bags.parameters())
        if has_state:
            train(bags, optimizer)
        if is_mapped:
            map_table(bags, optimizer, tmp_path)
            assert {folder_of(x) for x in by_row(bags, optimizer)} == {tmp_path}
        train(bags, optimizer)
        ends.append(contents(bags, optimizer))
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert {folder_of(x) for x in by_row(bags, optimizer)} == {tmp_path}
    assert not [*tmp_path.iterdir()]  # nothing is left behind


@every_optimizer
def test_it_stays_in_files_when_it_grows_and_shrinks(make, tmp_path):
    ends = []
    for is_mapped in (False, True):
        bags = a_table()
        optimizer = make(bags.parameters())
        if is_mapped:
            map_table(bags, optimizer, tmp_path)
        train(bags, optimizer)
        resize_table(bags, optimizer, ROWS + 20, init=nn.init.ones_)
        evict(bags, optimizer, range(10, ROWS + 20))
        train(bags, optimizer, rows=ROWS + 10)
        ends.append(contents(bags, optimizer))
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert {folder_of(x) for x in by_row(bags, optimizer)} == {tmp_path}


@every_optimizer
@pytest.mark.parametrize("share_unchanged", [False, True])
def test_it_stays_in_files_when_a_checkpoint_is_loaded(make, share_unchanged, tmp_path):
    (tmp_path / "files").mkdir()

    def a_run():
        bags = a_table(seed=len([*tmp_path.rglob("*")]))
        optimizer = make(bags.parameters())
        map_table(bags, optimizer, tmp_path / "files")
        return bags, optimizer, Checkpoints(tmp_path / "saved", bags, optimizer, share_unchanged=share_unchanged)

    bags, optimizer, checkpoints = a_run()
    train(bags, optimizer)
    checkpoints.save(1)
    resumed, other, checkpoints = a_run()
    assert checkpoints.resume() == 1
    torch.testing.assert_close(contents(bags, optimizer), contents(resumed, other), rtol=0, atol=0)
    assert {folder_of(x) for x in by_row(resumed, other)} == {tmp_path / "files"}
    train(bags, optimizer)
    train(resumed, other)
    torch.testing.assert_close(contents(bags, optimizer), contents(resumed, other), rtol=0, atol=0)


def test_files_of_ones_own_are_taken_as_they_are(tmp_path):
    def mapped(name, *shape):
        file = str(tmp_path / name)
        return torch.from_file(file, shared=True, size=shape[0] * shape[1], dtype=torch.float32).view(shape)

    bags, other = (EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True, _weight=torch.ones(ROWS, WIDTH)) for _ in "ab")
    bags.weight = nn.Parameter(mapped("weight", ROWS, WIDTH).fill_(1))
    optimizer, plain = (RowAdaGrad(table.parameters(), lr=0.1) for table in (bags, other))
    optimizer.state[bags.weight] = {"step": torch.tensor(0.0), "sum": mapped("sum", ROWS, 1)}
    train(bags, optimizer)
    train(other, plain)
    torch.testing.assert_close(contents(bags, optimizer), contents(other, plain), rtol=0, atol=0)
    assert {folder_of(x) for x in by_row(bags, optimizer)} == {tmp_path}
    assert torch.equal(mapped("weight", ROWS, WIDTH), bags.weight)


def test_a_table_on_meta_starts_as_the_modules_own(tmp_path):
    items = nn.Embedding(5000, WIDTH, padding_idx=3, device="meta", sparse=True)
    map_table(items, None, tmp_path)
    assert 0.95 < items.weight[4:].std() < 1.05
    assert not items.weight[3].any()
    assert items.weight.requires_grad


MB = 1 << 20
LIMITED = textwrap.dedent("""
    import resource, sys, torch
    from matrix_adagrad import EmbeddingBag, RowMomentum
    from matrix_adagrad.checkpoints import Checkpoints
    from matrix_adagrad.tables import map_table

    files, saved = sys.argv[1:]
    rows, width = 1 << 19, 128  # 256 MB, and as much for the average
    torch.set_num_threads(2)

    def train(bags, optimizer, index):
        for step in range(3):
            optimizer.zero_grad()
            (1 - bags(index[step])).square().sum().backward()
            optimizer.step()

    def a_run():
        bags = EmbeddingBag(rows, width, mode="sum", sparse=True, device="meta")
        map_table(bags, None, files, init=lambda new: None)
        optimizer = RowMomentum(bags.parameters(), lr=0.1)
        map_table(bags, optimizer, files)
        return bags, optimizer, Checkpoints(saved, bags, optimizer, share_unchanged=True)

    small = EmbeddingBag(10, width, mode="sum", sparse=True, _weight=torch.zeros(10, width))
    plain = RowMomentum(small.parameters(), lr=0.1)
    index = torch.randint(10, (3, 6, 4))
    places = torch.randperm(rows)[:10].sort().values
    train(small, plain, index)
    map_table(EmbeddingBag(10, 4, mode="sum"), None, files)  # all that is imported is there
    Checkpoints(saved, small, plain, share_unchanged=True).save(0)

    kept = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (kept + (128 << 20),) * 2)
    try:
        torch.zeros(rows, width)
        sys.exit("the limit is none")
    except RuntimeError:
        pass
    bags, optimizer, checkpoints = a_run()
    train(bags, optimizer, places[index])
    assert torch.equal(bags.weight[places], small.weight)
    assert torch.equal(optimizer.state[bags.weight]["exp_avg"][places], plain.state[small.weight]["exp_avg"])
    checkpoints.save(3)
    del bags, optimizer, checkpoints
    bags, optimizer, checkpoints = a_run()
    assert checkpoints.resume() == 3
    assert torch.equal(bags.weight[places], small.weight)
    assert torch.equal(optimizer.state[bags.weight]["exp_avg"][places], plain.state[small.weight]["exp_avg"])
    train(bags, optimizer, places[index])
""")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory that is not of files is Linux's")
def test_a_table_larger_than_the_process_may_hold_is_trained_saved_and_resumed(tmp_path):
    (tmp_path / "files").mkdir()
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "files"), str(tmp_path / "saved")]
    child = subprocess.run(command, check=False, timeout=600, capture_output=True, encoding="utf-8")
    assert not child.returncode, child.stderr


def test_wrong_arguments(tmp_path):
    items = nn.Embedding(4, 2)
    with pytest.raises(NotADirectoryError, match="folder must be a folder, got .*nowhere"):
        map_table(items, None, tmp_path / "nowhere")
    on_meta = nn.Embedding(4, 2, device="meta")
    optimizer = RowAdaGrad(on_meta.parameters())
    with pytest.raises(ValueError, match='weight is on the device "meta": map it with optimizer=None'):
        map_table(on_meta, optimizer, tmp_path)

"""One optimizer for a whole model on sharded models: the steps of a single process, and checkpoints that move."""

import contextlib
import io

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

from matrix_adagrad import matrix_optimizer, state_bytes, step_in_backward
from matrix_adagrad.checkpoints import Checkpoints
from tests.distributed import engines
from tests.distributed.layouts import assert_same, mesh_of, random, shared_out

FIRST, LAST = 3, 6


class Network(nn.Module):
    """A table, a normalised layer, hidden matrices whose shards are uneven, experts, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(11, 10)
        self.norm = nn.LayerNorm(10)
        self.up, self.down = nn.Linear(10, 26), nn.Linear(26, 10)
        self.experts = nn.Parameter(torch.randn(3, 10, 10) / 10)
        self.head = nn.Linear(10, 11)

    def forward(self, items):
        x = self.tokens(items)
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        return self.head(x + torch.einsum("bi,eij->bj", x, self.experts))


def a_run(engine=None):
    model = Network() if engine is None else engine(Network())
    return model, matrix_optimizer(model, lr=0.02, heads_lr=0.05, weight_decay=0.1)


def train(model, optimizer, first=0, last=LAST):
    for step in range(first, last):
        for i, param in enumerate(model.parameters()):
            grad, mesh = random(param.shape, 100 * step + i), getattr(param, "device_mesh", None)
            param.grad = grad if mesh is None else shared_out(grad, mesh, param.placements)
        optimizer.step()


def assert_is_unbroken(model, optimizer):
    alone, single = a_run()
    train(alone, single)
    for mine, theirs in zip(alone.parameters(), model.parameters(), strict=True):
        assert_same(theirs.detach(), mine.detach(), exact=False)
        assert optimizer.state[theirs].keys() == single.state[mine].keys()
        for key, value in single.state[mine].items():
            assert_same(optimizer.state[theirs][key], value, exact=False)


def follows(engine):
    run = a_run(engine)
    train(*run)
    assert_is_unbroken(*run)


@pytest.mark.parametrize(
    ("engine", "world"),
    [
        (engines.fsdp, 2),
        (engines.fsdp, 3),
        (engines.offloaded, 2),
        (engines.hsdp, 4),
        (engines.tensor_parallel, 2),
        (engines.fsdp_and_tensor_parallel, 4),
        (engines.replicated, 2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_steps_under_an_engine_are_those_of_a_single_process(ranks, engine, world):
    ranks.run(world, follows, engine)


def save_first_half(engine, folder):
    model, optimizer = a_run(engine)
    train(model, optimizer, last=FIRST)
    Checkpoints(folder, model, optimizer).save(FIRST)


def assert_goes_on(engine, folder):
    model, optimizer = a_run(engine)
    assert Checkpoints(folder, model, optimizer).resume() == FIRST
    train(model, optimizer, FIRST)
    assert_is_unbroken(model, optimizer)


def test_a_checkpoint_of_two_ranks_goes_on_under_tensor_parallelism_and_in_a_single_process(ranks, tmp_path):
    ranks.run(2, save_first_half, engines.fsdp, tmp_path)
    ranks.run(4, assert_goes_on, engines.fsdp_and_tensor_parallel, tmp_path)
    ranks.run(2, assert_goes_on, engines.fsdp, tmp_path)
    assert_goes_on(None, tmp_path)


def steps_in_backward_are_the_steps_after_it():
    after, during = a_run(engines.fsdp), a_run(engines.fsdp)
    step_in_backward(during[1])
    for step in range(LAST):
        items = torch.randint(11, (40,), generator=torch.Generator().manual_seed(step))
        for model, optimizer in (after, during):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(items), items.roll(1)).backward()
            optimizer.step()
    for mine, theirs in zip(after[0].parameters(), during[0].parameters(), strict=True):
        assert torch.equal(mine.to_local(), theirs.to_local())
        assert theirs.grad is None


def test_steps_in_the_backward_pass_of_shards(ranks):
    ranks.run(2, steps_in_backward_are_the_steps_after_it)


def more_shards_than_rows(shape, dim):
    """Hidden matrices, and a table, of which some ranks hold nothing."""

    def run(is_sharded):
        starts = [random(shape, 0), random(shape, 1)]
        if is_sharded:
            starts = [shared_out(start, mesh_of((3,)), [Shard(dim)]) for start in starts]
        hidden, table = map(nn.Parameter, starts)
        model = nn.ModuleDict({"body": nn.Module(), "words": nn.Embedding(*shape)})
        model["body"].weight, model["words"].weight = hidden, table
        optimizer = matrix_optimizer(model)
        train(model, optimizer)
        return model

    for mine, theirs in zip(run(False).parameters(), run(True).parameters(), strict=True):
        assert_same(theirs.detach(), mine.detach(), exact=False)


@pytest.mark.parametrize(("shape", "dim"), [((2, 6), 0), ((6, 2), 1)], ids=["rows", "columns"])
def test_more_shards_than_rows_or_columns(ranks, shape, dim):
    ranks.run(3, more_shards_than_rows, shape, dim)


def explained(engine):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        model = Network() if engine is None else engine(Network())
        optimizer = matrix_optimizer(model, explain=True)
    optimizer.init_state()
    return printed.getvalue(), state_bytes(optimizer)


def test_the_table_shows_the_whole_of_a_sharded_model_and_state_bytes_its_shard(ranks):
    (first, mine), (second, theirs) = ranks.run(2, explained, engines.fsdp)
    whole, nbytes = explained(None)
    assert first == second == whole
    assert max(mine, theirs) < nbytes < mine + theirs  # the step counters are on both ranks

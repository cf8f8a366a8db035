import json

import pytest
import torch
from torch import nn

from matrix_adagrad import matrix_optimizer
from matrix_adagrad.advisor import Candidate, Plan, Task, advise, lrs_around
from matrix_adagrad.advisor.advise import by_agreement, reason
from matrix_adagrad.advisor.race import train
from matrix_adagrad.cli import main
from matrix_adagrad.geometry import Column, Entry, Factored, Spectral, Whole
from tests.advisor.tasks import BY_COLUMN

TRAIN = """
import itertools
from dataclasses import replace

import torch
from torch import nn
from matrix_adagrad.advisor import Candidate, Task, lrs_around

x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
count = itertools.count()

def task():
    return Task(
        lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)),
        lambda model, rows: (model(x[rows]) - x[rows, :4]).square().mean(),
        lambda seed: torch.randperm(64).split(16),
        name="<b>mine</b>",
        baseline=Candidate("SGD", lambda model, lr: torch.optim.SGD(model.parameters(), lr), lrs_around(0.1)),
    )

def parts():
    made = task()
    return made.make_model, made.loss, made.batches

def number():
    return 3

def broken():
    raise RuntimeError("in the user's code")

def astray():
    made = task()
    return made.make_model, lambda model, rows: made.loss(model, rows) * float("nan"), made.batches

def but(**other):
    return lambda: replace(task(), **other)

two_parts = lambda: parts()[:2]
no_batches = but(batches=[])
batches_that_are_none = but(batches=lambda seed: None)
batches_that_end = but(batches=lambda seed: iter(torch.arange(32).split(16)))
nothing_held_out = but(held_out=[])
pair_of_losses = but(loss=lambda model, rows: (model(x[rows]).sum(), 0))
losses_of_rows = but(loss=lambda model, rows: model(x[rows]).sum(1), held_out=[torch.arange(4)])
no_graph = but(loss=lambda model, rows: model(x[rows]).sum().detach())
model_itself = but(make_model=nn.Linear(8, 4))
no_parameters = but(make_model=nn.Tanh)
baseline_is_no_candidate = but(baseline=("SGD", torch.optim.SGD))
other_starts = but(loss=lambda model, rows: model(x[rows]).sum() + next(count))
batches_of_no_seed = but(batches=lambda: [torch.arange(16)])
model_of_an_argument = but(make_model=lambda width: nn.Linear(8, width))
loss_of_the_batch = but(loss=lambda rows: rows.sum())
models_that_differ = but(make_model=lambda: nn.Linear(8, 4) if next(count) % 2 else nn.Sequential(nn.Linear(8, 4)))
widths_that_differ = but(make_model=lambda: nn.Linear(8, 1 + next(count)))

def wants_an_argument(width):
    return task()

broken_loss = but(loss=lambda model, rows: {}["in the user's loss"])
"""


@pytest.fixture(scope="module")
def advice():
    baseline = Candidate("SGD", lambda model, lr: torch.optim.SGD(model.parameters(), lr), lrs_around(0.1))
    return advise(BY_COLUMN, families=["adagrad"], baseline=baseline, steps=64, seeds=3)


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "my_training.py").write_text(TRAIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_gradients_that_differ_by_column_are_noticed_and_planned_for(advice):
    weight = advice.probe["weight"]
    assert weight.agreement["column"] > 0.95
    assert weight.agreement["row"] < 0.8
    assert by_agreement(advice.probe) == {"weight": Column()}
    (choice,) = advice.plan.choices
    assert choice.geometry == "column"
    assert "scales inside a column agree to" in choice.reason
    assert advice.race.chosen.name == "column adagrad"
    optimizer = advice.plan.optimizer(BY_COLUMN.make_model())
    assert optimizer.param_groups[0]["geometry"] == Column()


def test_a_geometry_that_the_probe_does_not_measure_is_explained_by_its_layer(advice):
    assert reason(advice.probe["weight"], "batched(row)") == "by the kind of its layer"


def test_the_verdict_says_what_to_use_what_it_saves_and_how_the_baseline_compares(advice):
    assert advice.plan.verdict.startswith("Use “column adagrad” with lr")
    assert "Its state takes 24 B; one scale per entry takes 124 B." in advice.plan.verdict
    assert "SGD, which you use now, with 0 B of state, ends above it by +" in advice.plan.verdict
    assert "SGD (now)" in str(advice)


def test_all_numbers_are_json_and_plain(advice):
    found = json.loads(advice.to_json())
    assert found["plan"]["parameters"]["weight"]["geometry"] == "column"
    assert found["probe"]["weight"]["agreement"]["column"] == advice.probe["weight"].agreement["column"]
    assert {standing["candidate"] for standing in found["race"]["standings"]} >= {"entry adagrad", "SGD"}


def test_the_page_has_the_plan_the_race_and_the_heat_maps(advice):
    page = pytest.importorskip("matrix_adagrad.advisor.advice_page")
    made = page.document(advice)
    plan, race, probe = made.sections
    assert plan.parts[0].rows[0][:5] == ("weight", "6×5", "column", "5", "30")
    assert len(race.parts[0].rows) == len(advice.race.standings)
    heat = next(part for part in probe.parts if part.name == "squared-gradients")
    rows, columns = heat.plates[0].grids
    assert (len(rows.ys), len(columns.ys)) == (6, 5)
    assert rows.ys == (0, 1, 2, 3, 4, 5)
    total = sum(map(sum, columns.values))
    assert sum(columns.values[4]) > 0.8 * total  # the column with the largest inputs
    assert rows.xs[-1] < 64


def test_a_model_with_only_vectors_still_gets_a_plan():
    task = Task(lambda: nn.LayerNorm(4), lambda model, x: (model(x) - x).square().mean(), [torch.randn(8, 4)])
    advice = advise(task, families=["adagrad"], steps=16, seeds=2)
    assert {choice.value for choice in advice.plan.choices} <= {Entry(), Whole()}
    assert len(advice.race.standings) == 2


@pytest.fixture(scope="module")
def advice_on_recipe():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    task = Task(
        lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)),
        lambda model, rows: (model(x[rows]) - x[rows, :4]).square().mean(),
        lambda seed: torch.randperm(64, generator=torch.Generator().manual_seed(seed)).split(16),
    )
    return task, advise(task, families=["matrix_optimizer"], steps=16, seeds=2)


def test_matrix_optimizer_is_a_candidate_whose_plan_makes_the_same_optimizer(advice_on_recipe):
    task, advice = advice_on_recipe
    assert [standing.name for standing in advice.race.standings] == ["matrix_optimizer"]
    assert [choice.value for choice in advice.plan.choices] == [Spectral(), Entry(), Factored(), Entry()]
    results = []
    for make in (advice.plan.optimizer, lambda model: matrix_optimizer(model, lr=advice.plan.lr)):
        model = task.start(0)
        train(task, model, make(model), 0, 3)
        results.append([param.detach() for param in model.parameters()])
    assert all(map(torch.equal, *results))


def test_the_tables_and_the_page_show_a_plan_of_other_geometries(advice_on_recipe):
    _, advice = advice_on_recipe
    assert "spectral(" in str(advice)
    assert json.loads(advice.to_json())["plan"]["family"] == "matrix_optimizer"
    page = pytest.importorskip("matrix_adagrad.advisor.advice_page")
    plan = page.document(advice).sections[0]
    assert [row[3] for row in plan.parts[0].rows] == ["0", "6", "11", "4"]


def test_matrix_optimizer_takes_part_by_default():
    task = Task(lambda: nn.Linear(3, 2), lambda model, x: model(x).square().mean(), [torch.randn(8, 3)])
    names = {standing.name for standing in advise(task, steps=16, seeds=2).race.standings}
    assert {"entry adagrad", "entry momentum", "matrix_optimizer"} <= names


@pytest.mark.parametrize("target", ["my_training:task", "my_training.py:parts"])
def test_advice_on_the_users_own_function(here, capsys, target):
    command = ["advise", target, "--steps", "16", "--seeds", "2", "--family", "adagrad"]
    assert main(command) == 0
    shown, progress = capsys.readouterr()
    assert "Use " in shown
    assert ("SGD, which you use now" in shown) is target.endswith("task")
    assert "steps" in progress
    plan = Plan.load(here / "advice" / "plan.json")
    plan.optimizer(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)))
    assert sorted(file.name for file in (here / "advice").iterdir()) == ["advice.html", "advice.json", "plan.json"]
    assert "<b>mine</b>" not in (here / "advice" / "advice.html").read_text(encoding="utf-8")


def test_with_json_nothing_else_is_printed(here, capsys):
    command = ["advise", "my_training:task", "--steps", "16", "--seeds", "2", "--family", "momentum", "--json"]
    assert main([*command, "--out", str(here / "there")]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "<b>mine</b>"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:task", "no module 'no_such_module'"),
        ("nowhere.py:task", "no file nowhere.py"),
        ("my_training:absent", "has no function 'absent'; it has "),
        ("my_training:number", "number must return a Task or the tuple (make_model, loss, batches), got int"),
        ("my_training:two_parts", "the tuple (make_model, loss, batches), got the tuple (function, function)"),
        ("my_training:no_batches", "batches is empty: give at least one batch"),
        ("my_training:batches_that_are_none", "batches must be an iterable of batches, or a function of the seed"),
        ("my_training:batches_that_end", "batches ended before the last step"),
        ("my_training:nothing_held_out", "held_out is empty: give batches, or leave it out"),
        ("my_training:pair_of_losses", "loss must return a tensor with one number, got a tuple"),
        ("my_training:losses_of_rows", "loss must return a tensor with one number, got one of shape (4,)"),
        ("my_training:no_graph", "loss must return a tensor to call backward() on"),
        ("my_training:model_itself", "make_model must be a function that returns the model, got a model"),
        ("my_training:no_parameters", "make_model must return a module with parameters to train"),
        ("my_training:baseline_is_no_candidate", "candidates, and baseline, must be advisor.Candidate, got tuple"),
        ("my_training:other_starts", "two runs with seed 0 start with the losses"),
        (
            "my_training:wants_an_argument",
            "wants_an_argument must take no argument, but calling it this way fails: missing",
        ),
        ("my_training:batches_of_no_seed", "batches must take the seed, but calling it this way fails: too many"),
        (
            "my_training:model_of_an_argument",
            "make_model must take no argument, but calling it this way fails: missing",
        ),
        (
            "my_training:loss_of_the_batch",
            "loss must take the model and a batch, but calling it this way fails: too many",
        ),
        ("my_training:models_that_differ", "make_model must return the same architecture every time, but 0.bias was"),
        ("my_training:widths_that_differ", "make_model must return the same architecture every time, but bias was "),
    ],
)
def test_an_invalid_target_is_refused_in_one_line(here, capsys, target, message):
    assert main(["advise", target, "--steps", "16", "--seeds", "2", "--family", "adagrad"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("matrix-adagrad advise: ")
    assert message in error
    assert not (here / "advice" / "plan.json").exists()


@pytest.mark.usefixtures("here")
def test_a_race_without_a_plan_is_not_a_command_line_error(capsys):
    assert main(["advise", "my_training:astray", "--steps", "16", "--seeds", "2", "--family", "adagrad"]) == 1
    assert "every candidate diverged at every learning rate" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["my_training", "my_training:", ":task"])
def test_a_target_without_a_module_or_a_function_is_a_command_line_error(capsys, target):
    with pytest.raises(SystemExit, match="2"):
        main(["advise", target])
    assert f"'{target}' is not MODULE:FUNCTION, for example" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("target", "error", "words"),
    [("broken", RuntimeError, "in the user's code"), ("broken_loss", KeyError, "in the user's loss")],
)
def test_an_error_in_the_users_code_keeps_its_traceback(target, error, words):
    with pytest.raises(error, match=words):
        main(["advise", f"my_training:{target}"])


def test_a_tuple_of_parts_works_like_a_task():
    parts = BY_COLUMN.make_model, BY_COLUMN.loss, BY_COLUMN.batches
    assert advise(parts, families=["adagrad"], steps=16, seeds=2).task == "model"
    with pytest.raises(TypeError, match=r"task must be a Task or the tuple \(make_model, loss, batches\), got Linear"):
        advise(nn.Linear(2, 2))


def test_a_folder_that_cannot_be_written_is_refused_before_the_race(here, capsys):
    (here / "file").write_text("", encoding="utf-8")
    assert main(["advise", "my_training:task", "--out", str(here / "file")]) == 1
    assert "file" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--seeds", "1"], ["--steps", "4"], ["--demo", "none"], ["--family", "adam"], []])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(SystemExit, match="2"):
        main(["advise", *(["my_training:task"] if wrong and wrong[0] != "--demo" else []), *wrong])

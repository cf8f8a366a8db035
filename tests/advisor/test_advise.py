import json

import pytest
import torch
from torch import nn

from matrix_adagrad import matrix_optimizer
from matrix_adagrad.advisor import Candidate, Task, advise, lrs_around
from matrix_adagrad.advisor.advise import by_agreement, reason
from matrix_adagrad.advisor.training import train
from matrix_adagrad.geometry import Column, Entry, Factored, Row, Spectral, Whole
from tests.advisor.tasks import BY_COLUMN


@pytest.fixture(scope="module")
def advice():
    baseline = Candidate("SGD", lambda model, lr: torch.optim.SGD(model.parameters(), lr), lrs_around(0.1))
    return advise(BY_COLUMN, families=["adagrad"], baseline=baseline, steps=64, seeds=3)


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
    assert "use “column adagrad” with lr" in advice.plan.verdict.lower()
    assert "Its state takes 24 B; one scale per entry takes 124 B." in advice.plan.verdict
    assert "SGD, which you use now, with 0 B of state, is worse: it ends above it by +" in advice.plan.verdict
    assert "SGD (now)" in str(advice)
    assert advice.verdict == advice.plan.verdict
    assert advice.plan.steps == advice.length == 64


def test_all_numbers_are_json_and_plain(advice):
    found = json.loads(advice.to_json())
    assert found["plan"]["parameters"]["weight"]["geometry"] == "column"
    assert found["race"]["start"]["score"] == advice.race.start
    assert found["settled"] is advice.is_settled
    assert found["probe"]["weight"]["agreement"]["column"] == advice.probe["weight"].agreement["column"]
    assert {standing["candidate"] for standing in found["race"]["standings"]} >= {"entry adagrad", "SGD"}


def test_the_page_has_the_plan_the_race_and_the_heat_maps(advice):
    page = pytest.importorskip("matrix_adagrad.advisor.advice_page")
    made = page.document(advice)
    plan, race, probe = made.sections
    assert plan.parts[0].rows[0][:5] == ("weight", "6×5", "column", "5", "30")
    assert len(race.parts[0].rows) == len(advice.race.standings) + 1
    assert race.parts[0].rows[-1][:2] == ("the start", f"{advice.race.start:.4g}")
    assert f"{advice.race.start:.4g}" in race.prose[1]
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
    assert {standing.name for standing in advice.race.standings} == {"matrix_optimizer", "row matrix_optimizer"}
    by_row = advice.race.chosen.name == "row matrix_optimizer"
    head = Row() if by_row else Factored()
    assert [choice.value for choice in advice.plan.choices] == [Spectral(), Entry(), head, Entry()]
    results = []
    for make in (
        advice.plan.optimizer,
        lambda model: matrix_optimizer(model, lr=advice.plan.lr, rules={"2.weight": head}),
    ):
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
    head = advice.plan.choices[2].scales
    assert [row[3] for row in plan.parts[0].rows] == ["0", "6", str(head), "4"]


def test_all_families_take_part_by_default_and_so_do_kinds_of_layers():
    task = Task(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        lambda model, x: model(x).square().mean(),
        [torch.randn(8, 3)],
    )
    names = {standing.name for standing in advise(task, steps=16, seeds=2).race.standings}
    assert {"entry adagrad", "entry momentum", "factored no-momentum", "row steepest", "spectral steepest"} <= names
    assert {"by kind adagrad", "by kind momentum", "by kind no-momentum"} <= names
    assert {"matrix_optimizer", "row matrix_optimizer"} <= names


@pytest.fixture(scope="module")
def advice_on_noise():
    return advise(noise_task(), families=["adagrad"], steps=32, seeds=3)


def noise_task():
    """The labels are random, and the model starts at the best guess."""

    def make_model():
        model = nn.Linear(8, 3)
        for param in model.parameters():
            nn.init.zeros_(param)
        return model

    random = torch.Generator().manual_seed(0)
    x, labels = torch.randn(1024, 8, generator=random), torch.randint(3, (1024,), generator=random)
    return Task(
        make_model,
        lambda model, rows: nn.functional.cross_entropy(model(x[rows]), labels[rows]),
        lambda seed: torch.randperm(256, generator=torch.Generator().manual_seed(seed)).split(32),
        held_out=[torch.arange(256, 1024)],
        name="noise",
    )


def test_random_labels_get_no_plan_and_the_start_is_shown(advice_on_noise):
    advice = advice_on_noise
    assert advice.plan is None
    assert not advice.is_settled
    assert advice.verdict.startswith("Nothing was learned: no plan. The loss is 1.099 at the start, and ")
    assert str(advice).endswith(advice.verdict)
    assert "(the start)" in str(advice)
    found = json.loads(advice.to_json())
    assert found["plan"] is None
    assert found["race"]["chosen"] is None
    assert found["race"]["start"]["score"] == pytest.approx(1.0986, abs=1e-4)
    assert found["race"]["start"]["learned"] is False


def test_the_page_of_an_advice_without_a_plan_says_so(advice_on_noise):
    page = pytest.importorskip("matrix_adagrad.advisor.advice_page")
    made = page.document(advice_on_noise)
    assert [section.name for section in made.sections] == ["race", "probe"]
    assert made.summary.startswith("Nothing was learned: no plan.")
    assert ("loss at the start", "1.099") in made.settings
    assert "Nothing was learned: no plan." in page.render(advice_on_noise)


def test_a_race_that_is_shorter_than_the_run_extrapolates_and_is_not_settled():
    advice = advise(BY_COLUMN, families=["adagrad"], steps=32, length=1000, seeds=2)
    outcome = advice.race.chosen.outcome
    assert advice.plan.steps == 1000
    assert advice.plan.lr == pytest.approx(outcome.lr * (1000 / 32) ** outcome.exponent)
    assert not advice.is_settled
    assert "Nothing was measured beyond 32 steps" in advice.verdict
    with pytest.raises(ValueError, match="length must be steps, 32, or more, got 31: lower steps to it"):
        advise(BY_COLUMN, steps=32, length=31)


def test_a_tuple_of_parts_works_like_a_task():
    parts = BY_COLUMN.make_model, BY_COLUMN.loss, BY_COLUMN.batches
    assert advise(parts, families=["adagrad"], steps=16, seeds=2).task == "model"
    with pytest.raises(TypeError, match=r"task must be a Task or the tuple \(make_model, loss, batches\), got Linear"):
        advise(nn.Linear(2, 2))

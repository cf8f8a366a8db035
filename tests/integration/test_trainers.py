"""The probe as a callback of other trainers: it sees what a plain loop shows, and reports to their loggers."""

import contextlib
import doctest
import importlib
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from matrix_adagrad import RowAdaGrad
from matrix_adagrad.advisor import Probe

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports Lightning and Transformers: make test-integrations", allow_module_level=True)

os.environ["HF_HUB_OFFLINE"] = "1"
pytestmark = pytest.mark.filterwarnings("ignore:::(lightning|pytorch_lightning)")
VOCABULARY, LENGTH, BATCH, STEPS = 40, 12, 4, 8
PACKAGES = ["lightning.pytorch", "pytorch_lightning"]


class Tokens(Dataset):
    """Random sequences, always the same."""

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, i):
        tokens = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": tokens, "labels": tokens}


def assert_same_summaries(mine, theirs):
    assert [summary.name for summary in mine] == [summary.name for summary in theirs]
    for summary, other in zip(mine, theirs, strict=True):
        assert (summary.steps, summary.observed, summary.nonfinite, summary.dead) == (
            other.steps,
            other.observed,
            other.nonfinite,
            other.dead,
        )
        assert summary.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-4)
        assert summary.weight_norm == pytest.approx(other.weight_norm, rel=1e-4)
        assert summary.update_ratio == pytest.approx(other.update_ratio, rel=1e-3)


def scalars_in(folder):
    """What TensorBoard reads: for each tag the steps and the values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, {}).update({event.step: event.value for event in events.Scalars(tag)})
    return {tag: dict(sorted(values.items())) for tag, values in found.items()}  # files of one second have any order


# ---------------------------------------------------------------------------------------------------------- Lightning


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


def fit(package, folder, callback, epochs=1, resume=None, fails=False, **options):
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        pl = pytest.importorskip(package, reason="Lightning is not installed: make test-integrations")
        loggers = importlib.import_module(f"{package}.loggers")

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = network()

            def training_step(self, batch, index):
                if fails and index == 3:
                    raise OSError("the disk is gone")
                return loss_of(self.model, batch)

            def configure_optimizers(self):
                return RowAdaGrad(self.parameters(), lr=0.1)

        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=[loggers.TensorBoardLogger(folder, "board"), loggers.CSVLogger(folder, "table")],
            callbacks=[callback],
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        module = Module()
        trainer.fit(module, DataLoader(Tokens(), BATCH), ckpt_path=resume)
        return trainer, module


def plain_loop(model, optimizer, loss_of, epochs=1, accumulate=1, clip=None):
    with Probe(model, optimizer, every=1) as probe:
        for _ in range(epochs):
            for i, batch in enumerate(DataLoader(Tokens(), BATCH), 1):
                (loss_of(model, batch) / accumulate).backward()
                if i % accumulate == 0:
                    if clip is not None:
                        nn.utils.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    optimizer.zero_grad()
    return probe.report()


class Wrapped(nn.Module):
    """Under the name that the network has in the Lightning module."""

    def __init__(self):
        super().__init__()
        self.model = network()

    def forward(self, x):
        return self.model(x)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, 0.1)], ids=["plain", "accumulated and clipped"])
def test_a_lightning_fit_is_seen_as_the_plain_loop_and_reported_to_its_loggers(package, accumulate, clip, tmp_path):
    from matrix_adagrad.interop.lightning import ProbeCallback

    callback = ProbeCallback(every=1, log_every=2, path=tmp_path / "made" / "probe.json")
    fit(package, tmp_path, callback, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    model = Wrapped()
    expected = plain_loop(model, RowAdaGrad(model.parameters(), lr=0.1), loss_of, 1, accumulate, clip)
    assert_same_summaries(callback.report, expected)
    assert json.loads((tmp_path / "made" / "probe.json").read_text(encoding="utf-8")) == json.loads(
        callback.report.to_json()
    )
    steps = STEPS // accumulate
    written = scalars_in(tmp_path / "board")
    assert set(callback.report.scalars()) <= set(written)
    assert list(written["participation/rows/model.0.weight"]) == list(range(2, steps + 1, 2))
    last = written["bound/row/model.1.weight"][steps]
    assert last == pytest.approx(callback.report["model.1.weight"].bound["row"], rel=1e-5)
    assert "participation/rows/model.0.weight" in next((tmp_path / "table").rglob("metrics.csv")).read_text(
        encoding="utf-8"
    )


def test_a_lightning_fit_is_resumed_with_a_probe(tmp_path):
    from matrix_adagrad.interop.lightning import ProbeCallback

    callback = ProbeCallback(every=1, log_every=STEPS)
    trainer, _ = fit(PACKAGES[0], tmp_path, callback)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    _, module = fit(PACKAGES[0], tmp_path, callback, epochs=2, resume=tmp_path / "saved.ckpt")
    assert {summary.observed for summary in callback.report} == {STEPS}
    assert list(scalars_in(tmp_path / "board")["update_ratio/model.0.weight"]) == [STEPS, 2 * STEPS]
    alone = Wrapped()
    plain_loop(alone, RowAdaGrad(alone.parameters(), lr=0.1), loss_of, epochs=2)
    torch.testing.assert_close(dict(module.named_parameters()), dict(alone.named_parameters()))


def test_a_lightning_fit_that_fails_leaves_no_probe_behind(tmp_path):
    from matrix_adagrad.interop.lightning import ProbeCallback

    callback = ProbeCallback(every=1)
    with pytest.raises(OSError, match="the disk is gone"):
        fit(PACKAGES[0], tmp_path, callback, fails=True)
    assert callback.report is None
    assert {summary.observed for summary in callback.probe.report()} == {3}
    assert not callback.probe.optimizers[0]._optimizer_step_pre_hooks


# ------------------------------------------------------------------------------------------------------- Transformers


def gpt2():
    transformers = pytest.importorskip("transformers", reason="it is not installed: make test-integrations")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def loss_of_gpt2(model, batch):
    return model(**batch, num_items_in_batch=BATCH * LENGTH).loss  # the trainer also counts the token that begins


def trained(folder, steps=STEPS, resume=None, **options):
    model = gpt2()
    from transformers import Trainer, TrainingArguments

    from matrix_adagrad.interop.transformers import ProbeCallback

    args = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        train_sampling_strategy="sequential",
        lr_scheduler_type="constant",
        report_to=["tensorboard"],
        use_cpu=True,
        save_strategy="steps",
        save_steps=4,
        logging_steps=4,
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(model, args, train_dataset=Tokens(), optimizers=(RowAdaGrad(model.parameters(), lr=0.1), None))
    callback = ProbeCallback(trainer, every=1, log_every=4, path=folder / "probe.json")
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, callback


def test_a_transformers_training_is_seen_as_the_plain_loop_and_reported_to_tensorboard(tmp_path):
    trainer, callback = trained(tmp_path, max_grad_norm=0.5)
    model = gpt2()
    expected = plain_loop(model, RowAdaGrad(model.parameters(), lr=0.1), loss_of_gpt2, clip=0.5)
    assert_same_summaries(callback.report, expected)
    assert json.loads((tmp_path / "probe.json").read_text(encoding="utf-8")) == json.loads(callback.report.to_json())
    written = scalars_in(tmp_path)
    assert list(written["train/participation/rows/transformer.wte.weight"]) == [4, STEPS]
    assert {f"train/{tag}" for tag in callback.report.scalars()} <= set(written)
    assert list(written["train/loss"]) == [4, STEPS]  # the trainer's own numbers are all there
    assert not any("participation" in key for entry in trainer.state.log_history for key in entry)
    assert not callback.probe.optimizers[0]._optimizer_step_pre_hooks


def test_a_transformers_training_is_resumed_with_a_probe(tmp_path):
    whole, _ = trained(tmp_path / "whole")
    trained(tmp_path / "parts", steps=4)
    resumed, callback = trained(tmp_path / "parts", resume=True)
    assert {summary.observed for summary in callback.report} == {4}
    assert list(scalars_in(tmp_path / "parts")["train/update_ratio/transformer.wte.weight"]) == [4, STEPS]
    torch.testing.assert_close(
        dict(resumed.model.named_parameters()), dict(whole.model.named_parameters()), rtol=1e-5, atol=1e-6
    )


# ---------------------------------------------------------------------------------------------- TensorBoard, packages


def test_a_report_is_written_with_tensorboards_own_writer(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    model = network()
    report = plain_loop(model, RowAdaGrad(model.parameters(), lr=0.1), loss_of)
    with SummaryWriter(tmp_path) as writer:
        report.write(writer, step=5)
    written = scalars_in(tmp_path)
    assert written == {tag: {5: pytest.approx(value, rel=1e-6)} for tag, value in report.scalars().items()}


@pytest.mark.parametrize(("name", "package"), [("lightning", "Lightning"), ("transformers", "Transformers")])
def test_the_examples_run_and_without_the_package_an_error_says_what_to_install(name, package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tested = doctest.testmod(importlib.import_module(f"matrix_adagrad.interop.{name}"))
    assert (tested.failed, tested.attempted > 0) == (0, True)
    hidden = "import sys; sys.modules.update(dict.fromkeys(['lightning', 'pytorch_lightning', 'transformers']))"
    command = [sys.executable, "-c", f"{hidden}; import matrix_adagrad.interop.{name}"]
    run = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert f"needs {package}" in run.stderr.splitlines()[-1]
    assert "pip install" in run.stderr.splitlines()[-1]

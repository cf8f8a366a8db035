"""The optimizers inside of Transformers, Accelerate and Lightning: each run is that of a plain loop, bit by bit."""

import math
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from matrix_adagrad import ColumnAdaGrad, MatrixMomentum, RowAdaGrad, geometry_groups, matrix_optimizer

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports Transformers, Accelerate and Lightning: make test-integrations", allow_module_level=True)

os.environ["HF_HUB_OFFLINE"] = "1"
pytestmark = pytest.mark.filterwarnings("ignore:::(lightning|pytorch_lightning)")
EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS, LENGTH, EXAMPLE_COUNT, EPOCHS = 40, 12, 32, 2


class Sentences(Dataset):
    """Random words, always the same; the first ones are hundreds of times as frequent as the last."""

    def __len__(self):
        return EXAMPLE_COUNT

    def __getitem__(self, i):
        words = (WORDS * torch.rand(LENGTH + 1, generator=torch.Generator().manual_seed(i)) ** 4).long()
        return {"input_ids": words[:-1], "labels": words[1:]}


class Reader(nn.Module):
    """Says the next word. The columns of the hidden layer's gradient differ by orders of magnitude."""

    def __init__(self, sparse=False):
        super().__init__()
        self.words, self.hidden = nn.Embedding(WORDS, 8, sparse=sparse), nn.Linear(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, WORDS)
        with torch.no_grad():
            self.words.weight *= torch.logspace(-2, 1, 8)

    def forward(self, input_ids, labels):
        logits = self.head(self.norm(self.hidden(self.words(input_ids)).tanh()))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def grouped(model):
    groups = geometry_groups(model)
    return MatrixMomentum(groups, 0.01, reduction="mean", weight_decay=0.1, decoupled_weight_decay=True)


OPTIMIZERS = {
    "rows": lambda model: RowAdaGrad(model.parameters(), 0.1),
    "groups": grouped,
    "sparse": lambda model: RowAdaGrad(model.parameters(), 0.1, weight_decay=0.01),
    "whole model": lambda model: matrix_optimizer(model, lr=0.01, weight_decay=0.1),
}


@dataclass(frozen=True)
class Setting:
    """What is trained, and how."""

    optimizer: str = "rows"
    batch: int = 4
    accumulate: int = 1
    bf16: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def steps(self):
        return EPOCHS * EXAMPLE_COUNT // (self.batch * self.accumulate)

    def factor(self, step):
        """A warmup, and then half a cosine."""
        return min((step + 1) / 3, (1 + math.cos(math.pi * step / self.steps)) / 2)

    def make(self, seed=0):
        torch.manual_seed(seed)
        model = Reader(sparse=self.optimizer == "sparse").to(self.dtype)
        optimizer = OPTIMIZERS[self.optimizer](model)
        return model, optimizer, LambdaLR(optimizer, self.factor)

    def batches(self):
        return DataLoader(Sentences(), self.batch)


def plain(setting, made=None):
    model, optimizer, scheduler = made or setting.make()
    for _ in range(EPOCHS):
        for batch in setting.batches():
            with torch.autocast("cpu", torch.bfloat16, enabled=setting.bf16):
                loss = model(**batch)["loss"]
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return model


def assert_same_bits(model, other):
    torch.testing.assert_close(dict(model.named_parameters()), dict(other.named_parameters()), rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------------- frameworks


def hugging_face_trainer(setting, folder, model, optimizers=(None, None), options=None, **arguments):
    transformers = pytest.importorskip("transformers", reason="it is not installed: make test-integrations")
    args = transformers.TrainingArguments(
        folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=setting.batch,
        gradient_accumulation_steps=setting.accumulate,
        bf16=setting.bf16,
        train_sampling_strategy="sequential",
        max_grad_norm=0,
        save_steps=5,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **arguments,
    )
    return transformers.Trainer(model, args, train_dataset=Sentences(), optimizers=optimizers, **options or {})


def transformers(setting, folder, resume=False):
    model, optimizer, scheduler = setting.make(seed=int(resume))
    trainer = hugging_face_trainer(setting, folder, model, (optimizer, scheduler))
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-5") if resume else None)
    return model, optimizer


def accelerate(setting, folder, resume=False):
    accelerate = pytest.importorskip("accelerate", reason="it is not installed: make test-integrations")
    accelerator = accelerate.Accelerator(
        cpu=True,
        mixed_precision="bf16" if setting.bf16 else "no",
        gradient_accumulation_steps=setting.accumulate,
    )
    own, bare, scheduler = setting.make(seed=int(resume))
    model, optimizer, scheduler, batches = accelerator.prepare(own, bare, scheduler, setting.batches())
    done, first = 0, 0
    if resume:
        accelerator.load_state(folder / "saved")
        done = first = 5
    for epoch in range(EPOCHS):
        past = min(max(0, first - epoch * len(batches)), len(batches))
        for batch in accelerator.skip_first_batches(batches, past):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            done += 1
            if done == 5 and not resume:
                accelerator.save_state(folder / "saved")
    return own, bare


PRECISIONS = {torch.float32: "32-true", torch.bfloat16: "bf16-true", torch.float64: "64-true"}


def lightning(setting, folder, resume=False):
    pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: make test-integrations")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.optimizer, self.scheduler = setting.make(seed=int(resume))

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return {
                "optimizer": self.optimizer,
                "lr_scheduler": {"scheduler": self.scheduler, "interval": "step"},
            }

    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        precision="bf16-mixed" if setting.bf16 else PRECISIONS[setting.dtype],
        accumulate_grad_batches=setting.accumulate,
        callbacks=[pl.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, setting.batches(), ckpt_path=folder / "epoch=0.ckpt" if resume else None)
    return module.model, module.optimizer


frameworks = pytest.mark.parametrize(
    ("train", "optimizer"),
    [
        pytest.param(train, optimizer, id=f"{train.__name__}-{optimizer}")
        for train in (transformers, accelerate, lightning)
        for optimizer in OPTIMIZERS
        if (train, optimizer) != (transformers, "sparse")  # see below
    ],
)


precisions = pytest.mark.parametrize(
    "precision",
    [{}, {"bf16": True}, {"dtype": torch.bfloat16}],
    ids=["float32", "bfloat16 autocast", "bfloat16 weights"],
)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on so small a model threads would only wait for each other
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _fresh_accelerate(monkeypatch):
    """Accelerate keeps the precision of the first run in a process, and Transformers hands it on in the environment."""
    state = pytest.importorskip("accelerate.state", reason="accelerate is not installed: make test-integrations")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()


# --------------------------------------------------------------------------------------------------------- all of them


@frameworks
@precisions
def test_a_run_is_that_of_a_plain_loop(train, optimizer, precision, tmp_path):
    setting = Setting(optimizer, **precision)
    model, used = train(setting, tmp_path)
    assert_same_bits(model, plain(setting))
    assert {value.dtype for state in used.state.values() for value in state.values()} == {torch.float32}
    for group in used.param_groups:
        assert group["lr"] == group["initial_lr"] * setting.factor(setting.steps)


def test_autocast_makes_a_difference():
    apart = [plain(Setting(bf16=bf16)).hidden.weight - plain(Setting()).hidden.weight for bf16 in (False, True)]
    assert [bool(difference.any()) for difference in apart] == [False, True]


@frameworks
@precisions
def test_a_run_that_is_resumed_ends_with_the_bits_of_an_unbroken_one(train, optimizer, precision, tmp_path):
    setting = Setting(optimizer, **precision)
    train(setting, tmp_path)
    resumed, used = train(setting, tmp_path, resume=True)  # from other weights, so that those of the file count
    assert_same_bits(resumed, plain(setting))
    assert {float(state["step"]) for state in used.state.values()} == {setting.steps}
    assert {value.dtype for state in used.state.values() for value in state.values()} == {torch.float32}


@frameworks
def test_accumulated_gradients_are_those_of_a_larger_batch(train, optimizer, tmp_path):
    setting = Setting(optimizer, accumulate=4, dtype=torch.float64)
    model, used = train(setting, tmp_path)
    whole = plain(replace(setting, batch=16, accumulate=1))
    torch.testing.assert_close(dict(model.named_parameters()), dict(whole.named_parameters()), rtol=1e-9, atol=1e-12)
    assert {float(state["step"]) for state in used.state.values()} == {setting.steps}


# ------------------------------------------------------------------------------------------------------- Transformers


@pytest.mark.parametrize("resume", [False, True], ids=["unbroken", "resumed"])
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (RowAdaGrad, {"lr": 0.1}),
        (ColumnAdaGrad, {"lr": 0.1, "reduction": "mean"}),
        (MatrixMomentum, {"lr": 0.01, "geometry": "row", "decoupled_weight_decay": True}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_trainer_makes_the_optimizer_with_its_own_groups_and_linear_warmup(cls, options, resume, tmp_path):
    def trained(seed, **how):
        torch.manual_seed(seed)
        arguments = {"weight_decay": 0.1, "learning_rate": 123.0, "lr_scheduler_type": "linear", "warmup_steps": 4}
        trainer = hugging_face_trainer(
            Setting(), tmp_path, Reader(), options={"optimizer_cls_and_kwargs": (cls, dict(options))}, **arguments
        )
        trainer.train(**how)
        return trainer.model

    model = trained(0)
    if resume:
        model = trained(1, resume_from_checkpoint=str(tmp_path / "checkpoint-5"))

    torch.manual_seed(0)
    alone, steps = Reader(), Setting().steps
    decayed = [alone.words.weight, alone.hidden.weight, alone.head.weight]
    spared = [param for param in alone.parameters() if all(param is not other for other in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}]
    optimizer = cls(groups, **options)  # learning_rate=123 is not handed on: the optimizer's own counts
    scheduler = LambdaLR(optimizer, lambda step: step / 4 if step < 4 else (steps - step) / (steps - 4))
    assert_same_bits(model, plain(Setting(), (alone, optimizer, scheduler)))


def test_the_trainer_cannot_do_sparse_gradients(tmp_path):
    with pytest.raises(NotImplementedError, match="linalg_vector_norm|foreach_norm"):  # it logs the norm of all
        transformers(Setting("sparse"), tmp_path)


# --------------------------------------------------------------------------------------------------------- Accelerate


def test_the_optimizer_that_accelerate_wraps_is_saved_as_the_bare_one(tmp_path):
    from accelerate import Accelerator

    accelerate(Setting("groups"), tmp_path)
    model, bare, _ = Setting("groups").make(seed=1)
    wrapped = Accelerator(cpu=True).prepare(bare)
    saved = torch.load(tmp_path / "saved" / "optimizer.bin", weights_only=True)
    wrapped.load_state_dict(saved)
    torch.testing.assert_close(bare.state_dict()["state"], saved["state"], rtol=0, atol=0)
    assert bare.state_dict()["param_groups"] == saved["param_groups"]
    assert [str(group["geometry"]) for group in bare.param_groups] == ["row", "entry", "entry", "row"]
    assert bare.state[model.words.weight]["exp_avg_sq"].shape == (WORDS, 1)


# ----------------------------------------------------------------------------------------------------------- examples


@pytest.mark.parametrize("name", ["transformers_train", "accelerate_train", "lightning_train"])
def test_the_example_runs(name):
    run = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    assert "the same bits" in run.stdout

"""SpodgtCallback in a real Trainer: raw gradients, clipping, accumulation, scores, adapters."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.sites.layout import model_row
from tests.integrations.one_site import D, LocalSession

pytestmark = pytest.mark.filterwarnings("default")  # of other libraries


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    """Imported here and not above, because it takes seconds, also where no test of this file runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
        import spodgt.integrations.transformers  # noqa: F401


class Slope(nn.Module):
    """The loss is slope * sum(w), so the gradient is the mean slope of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, slope: Tensor) -> dict[str, Tensor]:
        return {"loss": (slope.mean() * self.w).sum()}


def train(
    folder: Path,
    session: LocalSession,
    *,
    slopes: list[float],
    resume: bool | None = None,
    **options: Any,
) -> tuple[Slope, Any]:
    import transformers

    from spodgt.integrations.transformers import SpodgtCallback

    callback = SpodgtCallback("unused")
    callback.session = session
    settings: dict[str, Any] = {
        "max_grad_norm": 0,
        "per_device_train_batch_size": 1,
        "max_steps": 1,
        "learning_rate": 1.0,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
        **options,
    }
    model = Slope()
    data = [{"slope": torch.tensor(slope)} for slope in slopes]
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(str(folder), **settings),
        train_dataset=data,
        eval_dataset=data,
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=resume)
    return model, trainer


def test_trainer_records_the_raw_gradient_and_steps_along_the_corrected_one(tmp_path: Path) -> None:
    session = LocalSession()
    model, _ = train(tmp_path, session, slopes=[0.5])
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert torch.allclose(model.w, torch.full((3,), 1 - 0.5 - D))
    assert session.ended is True
    assert "loss" in session.scores[0]


def test_gradient_accumulation_is_one_step(tmp_path: Path) -> None:
    session = LocalSession()
    train(tmp_path, session, slopes=[1.0, 2.0, 3.0, 4.0], gradient_accumulation_steps=4)
    assert session.correction.steps == 1
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 2.5))


def test_max_norm_clips_the_corrected_gradient(tmp_path: Path) -> None:
    session = LocalSession(max_norm=0.1)
    model, _ = train(tmp_path, session, slopes=[0.5])
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert float((model.w.detach() - 1).norm()) == pytest.approx(0.1, rel=1e-4)


def test_clipping_of_the_trainer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"max_grad_norm=1\.0 clips .* use max_grad_norm=0"):
        train(tmp_path, LocalSession(), slopes=[0.5], max_grad_norm=1.0)


def test_mixed_precision_leaves_gradients_and_parameters_in_float32(tmp_path: Path) -> None:
    session = LocalSession()
    model, _ = train(tmp_path, session, slopes=[0.5], bf16=True)
    assert model.w.dtype == torch.float32
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert torch.allclose(model.w, torch.full((3,), 1 - 0.5 - D))


def test_compiled_model_is_corrected(tmp_path: Path) -> None:
    session = LocalSession()
    options: dict[str, Any] = {"torch_compile": True, "torch_compile_backend": "eager"}
    model, _ = train(tmp_path, session, slopes=[0.5], **options)
    assert torch.allclose(model.w, torch.full((3,), 1 - 0.5 - D))


def test_resumed_training_records_only_its_own_steps(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 0.5}
    train(tmp_path, LocalSession(), slopes=[0.5] * 3, max_steps=2, **options)
    session = LocalSession()
    model, trainer = train(tmp_path, session, slopes=[0.5] * 3, max_steps=3, resume=True, **options)
    assert trainer.state.global_step == 3
    assert session.correction.steps == 1
    assert torch.allclose(model.w, torch.full((3,), 1 - 3 * 0.5 * (0.5 + D)))


class Crashed(Exception):
    """Ends a training in the middle."""


def train_joined(folder: Path, *, crash_after: int = 0, resume: bool | None = None) -> list[float]:
    """Twelve steps of a cosine schedule at a site; returns the learning rate of each step made."""
    import transformers

    from spodgt.integrations.transformers import SpodgtCallback

    site = SpodgtCallback(
        folder / "run" / "p0",
        block_steps=2,
        max_silent_blocks=None,
        linger_seconds=0.1,
        durability="process",
        checkpoint_blocks=2,
    )
    rates = []

    class Rates(transformers.TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(
            self, *_: object, optimizer: torch.optim.Optimizer, **others: object
        ) -> None:
            rates.append(float(optimizer.param_groups[0]["lr"]))

        def on_step_end(self, *_: object, **others: object) -> None:
            if len(rates) == crash_after:
                raise Crashed

    trainer = transformers.Trainer(
        Slope(),
        transformers.TrainingArguments(
            str(folder / "trainer"),
            max_steps=12,
            max_grad_norm=0,
            per_device_train_batch_size=1,
            learning_rate=1.0,
            lr_scheduler_type="cosine",
            optim="sgd",
            report_to="none",
            save_strategy="steps",
            save_steps=3,
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=[{"slope": torch.tensor(0.5)}] * 4,
        callbacks=[site, Rates()],
    )
    try:
        trainer.train(resume_from_checkpoint=resume)
    except Crashed as error:
        site.session.end(error)  # the folder is released, as by the end of the process
    return rates


@pytest.mark.network
@pytest.mark.parametrize("resume", [None, True])
def test_start_after_a_crash_makes_the_rest_of_the_schedule(
    tmp_path: Path, resume: bool | None
) -> None:
    """6 of 7 steps are committed, the schedule after 4, the state of the Trainer after 6."""
    from tests.sites.fleet_of_threads import make_run

    make_run(tmp_path / "run", Slope(), 2)
    first = train_joined(tmp_path, crash_after=7)
    rest = train_joined(tmp_path, resume=resume)
    rates = first[:6] + rest
    expected = [0.5 * (1 + math.cos(math.pi * step / 12)) for step in range(12)]
    assert rates == pytest.approx(expected)


def test_loading_the_best_model_at_the_end_is_refused(tmp_path: Path) -> None:
    """The last block ends after that, so an older model would be sent to the neighbours."""
    session = LocalSession()
    with pytest.raises(InvalidInput, match=r"load_best_model_at_end=True .*; leave it out"):
        train(
            tmp_path,
            session,
            slopes=[0.5] * 3,
            max_steps=3,
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            label_names=["slope"],  # makes the Trainer compute a loss in evaluation
            load_best_model_at_end=True,
        )
    assert session.hooks is None  # not joined


def test_accelerate_accumulates_and_clips_after_the_correction() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain = Slope()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=1.0))
    session = LocalSession()
    session.begin(model, optimizer)
    assert session.hooks is not None
    for slope in (1.0, 2.0):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor([slope]))["loss"])
            if accelerator.sync_gradients:
                session.hooks.correct()
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    assert session.correction.steps == 1
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 1.5))
    assert float((plain.w.detach() - 1).norm()) == pytest.approx(0.1, rel=1e-4)


def test_accelerate_wrapper_of_the_optimizer_is_found(tmp_path: Path) -> None:
    """A plain loop with Accelerate: `accelerator.prepare` wraps model and optimizer."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain = Slope()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=1.0))
    session = LocalSession()
    session.begin(model, optimizer)
    accelerator.backward(model(torch.tensor([0.5]))["loss"])
    optimizer.step()
    session.end()
    assert torch.allclose(plain.w, torch.full((3,), 1 - 0.5 - D))


def test_adapters_are_the_only_columns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = pytest.importorskip("peft")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0"]))
    layout = model_row(adapted).layout
    assert layout.tracked == 2 * (4 + 4)
    assert all("lora" in spec.name for spec in layout.parameters)
    assert layout.frozen


@pytest.mark.network
def test_exported_adapters_are_loaded_and_saved_with_peft(tmp_path: Path) -> None:
    """The lines of docs/howto/join.md."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = pytest.importorskip("peft")
    from safetensors.torch import load_file

    from spodgt.peer.membership import run_folders
    from spodgt.sites.api import join
    from tests.sites.fleet_of_threads import make_run

    def adapted(seed: int) -> nn.Module:
        torch.manual_seed(0)
        base = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        torch.manual_seed(seed)
        model: nn.Module = peft.get_peft_model(
            base, peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)
        )
        return model

    trained = adapted(1)
    make_run(tmp_path / "run", trained, 2)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    x = torch.ones(1, 4)
    with join(tmp_path / "run" / "p0", trained, optimizer, block_steps=1, linger_seconds=0.1):
        torch.autograd.backward(trained(x).sum())
        optimizer.step()
    exported = tmp_path / "model.safetensors"
    run_folders.export(tmp_path / "run" / "p0", exported)

    model = adapted(2)
    found = model.load_state_dict(load_file(exported), strict=False)
    assert not found.unexpected_keys
    model.save_pretrained(tmp_path / "adapters")  # type: ignore[operator] # of PEFT
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    loaded: nn.Module = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapters"))
    assert torch.equal(loaded(x), trained(x))
    assert torch.equal(model(x), trained(x))

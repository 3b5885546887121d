"""SpodgtCallback in a real Lightning Trainer: closures, clipping, scores, refusals."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from spodgt.errors import InvalidInput
from tests.integrations.one_site import D, LocalSession

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lightning")
    from lightning.pytorch import LightningModule, Trainer

    from spodgt.integrations.lightning import SpodgtCallback

pytestmark = pytest.mark.filterwarnings("default")  # of other libraries


class Slope(LightningModule):  # type: ignore[misc]
    """The loss is slope * sum(w), so the gradient is the mean slope of a batch."""

    optimizers_made = 1

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.automatic_optimization = self.optimizers_made == 1

    def training_step(self, slope: Tensor, number: int) -> Tensor:
        loss = (slope.mean() * self.w).sum()
        self.log("val_loss", loss)
        if not slope.isfinite().all():
            raise ValueError("bad slope")
        return loss

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.parameters(), lr=1.0) for _ in range(self.optimizers_made)]


class Manual(Slope):
    """Makes its steps itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, slope: Tensor, number: int) -> Tensor:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = super().training_step(slope, number)
        self.manual_backward(loss)
        optimizer.step()
        return loss


class TwoOptimizers(Slope):
    optimizers_made = 2


def fit(session: LocalSession, model: Slope, slopes: list[float], **options: Any) -> None:
    callback = SpodgtCallback("unused")
    callback.session = session
    trainer = Trainer(
        max_epochs=1,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    data = [torch.tensor(slope) for slope in slopes]
    trainer.fit(model, DataLoader(data, 1))  # type: ignore[arg-type]


def test_automatic_optimization_records_the_raw_gradient() -> None:
    session = LocalSession()
    model = Slope()
    fit(session, model, [0.5])
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert torch.allclose(model.w, torch.full((3,), 1 - 0.5 - D))
    assert session.correction.steps == 1
    assert session.ended is True
    assert session.scores[0]["loss"] == pytest.approx(1.5)


def test_clipping_of_lightning_follows_the_correction() -> None:
    session = LocalSession()
    model = Slope()
    fit(session, model, [0.5], gradient_clip_val=0.1)
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert float((model.w.detach() - 1).norm()) == pytest.approx(0.1, rel=1e-4)


def test_gradient_accumulation_is_one_step() -> None:
    session = LocalSession()
    fit(session, Slope(), [1.0, 2.0, 3.0, 4.0], accumulate_grad_batches=4)
    assert session.correction.steps == 1
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 2.5))


def test_manual_optimization_is_corrected_once_in_a_step() -> None:
    session = LocalSession(max_norm=0.1)
    model = Manual()
    fit(session, model, [0.5])
    assert session.correction.steps == 1
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert float((model.w.detach() - 1).norm()) == pytest.approx(0.1, rel=1e-4)


def test_mixed_precision_leaves_gradients_and_parameters_in_float32() -> None:
    session = LocalSession()
    model = Slope()
    fit(session, model, [0.5], precision="bf16-mixed")
    assert model.w.dtype == torch.float32
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert torch.allclose(model.w, torch.full((3,), 1 - 0.5 - D))


def test_error_of_the_module_ends_the_site() -> None:
    session = LocalSession()
    with pytest.raises(ValueError, match="bad slope"):
        fit(session, Slope(), [float("inf")])
    assert isinstance(session.ended, ValueError)


def test_several_optimizers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="has 2 optimizers, a site can correct one"):
        fit(_Unjoined(), TwoOptimizers(), [0.5])


class _Unjoined(LocalSession):
    def end(self, error: BaseException | None = None) -> None:
        """Nothing was joined."""

"""Lightning modules for `test_lightning.py`, which imports Lightning only to run: that takes seconds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader

from spodgt.integrations.lightning import SpodgtCallback
from tests.integrations.one_site import LocalSession


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


class FusedSlope(Slope):
    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.parameters(), lr=1.0, fused=True)]


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


class Scheduled(Slope):
    """With a cosine schedule over twelve steps; notes the step size of each."""

    def __init__(self, crash_after: int = 0) -> None:
        super().__init__()
        self.crash_after = crash_after
        self.rates: list[float] = []

    def training_step(self, slope: Tensor, number: int) -> Tensor:
        optimizer = self.optimizers()
        self.rates.append(float(optimizer.param_groups[0]["lr"]))
        if self.crash_after and len(self.rates) > self.crash_after:
            raise Crashed
        return super().training_step(slope, number)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Crashed(Exception):
    """Ends a training in the middle."""


def train_joined(folder: Path, *, crash_after: int = 0) -> list[float]:
    """Twelve steps at a site; returns the step size of each one made."""
    callback = SpodgtCallback(
        folder,
        block_steps=2,
        max_silent_blocks=None,
        linger_seconds=0.1,
        durability="process",
        checkpoint_blocks=2,
    )
    model = Scheduled(crash_after)
    with contextlib.suppress(Crashed):
        fit(callback, model, [0.5] * 4, max_epochs=3)
    return model.rates[: crash_after or None]


class TwoOptimizers(Slope):
    optimizers_made = 2


def float16(init_scale: float) -> MixedPrecision:
    """The plugin of precision="16-mixed", on the CPU."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=init_scale))


def fit(
    site: LocalSession | SpodgtCallback, model: Slope, slopes: list[float], **options: Any
) -> None:
    callback = site
    if isinstance(site, LocalSession):
        callback = SpodgtCallback("unused")
        callback.session = site
    trainer = Trainer(
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 1, **options},
    )
    data = [torch.tensor(slope) for slope in slopes]
    trainer.fit(model, DataLoader(data, 1))  # type: ignore[arg-type]

"""`spodgt.join` for the Trainer of Lightning.

    callback = SpodgtCallback("peers/lima", block_steps=50)
    Trainer(max_epochs=3, callbacks=[callback]).fit(module, loader)

Lightning computes gradients in a closure that it hands to the optimizer, and clips them there. The
callback corrects before that clipping, so `gradient_clip_val` may be used.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer
from typing_extensions import Unpack

from spodgt.errors import InvalidInput
from spodgt.integrations.site_callback import JoinOptions, SiteSession, find_scores
from spodgt.sites.checkpoint import advance_schedule

_SCORES = {
    "loss": ("val_loss", "train_loss", "loss"),
    "accuracy": ("val_accuracy", "val_acc", "accuracy"),
}
_SHARDING = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")


class SpodgtCallback(Callback):  # type: ignore[misc]
    """Makes a Lightning Trainer one site of a run.

    Args:
        folder: Of the site, made by `spodgt peer init --script` and `spodgt peer issue`.
        options: Those of `spodgt.join`, such as block_steps.

    The metrics val_loss and val_accuracy are reported to `spodgt peer status`. A start after a crash
    makes the steps that remain, along the rest of the schedule.
    """

    def __init__(self, folder: str | Path, **options: Unpack[JoinOptions]) -> None:
        self.session = SiteSession(folder, options)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Join the run; the optimizer exists now."""
        strategy = type(trainer.strategy).__name__
        if strategy in _SHARDING:
            raise InvalidInput(
                f"{strategy} shards parameters over processes; use strategy='ddp' in a site."
            )
        if len(trainer.optimizers) != 1:
            raise InvalidInput(
                f"the module has {len(trainer.optimizers)} optimizers, a site can correct one; "
                "return one optimizer from configure_optimizers."
            )
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        scheduler = schedulers[0] if schedulers else None
        self.session.begin(pl_module, trainer.optimizers[0], scheduler, _scaler(trainer))
        if self.session.site is not None:
            _advance_schedules(trainer, max(self.session.site.steps, trainer.global_step))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Stop when the steps of all starts are made: the Trainer counts those of this one."""
        site = self.session.site
        if site is not None and site.steps >= trainer.estimated_stepping_batches:
            trainer.should_stop = True

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Correct the gradients before Lightning clips them."""
        site = self.session.site
        is_fused = any(group.get("fused") for group in optimizer.param_groups)
        is_scaled = is_fused and _scaler(trainer) is not None
        if site is not None and not is_scaled:  # a fused optimizer unscales gradients in its step
            site.correct()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the newest scores."""
        self.session.report(find_scores(trainer.callback_metrics, _SCORES))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the newest scores."""
        self.session.report(find_scores(trainer.callback_metrics, _SCORES))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the last block and leave the run."""
        self.session.end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the run; what was committed remains."""
        self.session.end(exception)


def _advance_schedules(trainer: Trainer, steps: int) -> None:
    """Step the schedules to where they are after these steps of the optimizer."""
    accumulated = trainer.accumulate_grad_batches
    steps_per_epoch = max(1, math.ceil(trainer.num_training_batches / accumulated))
    for config in trainer.lr_scheduler_configs:
        position = steps if config.interval == "step" else steps // steps_per_epoch
        advance_schedule(config.scheduler, position // config.frequency)


def _scaler(trainer: Trainer) -> torch.amp.GradScaler | None:
    """Of the loss, with precision="16-mixed"."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler if isinstance(scaler, torch.amp.GradScaler) else None

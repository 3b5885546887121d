"""`spodgt.join` for the Trainer of Hugging Face transformers, with and without PEFT adapters.

    callback = SpodgtCallback("peers/lima", block_steps=50)
    Trainer(model, TrainingArguments(..., max_grad_norm=0), ..., callbacks=[callback]).train()

The Trainer clips gradients before the step of the optimizer. The correction must come before the
clipping, so `max_grad_norm` must be 0; the callback has an option `max_norm` of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from typing_extensions import Unpack

from spodgt.errors import InvalidInput
from spodgt.integrations.site_callback import JoinOptions, SiteSession, find_scores
from spodgt.sites.checkpoint import HasState, advance_schedule

_SCORES = {"loss": ("eval_loss", "loss"), "accuracy": ("eval_accuracy",)}


class SpodgtCallback(TrainerCallback):  # type: ignore[misc]
    """Makes a Trainer one site of a run.

    Args:
        folder: Of the site, made by `spodgt peer init --script` and `spodgt peer issue`.
        options: Those of `spodgt.join`, such as block_steps. max_norm clips gradients.

    The losses and accuracies that the Trainer logs are reported to `spodgt peer status`. A start
    after a crash makes the steps that remain of `max_steps`, along the rest of the schedule.
    """

    def __init__(self, folder: str | Path, **options: Unpack[JoinOptions]) -> None:
        self.session = SiteSession(folder, options)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        lr_scheduler: HasState | None = None,
        **others: object,
    ) -> None:
        """Join the run; the optimizer exists now."""
        check_arguments(args)
        self.session.begin(model, optimizer, lr_scheduler)
        # the saved schedule is some blocks older than the site's steps after a crash
        if self.session.site is not None and isinstance(lr_scheduler, LRScheduler):
            advance_schedule(lr_scheduler, max(self.session.site.steps, state.global_step))

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: object,
    ) -> None:
        """Stop when the steps of all starts are made: the Trainer counts those of this one."""
        site = self.session.site
        if site is not None and site.steps >= state.max_steps:
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **others: object,
    ) -> None:
        """Report the newest scores."""
        self.session.report(find_scores(logs or {}, _SCORES))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: object,
    ) -> None:
        """End the last block and leave the run."""
        self.session.end()


def check_arguments(args: TrainingArguments) -> None:
    """Refuse arguments that move the limit, replace the model at the end, or shard it."""
    if args.max_grad_norm:
        raise InvalidInput(
            f"max_grad_norm={args.max_grad_norm} clips gradients before they are corrected, which "
            "moves the limit; use max_grad_norm=0 in TrainingArguments and "
            f"SpodgtCallback(..., max_norm={args.max_grad_norm})."
        )
    if args.load_best_model_at_end:
        raise InvalidInput(
            "load_best_model_at_end=True replaces the site's last model by an older one, which "
            "the validation data of one site have chosen and the other sites would receive; leave "
            "it out: the last model is that of the run, and spodgt peer export writes it."
        )
    for name in ("fsdp", "deepspeed"):
        if getattr(args, name, None):
            raise InvalidInput(
                f"{name} shards parameters over processes; use DistributedDataParallel in a site."
            )

"""`spodgt.join`: a training script becomes a site of a decentralized run."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from spodgt.errors import InvalidInput
from spodgt.sites.checkpoint import HasState
from spodgt.sites.options import BlockOptions
from spodgt.sites.run_setup import LAYOUT_VARIABLE, write_layout_and_exit
from spodgt.sites.site import Site


def join(
    folder: str | Path,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    block_steps: int | None = None,
    block_seconds: float | None = None,
    scheduler: HasState | None = None,
    scaler: HasState | None = None,
    alpha: float = 1.0,
    weight: float = 1.0,
    max_norm: float | None = None,
    max_silent_blocks: int | None = 10,
    initial: str = "first",
    durability: str = "power",
    linger_seconds: float = 10.0,
    checkpoint_blocks: int = 10,
) -> Site:
    """Join a run with the model and optimizer of a training loop.

    Every `optimizer.step()` in the `with` block becomes a corrected local step. At the end of a
    block the model and the mean gradient are exchanged with the neighbours while training
    continues.

    Args:
        folder: Of this site, made by `spodgt peer init --script` and `spodgt peer issue`.
        model: Its parameters with `requires_grad` travel, and the running statistics of BatchNorm.
        optimizer: Any `torch.optim.Optimizer` of these parameters but LBFGS.
        block_steps: Optimizer steps of a block. Without both limits only `site.exchange()` ends a
            block.
        block_seconds: Seconds of a block.
        scheduler: Of the step size; its state is saved beside that of the optimizer.
        scaler: A GradScaler; its state is saved, too.
        alpha: Weight of the newest block in the contribution, in (0, 1]; below 1 it is a running
            mean.
        weight: Multiplies the gradients of this site; weights with mean 1 over sites weigh samples
            equally.
        max_norm: Clip the corrected gradient to this norm. Clipping before the correction is not
            exact.
        max_silent_blocks: Wait after so many blocks without a message; None: continue alone.
        initial: "first": begin with the model of the first client of the manifest; "own": with this
            model.
        durability: "power" (fsync) or "process" (survives kill -9 only).
        linger_seconds: Longest wait at the end for neighbours to receive the last message.
        checkpoint_blocks: Blocks between two copies of the optimizer's state.

    Returns:
        A context manager; inside, `site.exchange()`, `site.correct()`, `site.report(loss=…)`,
        `site.steps`.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            f"model must be a torch.nn.Module, got {type(model).__name__}; pass the model."
        )
    options = BlockOptions(
        block_steps=block_steps,
        block_seconds=block_seconds,
        alpha=alpha,
        weight=weight,
        max_norm=max_norm,
        max_silent_blocks=max_silent_blocks,
        initial=initial,
        durability=durability,
        linger_seconds=linger_seconds,
        checkpoint_blocks=checkpoint_blocks,
    )
    others = {}
    if scheduler is not None:
        others["scheduler"] = scheduler
    if scaler is not None:
        others["scaler"] = scaler
    for name, each in others.items():
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise InvalidInput(
                f"{name} must have state_dict() and load_state_dict(), got "
                f"{type(each).__name__}; pass the object that the loop uses."
            )
    site = Site(folder, model, optimizer, options, others)
    target = os.environ.get(LAYOUT_VARIABLE)
    if target:
        write_layout_and_exit(site.row.layout, Path(target))
    return site

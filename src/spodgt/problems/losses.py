"""Losses in PyTorch; `gradients.linear_model.loss_slopes` has their derivatives.

A loss takes outputs (…, batch, classes) and targets (…, batch) and returns one mean per leading
index, (…), so that the losses of all clients are one call.

Bytecode and docstrings of these functions are part of the fingerprint by which a run is resumed
(`models.fingerprint`): a change of either makes runs of earlier versions look different.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[..., Tensor]  # (outputs, targets), or (model, batch)


def multi_margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """`torch.nn.MultiMarginLoss`: the mean over classes of max(0, 1 - s_y + s_c)."""
    target_scores = outputs.gather(-1, targets[..., None])
    margins = (1 - target_scores + outputs).clamp_min(0)
    margins = margins.scatter(-1, targets[..., None], 0.0)
    return margins.sum(-1).mean(-1) / outputs.shape[-1]


def one_vs_rest(outputs: Tensor, targets: Tensor) -> Tensor:
    """One binary hinge per class, max(0, 1 - t_c s_c) with t = ±1, mean over classes."""
    signs = torch.full_like(outputs, -1.0).scatter(-1, targets[..., None], 1.0)
    return (1 - signs * outputs).clamp_min(0).mean(-1).mean(-1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The logistic loss of `torch.nn.CrossEntropyLoss`."""
    return -outputs.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1).mean(-1)


def stacked_loss(loss: Loss) -> Loss | None:
    """The function here that computes a loss for many clients at once; None if there is none."""
    if any(loss is function for function in LOSSES):
        return loss
    is_plain_mean = getattr(loss, "weight", None) is None
    is_plain_mean &= getattr(loss, "reduction", "") == "mean"
    if not is_plain_mean:
        return None
    # The exact types: a subclass may be another loss.
    if type(loss) is nn.MultiMarginLoss and loss.p == loss.margin == 1:
        return multi_margin
    if type(loss) is nn.CrossEntropyLoss and loss.label_smoothing == 0 and loss.ignore_index < 0:
        return cross_entropy
    return None


def total_weight(loss: Loss, targets: Tensor) -> float:
    """The weight of the mean loss of these samples in a mean over several batches.

    It is the number of targets, or the sum of their class weights if the loss has any.
    """
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and not targets.is_floating_point():
        targets = targets[targets != loss.ignore_index]
        if loss.weight is not None:
            return float(loss.weight[targets].sum())
    return float(targets.numel())


# Numbers of the losses in `gradients.linear_model`.
LOSSES: dict[Loss, int] = {multi_margin: 0, cross_entropy: 1, one_vs_rest: 2}

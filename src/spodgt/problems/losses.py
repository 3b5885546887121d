"""Losses: the torch definition of each, and the compiled form that the loops of linear models use.

Losses take outputs (…, batch, classes) and targets (…, batch) and give one mean per leading index, so that
the losses of all clients are one call. A test holds the compiled values and slopes to the torch definitions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.compiled import jit
from spodgt.compiled.instructions import ROOM, exp, room

Loss = Callable[..., Tensor]  # (outputs, targets), or (model, batch)


def multi_margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """The multi-class hinge of `torch.nn.MultiMarginLoss`: mean over classes of max(0, 1 - s_y + s_c)."""
    own = outputs.gather(-1, targets[..., None])
    margins = (1 - own + outputs).clamp_min(0)
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
    """The many-clients form of a loss module with default settings, None if there is none here."""
    if any(loss is known for known in LOSSES):
        return loss
    plain = getattr(loss, "weight", None) is None and getattr(loss, "reduction", "") == "mean"
    # The exact type: a subclass may be another loss.
    if type(loss) is nn.MultiMarginLoss and plain and loss.p == loss.margin == 1:
        return multi_margin
    if type(loss) is nn.CrossEntropyLoss and plain and loss.label_smoothing == 0 and loss.ignore_index < 0:
        return cross_entropy
    return None


def mass(loss: Loss, targets: Tensor) -> float:
    """What the loss of some samples counts in that of all: most losses average, some by weight, some add."""
    if getattr(loss, "reduction", "mean") == "sum":
        return 1.0
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and not targets.is_floating_point():
        targets = targets[targets != loss.ignore_index]
        if loss.weight is not None:
            return float(loss.weight[targets].sum())
    return float(targets.numel())


# --- compiled -----------------------------------------------------------------------------------------
LOSSES: dict[Loss, int] = {multi_margin: 0, cross_entropy: 1, one_vs_rest: 2}  # their numbers in the loops


@jit
def slopes(loss, scores, targets, samples, count, batch):  # type: ignore[no-untyped-def]
    """In place: scores (classes, count) ← the derivative by them of the mean loss of `batch` samples.

    `loss` is a value of LOSSES; `samples` are the numbers of the samples, `targets` the classes of all there
    are. There may be several batches. Samples are the inner loops, so that these vectorise.
    """
    classes, one = len(scores), scores.dtype.type(1)
    own, more, right = room(scores), room(scores), room(samples)
    unit = one / scores.dtype.type(classes * batch)
    for low in range(0, count, ROOM):
        some = min(ROOM, count - low)
        for s in range(some):
            right[s] = targets[np.uint64(samples[low + s])]
            own[s], more[s] = scores[np.uint64(right[s]), low + s], 0
        for c in range(classes if loss == 1 else 0):
            row = scores[c, low : low + some]
            for s in range(some):
                own[s] = max(own[s], row[s])
        for c in range(classes):
            row = scores[c, low : low + some]
            if loss == 0:
                for s in range(some):
                    hit = row[s] > own[s] - one  # the class itself always hits
                    row[s] = unit if hit else 0
                    more[s] += hit
            elif loss == 1:
                for s in range(some):
                    row[s] = exp(row[s] - own[s])
                    more[s] += row[s]
            else:
                for s in range(some):
                    row[s] = unit if one + row[s] > 0 else 0
        for c in range(classes if loss == 1 else 0):
            row = scores[c, low : low + some]
            for s in range(some):
                row[s] *= one / (more[s] * scores.dtype.type(batch))
        for s in range(some):
            at = np.uint64(right[s])
            if loss == 0:
                scores[at, low + s] = -unit * (more[s] - one)
            elif loss == 1:
                scores[at, low + s] -= one / scores.dtype.type(batch)
            else:
                scores[at, low + s] = -unit if one - own[s] > 0 else 0


@jit
def add_losses(loss, scores, own, top, total, losses, n):  # type: ignore[no-untyped-def]
    """losses[n] += the losses of all samples.

    `scores` is (classes, samples); for every sample, `own` is the score of its class, `top` the highest
    score and `total` zero, used as memory. Classes are the outer loop, so that the inner ones vectorise.
    """
    classes, count = scores.shape
    zero = scores.dtype.type(0)
    for c in range(classes):
        row = scores[c]
        if loss == 0:
            for s in range(count):
                total[s] += max(zero, 1 - own[s] + row[s])
        elif loss == 1:
            for s in range(count):
                total[s] += exp(row[s] - top[s])
        else:
            for s in range(count):
                total[s] += max(zero, 1 + row[s])
    for s in range(count):
        if loss == 0:
            losses[n] += (total[s] - 1) / classes  # without the class itself
        elif loss == 1:
            losses[n] += np.log(total[s]) + top[s] - own[s]
        else:
            losses[n] += (total[s] - max(zero, 1 + own[s]) + max(zero, 1 - own[s])) / classes

"""Models and losses by name, for configs and the shipped problems.

A model is built from the shape of one input and the number of classes. Losses here take outputs
(…, batch, classes) and targets (…, batch) and give one mean per leading index, so that the losses of
all clients are one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


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
    own = outputs.gather(-1, targets[..., None])[..., 0]
    return (outputs.logsumexp(-1) - own).mean(-1)


def stacked_loss(loss: Loss) -> Loss | None:
    """The many-clients form of a loss module with default settings, None if there is none here."""
    if loss in (multi_margin, one_vs_rest, cross_entropy):
        return loss
    plain = getattr(loss, "weight", None) is None and getattr(loss, "reduction", None) == "mean"
    if isinstance(loss, nn.MultiMarginLoss) and plain and loss.p == 1 and loss.margin == 1:
        return multi_margin
    if isinstance(loss, nn.CrossEntropyLoss) and plain and loss.label_smoothing == 0 and loss.ignore_index < 0:
        return cross_entropy
    return None


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int, hidden: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def cnn(shape: tuple[int, ...], classes: int, width: int = 8) -> nn.Module:
    """Two 3×3 convolutions, each halved by pooling, and a linear layer."""
    channels, height, breadth = shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (breadth // 4), classes),
    )


@dataclass(frozen=True)
class Recipe:
    """A model by name with the loss it is trained with."""

    build: Callable[..., nn.Module]
    loss: Loss
    options: tuple[str, ...] = ()  # keyword arguments of `build` that a config may set


MODELS: dict[str, Recipe] = {
    "svm": Recipe(linear, multi_margin),
    "svm-ovr": Recipe(linear, one_vs_rest),
    "logistic": Recipe(linear, cross_entropy),
    "mlp": Recipe(mlp, cross_entropy, ("hidden",)),
    "cnn": Recipe(cnn, cross_entropy, ("width",)),
}

"""Shipped models by name, built from the shape of an input and the number of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.losses import Loss, cross_entropy, multi_margin, one_vs_rest
from spodgt.validation import check_count


def linear(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One linear layer on flattened inputs of `shape`, that of one sample."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int, hidden: int = 64) -> nn.Sequential:
    """Two linear layers with `hidden` ReLU units between them."""
    check_count("hidden of mlp", hidden, 64)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def cnn(shape: tuple[int, ...], classes: int, width: int = 8) -> nn.Sequential:
    """Two 3×3 convolutions, each halved by pooling, and a linear layer."""
    check_count("width of cnn", width, 8)
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


# Mean and deviation of the training pixels of CIFAR-10 in [0, 1], for red, green and blue.
_COLOURS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_GREYS = ((0.5,), (0.25,))  # for images of any other number of channels
_GROUP = 16  # channels normalised together [wu2018group]


class Standardise(nn.Module):
    """Pixels in [0, 1] standardised to mean 0 and standard deviation 1 by constants.

    It is part of the model, so that saved weights include it; the constants are neither trained nor
    exchanged.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        mean, deviation = (torch.tensor(row) for row in (_COLOURS if channels == 3 else _GREYS))
        self.register_buffer("scale", (1 / deviation).view(-1, 1, 1), persistent=False)
        self.register_buffer("shift", (-mean / deviation).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x, self.scale)


class Residual(nn.Module):
    """Two 3×3 convolutions around a shortcut [he2016deep]."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            _normalisation(norm, after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            _normalisation(norm, after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(  # a strided 1×1 convolution, but see `gradients.loop`
                nn.AvgPool2d(1, stride),
                nn.Conv2d(before, after, 1, bias=False),
                _normalisation(norm, after),
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).add_(self.shortcut(x)).relu_()  # type: ignore[no-any-return]


def _normalisation(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(channels, max(1, channels // _GROUP)), channels)


def resnet18(
    shape: tuple[int, ...], classes: int, width: int = 64, norm: str = "group"
) -> nn.Sequential:
    """ResNet-18 for small images: a 3×3 stem, no pooling, four stages of two blocks each.

    The stages have `width`, 2, 4 and 8 times `width` channels; 64 is the usual size (11.2 million
    parameters with 10 classes). `norm="batch"` keeps running statistics, so a problem with it needs
    `buffers="pull"`.
    """
    check_count("width of resnet18", width, 64)
    if norm not in ("group", "batch"):
        raise InvalidInput(
            f"norm of resnet18 must be 'group' or 'batch', got {norm!r}; use 'group'."
        )
    if len(shape) != 3:
        raise InvalidInput(
            f"resnet18 needs images (channels, height, width), got inputs of shape {shape}; "
            "use mlp."
        )
    blocks: list[nn.Module] = []
    before = width
    for stage in range(4):
        after = width * 2**stage
        blocks += [
            Residual(before, after, 2 if stage else 1, norm),
            Residual(after, after, 1, norm),
        ]
        before = after
    return nn.Sequential(
        Standardise(shape[0]),
        nn.Conv2d(shape[0], width, 3, padding=1, bias=False),
        _normalisation(norm, width),
        nn.ReLU(inplace=True),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )


@dataclass(frozen=True)
class ModelRecipe:
    """A model by name with the loss it is trained with."""

    build: Callable[..., nn.Sequential]
    loss: Loss
    options: tuple[str, ...] = ()  # keyword arguments of `build` that a config may set


MODELS: dict[str, ModelRecipe] = {
    "svm": ModelRecipe(linear, multi_margin),
    "svm-ovr": ModelRecipe(linear, one_vs_rest),
    "logistic": ModelRecipe(linear, cross_entropy),
    "mlp": ModelRecipe(mlp, cross_entropy, ("hidden",)),
    "cnn": ModelRecipe(cnn, cross_entropy, ("width",)),
    "resnet18": ModelRecipe(resnet18, cross_entropy, ("width", "norm")),
}

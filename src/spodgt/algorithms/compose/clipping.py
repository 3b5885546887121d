"""Clipping by norm: no gradient, or no direction, longer than a bound [pascanu2013difficulty].

    g ← g min(1, c/|g|)        of every client's gradient: clip_gradient
    y ← y min(1, c/|y|)        of the direction alone, such as a tracker: clip_tracker

A tracker goes to zero, so clipping it only bounds the way there and an exact method stays exact; Σy = Σg
holds for the unclipped y, which is what is sent on. Gradients of single clients do not go to zero: where
clipping changes them at the optimum, the limit moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.algorithms.base import S, positive
from spodgt.algorithms.compose.wrapper import DirectionLayer, GradientLayer, Memory

_BLOCK = 1024


def norms(x: Tensor) -> Tensor:
    """(clients, 1) lengths of rows, in blocks: torch would sum a row alone in another order than many."""
    squares = torch.nn.functional.pad(x.square(), (0, -x.shape[1] % _BLOCK))
    return squares.reshape(len(x), -1, _BLOCK).sum(2).sum(1, keepdim=True).sqrt()


def clipped(x: Tensor, bound: float) -> Tensor:
    """`x` with no row longer than `bound`."""
    lengths = norms(x)
    return torch.where(lengths > bound, x * (bound / lengths), x)


@dataclass(frozen=True)
class ClipGradient(GradientLayer[S]):
    """`base` with every client's gradient cut to a largest length."""

    name = "clip-gradient"
    key, example = "clip_gradient", "1.0"
    bound: float = 1.0  # c

    def __post_init__(self) -> None:
        positive(self.bound, f"{self.key} of {self.base.name}")
        self.declares("clip-gradient", exact="no")

    def changed(self, g: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return clipped(g, self.bound), memory


@dataclass(frozen=True)
class ClipTracker(DirectionLayer[S]):
    """`base` with steps along a direction cut to a largest length."""

    name = "clip-tracker"
    key, example = "clip_tracker", "1.0"
    bound: float = 1.0  # c

    def __post_init__(self) -> None:
        positive(self.bound, f"{self.key} of {self.base.name}")
        self.declares("clip-tracker", rule=None)

    def turned(self, y: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return clipped(y, self.bound), memory

"""Clipping by norm: gradients or directions of at most a given norm [pascanu2013difficulty].

    g ← g min(1, c/|g|)        the gradient of every client: clip_gradient
    y ← y min(1, c/|y|)        only the direction, such as a tracker: clip_tracker

Trackers tend to zero, so clipping them bounds the first steps only and an exact method stays exact;
Σy = Σg holds for the unclipped y, which is sent. Gradients of single clients do not tend to zero:
if clipping changes them at the optimum, the limit moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.algorithms.base import S, positive
from spodgt.algorithms.compose.direction_layer import DirectionLayer
from spodgt.algorithms.compose.gradient_layer import GradientLayer
from spodgt.algorithms.compose.wrapper import Memory

_BLOCK = 1024


def row_norms(x: Tensor) -> Tensor:
    """(clients, 1) norms of rows, summed in blocks.

    Without blocks, the order of torch's sum would depend on the number of rows.
    """
    squares = torch.nn.functional.pad(x.square(), (0, -x.shape[1] % _BLOCK))
    return squares.reshape(len(x), -1, _BLOCK).sum(2).sum(1, keepdim=True).sqrt()


def clip_rows(x: Tensor, bound: float) -> Tensor:
    """`x` with rows scaled to a norm of at most `bound`."""
    norms = row_norms(x)
    return torch.where(norms > bound, x * (bound / norms), x)


@dataclass(frozen=True)
class ClipGradient(GradientLayer[S]):
    """`base` with the gradients of every client clipped to the norm `bound` (c)."""

    name = "clip-gradient"
    key = "clip_gradient"
    example = "1.0"
    bound: float = 1.0

    def __post_init__(self) -> None:
        positive(self.bound, f"{self.key} of {self.base.name}")
        self.set_traits("clip-gradient", exact="no")

    def transform(self, g: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return clip_rows(g, self.bound), memory


@dataclass(frozen=True)
class ClipTracker(DirectionLayer[S]):
    """`base` with steps along a direction clipped to the norm `bound` (c)."""

    name = "clip-tracker"
    key = "clip_tracker"
    example = "1.0"
    bound: float = 1.0

    def __post_init__(self) -> None:
        positive(self.bound, f"{self.key} of {self.base.name}")
        self.set_traits("clip-tracker", rule=None)

    def transform(self, y: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return clip_rows(y, self.bound), memory

"""Sums over the rows of stacked models, in double precision."""

from __future__ import annotations

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """In double precision, where the device has it: mps does not."""
    return x.float() if x.device.type == "mps" else x.double()


def is_finite(x: Tensor) -> bool:
    """Whether no number of `x` is infinite or NaN."""
    return bool(torch.isfinite(x).all())


def mean(x: Tensor) -> Tensor:
    """The average row, in the precision of x."""
    return widened(x).mean(0).to(x.dtype)


def spread(x: Tensor) -> float:
    """Root mean square distance of the rows from their average."""
    wide = widened(x)
    return float((wide - wide.mean(0)).square().sum(1).mean().sqrt())


def imbalance(y: Tensor, g: Tensor) -> float:
    """|Σy - Σg| over the rows."""
    return float((widened(y).sum(0) - widened(g).sum(0)).norm())

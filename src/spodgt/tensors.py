"""Sums over the rows of stacked models, in double precision."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """In double precision, where the device has it: mps does not."""
    return x.float() if x.device.type == "mps" else x.double()


_SLICE = 2**20  # numbers of a large vector that are handled at once


def slices(n: int) -> Iterator[slice]:
    """Ranges that cover n numbers, so that large vectors are handled in parts."""
    for start in range(0, n, _SLICE):
        yield slice(start, min(start + _SLICE, n))


def difference(x: Tensor, y: Tensor) -> Tensor:
    """x - y of two vectors, in double precision."""
    result = torch.empty(len(x), dtype=torch.float64)
    for part in slices(len(x)):
        torch.sub(x[part].double(), y[part], out=result[part])
    return result


def is_finite(x: Tensor) -> bool:
    """Whether no number of `x` is infinite or NaN."""
    if x.dim() == 1:
        return all(bool(torch.isfinite(x[part]).all()) for part in slices(len(x)))
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

"""Sums over the rows of stacked models, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """In double precision, where the device has it: mps does not."""
    return x.float() if x.device.type == "mps" else x.double()


_SLICE = 2**18  # numbers of a large vector that are handled at once: they fit into the caches
NewRow: TypeAlias = Callable[[int, torch.dtype], Tensor]  # makes a vector of n undefined numbers


def slices(n: int) -> Iterator[slice]:
    """Ranges that cover n numbers, so that large vectors are handled in parts."""
    for start in range(0, n, _SLICE):
        yield slice(start, min(start + _SLICE, n))


def new_row(n: int, dtype: torch.dtype) -> Tensor:
    """A vector of n undefined numbers in memory."""
    return torch.empty(n, dtype=dtype)


def zero_row(n: int, dtype: torch.dtype) -> Tensor:
    """A vector of n zeros that takes the memory of one; it cannot be changed."""
    return torch.zeros(1, dtype=dtype).expand(n)


def largest(x: Tensor) -> float:
    """The largest absolute value of a vector; NaN if one number is."""
    result = 0.0
    for part in slices(len(x)):
        for end in torch.aminmax(x[part]):  # NaN if one number is
            size = abs(float(end))
            if not size <= result:
                result = size
        if math.isnan(result):
            break
    return result


def is_finite(x: Tensor) -> bool:
    """Whether no number of `x` is infinite or NaN."""
    if x.dim() == 1:
        return math.isfinite(largest(x))
    return bool(torch.isfinite(x).all())


def norm(x: Tensor) -> float:
    """The Euclidean norm, also where the squares of float32 numbers would overflow."""
    flat = x.reshape(-1)
    return math.hypot(*(float(flat[part].double().norm()) for part in slices(len(flat))))


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

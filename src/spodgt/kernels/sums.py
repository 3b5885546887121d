"""Sums over the rows of a state: compiled in one pass on a CPU, torch's own elsewhere."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from spodgt.compiled import jit, jit_sum, share, usable, widened
from spodgt.types import Array, Bools, Floats


def mean(x: Tensor) -> Tensor:
    """The average row."""
    return torch.from_numpy(_total(x) / len(x)).to(x.dtype) if usable(x) else x.mean(0)


def spread(x: Tensor) -> float:
    """Root mean square distance of the rows from their average."""
    if usable(x):
        return math.sqrt(_square_distances(x.numpy(), _total(x) / len(x)) / len(x))
    return float((x - x.mean(0)).square().sum(1).mean().sqrt())


def imbalance(y: Tensor, g: Tensor) -> float:
    """|Σy - Σg| over the rows."""
    if usable(y, g):
        return float(torch.from_numpy(_total(y) - _total(g)).norm())
    return float((widened(y).sum(0) - widened(g).sum(0)).norm())


def count(numbers: Array, flags: Bools) -> None:
    """In place: numbers[n] += how many of flags[:, n] are true."""

    def work(first: int, last: int) -> None:
        _count(numbers[first:last], flags[:, first:last].view(np.uint8))

    share(len(numbers), flags.size, work)


@jit
def _count(numbers, flags):  # type: ignore[no-untyped-def]
    """Zeros and ones: bools would be branches."""
    for row in range(len(flags)):
        some = flags[row]
        for n in range(len(numbers)):
            numbers[n] += some[n]


def _total(x: Tensor) -> Floats:
    """(columns,): the sum of every column, in double precision."""
    sums = np.zeros(x.shape[1])
    _sums(x.numpy(), sums)
    return sums


@jit
def _sums(x, sums):  # type: ignore[no-untyped-def]
    """Add the rows of x to `sums` (columns,)."""
    for i in range(len(x)):
        row = x[i]
        for c in range(len(row)):
            sums[c] += row[c]


@jit
def _square_distances(x, mean):  # type: ignore[no-untyped-def]
    """Of the rows of x from a row, in all."""
    total = 0.0
    for i in range(len(x)):
        total += _square_distance(x[i], mean)
    return total


@jit_sum
def _square_distance(row, mean):  # type: ignore[no-untyped-def]
    total = 0.0
    for c in range(len(row)):
        total += (row[c] - mean[c]) ** 2
    return total

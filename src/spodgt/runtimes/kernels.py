"""Mixing of stacked models over the active links, compiled."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spodgt.compiled import jit, share

Array = NDArray[Any]
COLUMNS = 512  # of a block that is mixed in place: with ten clients it stays in the first-level cache
_FEW = 4096  # rows whose blocks of columns fit the second-level cache together
LEAST_COLUMNS = 128  # with very many clients: shorter pieces of rows would cost more than they save


@jit
def _mix_block(x, out, pointers, senders, weights, active, kept, top, bottom, left, right):  # type: ignore[no-untyped-def]
    for i in range(top, bottom):
        own, xi, to = x.dtype.type(kept[i]), x[i, left:right], out[i, left:right]
        for c in range(len(to)):
            to[c] = own * xi[c]
        for link in range(pointers[i], pointers[i + 1]):
            if active[link]:
                w, xj = x.dtype.type(weights[link]), x[senders[link], left:right]
                for c in range(len(to)):
                    to[c] += w * xj[c]


def mix(x: Tensor, pointers: Array, senders: Array, weights: Array, active: Array, kept: Array) -> Tensor:
    """out_i = kept_i x_i + Σ over active links j → i of w_ij x_j, links in rows by `pointers`."""
    out = torch.empty_like(x)
    rows, width = x.shape
    given = x.numpy(), out.numpy(), pointers, senders, weights, active, kept
    columns = max(COLUMNS, 2**15 // max(1, rows))

    def by_columns(first: int, last: int) -> None:  # few long rows: neighbours are read once from memory
        for left in range(first * columns, min(width, last * columns), columns):
            _mix_block(*given, 0, rows, left, min(width, left + columns))

    if width > 2 * columns and rows <= _FEW:
        share(-(-width // columns), x.numel(), by_columns)
    else:
        share(rows, x.numel(), lambda first, last: _mix_block(*given, first, last, 0, width))
    return out


@jit
def _exchange(  # type: ignore[no-untyped-def]
    x,
    y,
    g,
    drop,
    step,
    starts,
    blocks,
    pointers,
    senders,
    a,
    b,
    active,
    kept_a,
    kept_b,
    new_x,
    new_y,
    first,
    last,
):
    width, columns = x.shape[1], new_x.shape[1]
    for task in range(first, last):
        run, block = task // blocks, task % blocks
        low, high = starts[run], starts[run + 1]
        left = block * columns
        size = min(width - left, columns)
        for i in range(low, high):
            own_a, own_b = x.dtype.type(kept_a[i]), x.dtype.type(kept_b[i])
            xi, yi = x[i, left : left + size], y[i, left : left + size]
            to_x, to_y = new_x[i - low, :size], new_y[i - low, :size]
            for c in range(size):
                to_x[c] = own_a * xi[c]
            for c in range(size):
                to_y[c] = own_b * yi[c]
            for link in range(pointers[i], pointers[i + 1]):
                if active[link]:
                    j, wa, wb = senders[link], x.dtype.type(a[link]), x.dtype.type(b[link])
                    xj, yj = x[j, left : left + size], y[j, left : left + size]
                    for c in range(size):
                        to_x[c] += wa * xj[c]
                    for c in range(size):
                        to_y[c] += wb * yj[c]
        for i in range(low, high):
            eta = x.dtype.type(step[i])
            xi, yi, gi = x[i, left : left + size], y[i, left : left + size], g[i, left : left + size]
            from_x, from_y = new_x[i - low, :size], new_y[i - low, :size]
            for c in range(size):
                xi[c] = from_x[c] - eta * from_y[c]
            if drop[i]:
                for c in range(size):
                    yi[c] = from_y[c] - gi[c]
                gi[:] = 0
            else:
                for c in range(size):
                    yi[c] = from_y[c]


def exchange(
    x: Tensor,
    y: Tensor,
    g: Tensor,
    drop: Array,
    step: Array,
    starts: Array,
    links: tuple[Array, ...],
    active: Array,
) -> None:
    """In place, column block by column block: y ← B̂y, x ← Âx - ηy, and y ← y - g, g ← 0 where `drop`.

    `links` is (pointers, senders, a, b, kept_a, kept_b); `starts` are the first clients of the runs.
    """
    largest = int(np.diff(starts).max())
    columns = int(np.clip(2**17 // max(1, largest), LEAST_COLUMNS, COLUMNS))
    blocks = -(-x.shape[1] // columns)
    views = x.numpy(), y.numpy(), g.numpy()
    pointers, senders, a, b, kept_a, kept_b = links

    def work(first: int, last: int) -> None:
        rows = pointers, senders, a, b, active, kept_a, kept_b
        new = _scratch(largest, columns, views[0].dtype)
        _exchange(*views, drop, step, starts, blocks, *rows, *new, first, last)

    share(blocks * (len(starts) - 1), x.numel(), work)


_kept_by_thread = threading.local()


def _scratch(rows: int, columns: int, dtype: Any) -> tuple[Array, Array]:
    """Two blocks of this thread's own, made once: fresh pages in every round cost more than the work."""
    key = (rows, columns, dtype)
    if getattr(_kept_by_thread, "key", None) != key:
        _kept_by_thread.key = key
        _kept_by_thread.blocks = np.empty((rows, columns), dtype), np.empty((rows, columns), dtype)
    blocks: tuple[Array, Array] = _kept_by_thread.blocks
    return blocks


@jit
def _kept(receivers, senders, a, b, active, kept_a, kept_b):  # type: ignore[no-untyped-def]
    kept_a[:] = 1
    kept_b[:] = 1
    for link in range(len(active)):
        if active[link]:
            kept_a[receivers[link]] -= a[link]
            kept_b[senders[link]] -= b[link]


def kept(
    receivers: Array, senders: Array, a: Array, b: Array, active: Array, clients: int
) -> tuple[Array, Array]:
    """The diagonals of Â and B̂: what missing links would have carried stays."""
    out = np.empty(clients), np.empty(clients)
    _kept(receivers, senders, a, b, active, *out)
    return out

"""Mixing of stacked models over the active links, compiled."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spodgt.compiled import jit, share
from spodgt.problems.gradients.linear import linear_gradients
from spodgt.types import LinearData

Array = NDArray[Any]
COLUMNS = 512  # of a block that is mixed in place: with ten clients it stays in the first-level cache
_WIDE, _WIDE_COLUMNS = 2**17, 2048  # models so long that what counts is to read long pieces of them
_NUMBERS = 2**16  # of a block mixed from one state into another: both stay in the second-level cache
_FEW = 4096  # rows whose blocks of columns fit the second-level cache together


@jit
def _combine(x, to, i, kept, pointers, senders, weights, active, left):  # type: ignore[no-untyped-def]
    """to ← kept_i x_i + Σ w_ij x_j over the active links of client i, for some columns; four links a pass."""
    own, xi, one = x.dtype.type(kept[i]), x[i, left : left + len(to)], x.dtype.type
    link, end, fresh = pointers[i], pointers[i + 1], True
    j0, j1, j2, j3 = i, i, i, i
    w0, w1, w2, w3 = own, own, own, own
    while fresh or link < end:
        count = 0
        while link < end and count < 4:
            if active[link]:
                j0, j1, j2, j3 = j1, j2, j3, senders[link]
                w0, w1, w2, w3 = w1, w2, w3, one(weights[link])
                count += 1
            link += 1
        x0, x1 = x[j0, left : left + len(to)], x[j1, left : left + len(to)]
        x2, x3 = x[j2, left : left + len(to)], x[j3, left : left + len(to)]
        if fresh and count == 4:
            for c in range(len(to)):
                to[c] = own * xi[c] + w0 * x0[c] + w1 * x1[c] + w2 * x2[c] + w3 * x3[c]
        elif fresh and count == 3:
            for c in range(len(to)):
                to[c] = own * xi[c] + w1 * x1[c] + w2 * x2[c] + w3 * x3[c]
        elif fresh and count == 2:
            for c in range(len(to)):
                to[c] = own * xi[c] + w2 * x2[c] + w3 * x3[c]
        elif fresh and count == 1:
            for c in range(len(to)):
                to[c] = own * xi[c] + w3 * x3[c]
        elif fresh:
            for c in range(len(to)):
                to[c] = own * xi[c]
        elif count == 4:
            for c in range(len(to)):
                to[c] = to[c] + w0 * x0[c] + w1 * x1[c] + w2 * x2[c] + w3 * x3[c]
        elif count == 3:
            for c in range(len(to)):
                to[c] = to[c] + w1 * x1[c] + w2 * x2[c] + w3 * x3[c]
        elif count == 2:
            for c in range(len(to)):
                to[c] = to[c] + w2 * x2[c] + w3 * x3[c]
        elif count == 1:
            for c in range(len(to)):
                to[c] = to[c] + w3 * x3[c]
        fresh = False


@jit
def _mix_block(x, out, pointers, senders, weights, active, kept, top, bottom, left, right):  # type: ignore[no-untyped-def]
    for i in range(top, bottom):
        _combine(x, out[i, left:right], i, kept, pointers, senders, weights, active, left)


def mix(
    x: Tensor, out: Tensor, pointers: Array, senders: Array, weights: Array, active: Array, kept: Array
) -> Tensor:
    """out_i = kept_i x_i + Σ over active links j → i of w_ij x_j, links in rows by `pointers`."""
    rows, width = x.shape
    given = x.numpy(), out.numpy(), pointers, senders, weights, active, kept
    columns = max(COLUMNS, _NUMBERS // max(1, rows))

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
            _combine(x, new_x[i - low, :size], i, kept_a, pointers, senders, a, active, left)
            _combine(y, new_y[i - low, :size], i, kept_b, pointers, senders, b, active, left)
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
    columns = COLUMNS if x.shape[1] <= _WIDE else _WIDE_COLUMNS
    blocks = -(-x.shape[1] // columns)
    views = x.numpy(), y.numpy(), g.numpy()
    pointers, senders, a, b, kept_a, kept_b = links

    def work(first: int, last: int) -> None:
        rows = pointers, senders, a, b, active, kept_a, kept_b
        new = _scratch(largest, columns, views[0].dtype)
        _exchange(*views, drop, step, starts, blocks, *rows, *new, first, last)

    share(blocks * (len(starts) - 1), x.numel(), work)


@jit
def _pull_rows(  # type: ignore[no-untyped-def]
    x, y, g, out, drop, step, pointers, senders, a, active, kept, first, last
):
    for i in range(first, last):
        to, yi, gi, eta = out[i], y[i], g[i], x.dtype.type(step[i])
        _combine(x, to, i, kept, pointers, senders, a, active, 0)
        for c in range(len(to)):
            to[c] = to[c] - eta * yi[c]
        if drop[i]:
            for c in range(len(to)):
                yi[c] = yi[c] - gi[c]
            gi[:] = 0


def exchange_rows(
    x: Tensor,
    y: Tensor,
    g: Tensor,
    spare: Tensor,
    drop: Array,
    step: Array,
    links: tuple[Array, ...],
    active: Array,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `exchange`, for more clients than a cache holds: whole rows, by way of a spare state.

    Returns x, y and what is spare now: the three have changed places.
    """
    pointers, senders, a, b, kept_a, kept_b = links
    y, spare = mix(y, spare, pointers, senders, b, active, kept_b), y
    given = x.numpy(), y.numpy(), g.numpy(), spare.numpy(), drop, step, pointers, senders, a, active, kept_a
    share(len(x), x.numel(), lambda first, last: _pull_rows(*given, first, last))
    return spare, y, x


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
def _renew(y, g, new, rows, weight, first, last):  # type: ignore[no-untyped-def]
    for n in range(first, last):
        by, yi, gi, ni = new.dtype.type(weight[n]), y[rows[n]], g[rows[n]], new[n]
        for c in range(len(ni)):
            yi[c] += by * ni[c] - gi[c]
        for c in range(len(ni)):
            gi[c] = by * ni[c]


def renew(y: Tensor, g: Tensor, new: Tensor, rows: Array, weight: Array) -> None:
    """In place: y ← y + w g⁺ - g and g ← w g⁺ in some rows."""
    views = y.numpy(), g.numpy(), new.contiguous().numpy(), rows, weight
    share(len(rows), new.numel(), lambda first, last: _renew(*views, first, last))


@jit
def _kept(pointers, senders, a, b, active, kept_a, kept_b, low, high):  # type: ignore[no-untyped-def]
    """Of clients low to high, whose links come from each other."""
    kept_a[low:high] = 1
    kept_b[low:high] = 1
    for i in range(low, high):
        for link in range(pointers[i], pointers[i + 1]):
            if active[link]:
                kept_a[i] -= a[link]
                kept_b[senders[link]] -= b[link]


def kept(pointers: Array, senders: Array, a: Array, b: Array, active: Array) -> tuple[Array, Array]:
    """The diagonals of Â and B̂: what missing links would have carried stays."""
    clients = len(pointers) - 1
    out = np.empty(clients), np.empty(clients)
    _kept(pointers, senders, a, b, active, *out, 0, clients)
    return out


@jit
def _rounds(  # type: ignore[no-untyped-def]
    x,
    y,
    g,
    computes,
    active,
    memory,
    step,
    weight,
    keys,
    places,
    k,
    starts,
    links,
    data,
    batch,
    first,
    last,
):
    pointers, senders, a, b = links
    columns = COLUMNS
    clients, blocks = len(x), -(-x.shape[1] // columns)
    kept_a, kept_b, nobody = np.empty(clients), np.empty(clients), np.zeros(clients, np.bool_)
    most = 0
    for run in range(first, last):
        most = max(most, starts[run + 1] - starts[run])
    new_x, new_y = np.empty((most, columns), x.dtype), np.empty((most, columns), x.dtype)
    who, whose = np.empty(most, np.int64), np.empty(most, keys.dtype)
    where, by = np.empty(most, np.int64), np.empty(most)
    for run in range(first, last):  # one run stays in the cache for all its rounds
        low, high = starts[run], starts[run + 1]
        for r in range(len(active)):
            on, drop = active[r], nobody if memory else computes[r]
            _kept(pointers, senders, a, b, on, kept_a, kept_b, low, high)
            rows = pointers, senders, a, b, on, kept_a, kept_b
            tasks = run * blocks, (run + 1) * blocks
            _exchange(x, y, g, drop, step, starts, blocks, *rows, new_x, new_y, *tasks)
            begin = count = low - low  # 0; as literals, 0 and True would have the gradients compiled anew
            for i in range(low, high):
                if computes[r + 1, i]:
                    who[count], whose[count], where[count], by[count] = i, keys[i], places[i], weight[i]
                    count += 1
            linear_gradients(x, g, y, low >= 0, who, who, whose, where, k + r, data, batch, by, begin, count)


def rounds(
    x: Tensor,
    y: Tensor,
    g: Tensor,
    computes: Array,
    active: Array,
    memory: bool,
    each: tuple[Array, Array, Array, Array],
    k: int,
    starts: Array,
    links: tuple[Array, Array, Array, Array],
    data: LinearData,
    batch: int,
) -> None:
    """Several rounds from k on in place, run by run: `exchange`, then y ← y + g⁺ - g and g ← g⁺.

    `computes` (1 + rounds, clients) begins with the round before, `active` is (rounds, links); `each` is
    (step, weight of gradients, key, place) of every client, `links` (pointers, senders, a, b).
    """
    views = x.numpy(), y.numpy(), g.numpy()

    def work(first: int, last: int) -> None:
        _rounds(*views, computes, active, memory, *each, k, starts, links, data, batch, first, last)

    share(len(starts) - 1, x.numel() * len(active), work)

"""Turns of virtual time for gradient tracking, in one pass over memory and in place.

The plain twin is the method's own `step` on the rows of a batch; a test holds both together. See
`runtimes.virtual.plan` for what a turn is and `kernels.tracking` for the step.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from spodgt.compiled import jit, share
from spodgt.kernels.mixing import COLUMNS, Array

_NUMBERS = 2**18  # of a block of scratch
Messages = tuple[
    Array, Array, Array, Array
]  # row that takes it, whether it was sent here, from where, weight


@jit
def _take(own, pool, rows, kept, messages, new, left):  # type: ignore[no-untyped-def]
    """new ← kept · own rows + weights · what the messages hold, for some columns."""
    to, here, where, weights = messages
    size, one = new.shape[1], own.dtype.type
    for r in range(len(rows)):
        row, weight, into = own[rows[r], left : left + size], one(kept[r]), new[r]
        for c in range(size):
            into[c] = weight * row[c]
    n, end = 0, len(to)
    while n < end:  # two messages of a row in one pass
        into, w0 = new[to[n]], one(weights[n])
        r0 = own[rows[where[n]], left : left + size] if here[n] else pool[where[n], left : left + size]
        n += 1
        if n < end and to[n] == to[n - 1]:
            w1 = one(weights[n])
            r1 = own[rows[where[n]], left : left + size] if here[n] else pool[where[n], left : left + size]
            n += 1
            for c in range(size):
                into[c] += w0 * r0[c] + w1 * r1[c]
        else:
            for c in range(size):
                into[c] += w0 * r0[c]


@jit
def _columns(rows):  # type: ignore[no-untyped-def]
    """Of a block: fewer for many rows, whose scratch would be as large as a state."""
    return max(32, min(COLUMNS, _NUMBERS // max(1, rows)))


@jit
def _turns(state, pools, rows, given, messages, stores, box, drop, first, last):  # type: ignore[no-untyped-def]
    """Blocks first to last of columns of `turns`."""
    (x, y, g), (pool_x, pool_y) = state, pools
    (kept_x, kept_y, each), (models, mass) = given, messages
    inbox, used, to, senders, shares = box
    (rows_x, slots_x), (rows_y, slots_y) = stores
    width, count = x.shape[1], len(rows)
    columns = _columns(count)
    spare_x = np.empty((count, columns), x.dtype)
    spare_y = np.empty((count, columns), x.dtype)
    for block in range(first, last):
        left = block * columns
        size = min(width - left, columns)
        new_x, new_y = spare_x[:, :size], spare_y[:, :size]
        _take(x, pool_x, rows, kept_x, models, new_x, left)
        _take(y, pool_y, rows, kept_y, mass, new_y, left)
        for n in range(len(rows_x)):  # after all have read: a slot may be used again
            pool_x[slots_x[n], left : left + size] = x[rows[rows_x[n]], left : left + size]
        for n in range(len(rows_y)):
            pool_y[slots_y[n], left : left + size] = y[rows[rows_y[n]], left : left + size]
        if used:
            for r in range(count):
                there, into = inbox[rows[r], left : left + size], new_y[r]
                for c in range(size):
                    into[c] += there[c]
                there[:] = 0
            for n in range(len(to)):  # what the next turns of others take, from trackers as they were
                share = x.dtype.type(shares[n])
                into, row = inbox[to[n], left : left + size], y[rows[senders[n]], left : left + size]
                for c in range(size):
                    into[c] += share * row[c]
        for r in range(count):
            i = rows[r]
            eta = x.dtype.type(each[i])
            xi, yi, gi = x[i, left : left + size], y[i, left : left + size], g[i, left : left + size]
            for c in range(size):
                xi[c] = new_x[r, c] - eta * new_y[r, c]
            if drop:
                for c in range(size):
                    yi[c] = new_y[r, c] - gi[c]
                gi[:] = 0
            else:
                for c in range(size):
                    yi[c] = new_y[r, c]


def turns(
    state: tuple[Tensor, Tensor, Tensor],
    pools: tuple[Tensor, Tensor],
    rows: Array,
    kept: tuple[Array, Array],
    each: Array,
    messages: tuple[Messages, Messages],
    stores: tuple[tuple[Array, Array], tuple[Array, Array]],
    box: tuple[Tensor, bool, Array, Array, Array],
    drop: bool,
) -> None:
    """In place: y ← B̂ y, x ← Â x - η y for the clients of a batch, and y ← y - g, g ← 0 where `drop`.

    Args:
        state: x, y, g of all clients.
        pools: the copies of x and of y that are on their way, by slot.
        rows: the clients of the batch, all different.
        kept: of each row, its own part of x and of y.
        each: (clients,) step sizes.
        messages: what rows take, of x and of y.
        stores: rows whose x is kept, and the slots it is kept in; the same of y.
        box: (clients, parameters) mass that the next turns take, whether it is used, and what is put there:
            to whom, from which row, and its share.
        drop: an idle client's gradient counts as zero.
    """
    views = tuple(tensor.numpy() for tensor in state), tuple(pool.numpy() for pool in pools)
    boxed = box[0].numpy(), *box[1:]
    given = rows, (*kept, each), messages, stores, boxed, drop
    blocks = -(-state[0].shape[1] // int(_columns(len(rows))))
    numbers = (len(rows) + len(messages[1][0])) * state[0].shape[1]
    share(blocks, numbers, lambda first, last: _turns(*views, *given, first, last))

"""Turns of virtual time for gradient tracking, in one pass over memory and in place.

The plain twin is the method's own `step` on the rows of a batch; a test holds both together. See
`runtimes.virtual.plan` for what a turn is and `kernels.tracking` for the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from spodgt.compiled import jit, share
from spodgt.kernels.mixing import COLUMNS
from spodgt.problems.gradients.linear import gradient_memory, linear_gradients
from spodgt.types import Array, LinearData

_NUMBERS = 2**18  # of a block of scratch


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
def _turns(state, pools, lot, each, inbox, used, drop, batch, first, last):  # type: ignore[no-untyped-def]
    """Blocks first to last of columns of `turns`, of one batch."""
    (x, y, g), (pool_x, pool_y) = state, pools
    cuts, clients, kept, all_models, all_mass, copies, trackers, ahead, _, _ = lot
    low, high = cuts[batch], cuts[batch + 1]
    rows = clients[low[0] : high[0]]
    kept_x, kept_y = kept[0][low[0] : high[0]], kept[1][low[0] : high[0]]
    (to, here, where, weights), (start, end) = all_models, (low[1], high[1])
    models = to[start:end], here[start:end], where[start:end], weights[start:end]
    (to, here, where, weights), (start, end) = all_mass, (low[2], high[2])
    mass = to[start:end], here[start:end], where[start:end], weights[start:end]
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
        for n in range(low[3], high[3]):  # after all have read: a slot may be used again
            pool_x[copies[1][n], left : left + size] = x[rows[copies[0][n]], left : left + size]
        for n in range(low[4], high[4]):
            pool_y[trackers[1][n], left : left + size] = y[rows[trackers[0][n]], left : left + size]
        if used:
            for r in range(count):
                there, into = inbox[rows[r], left : left + size], new_y[r]
                for c in range(size):
                    into[c] += there[c]
                there[:] = 0
            for n in range(low[5], high[5]):  # what the next turns of others take, of trackers as they were
                share = x.dtype.type(ahead[2][n])
                into, row = inbox[ahead[0][n], left : left + size], y[rows[ahead[1][n]], left : left + size]
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


@jit
def _learn(state, pools, lot, each, inbox, used, drop, data, memory, weight):  # type: ignore[no-untyped-def]
    """`turns` and the gradients of a linear problem, batch after batch."""
    (x, y, g), (rows, keys) = state, lot[8]
    for batch in range(len(lot[0]) - 1):
        blocks = -(-x.shape[1] // _columns(lot[0][batch + 1, 0] - lot[0][batch, 0]))
        _turns(state, pools, lot, each, inbox, used, drop, batch, 0, blocks)
        low, high = lot[0][batch, 6], lot[0][batch + 1, 6]
        draws = rows[low:high], keys[low:high], rows[low:high], 0
        linear_gradients(
            (x, g, y), True, rows[low:high], draws, data, memory, weight[low:high], 0, high - low
        )


@dataclass(frozen=True, eq=False)
class Turns:
    """The turns of a lot: y ← B̂ y, x ← Â x - η y for the clients of a batch, and y ← y - g, g ← 0 if `drop`.

    Args:
        state: x, y, g of all clients; changed in place.
        pools: the copies of x and of y that are on their way, by slot.
        lot: the turns, laid out (`runtimes.virtual.lot`).
        each: (clients,) step sizes.
        inbox: (clients, parameters) mass that the next turns take; None where nobody uses it.
        drop: an idle client's gradient counts as zero.
    """

    state: tuple[Tensor, Tensor, Tensor]
    pools: tuple[Tensor, Tensor]
    lot: tuple[Any, ...]
    each: Array
    inbox: Tensor | None
    drop: bool

    def _given(self) -> tuple[Any, ...]:
        views = tuple(tensor.numpy() for tensor in self.state), tuple(pool.numpy() for pool in self.pools)
        used = self.inbox is not None
        box = views[0][1] if self.inbox is None else self.inbox.numpy()  # y stands for nothing there
        return *views, tuple(self.lot), self.each, box, used, self.drop

    def one(self, batch: int) -> None:
        """Compute one batch, on as many threads as are worth waking."""
        low, high = self.lot[0][batch], self.lot[0][batch + 1]
        rows, width, given = int(high[0] - low[0]), self.state[0].shape[1], self._given()
        numbers = (rows + int(high[2] - low[2])) * width
        share(-(-width // int(_columns(rows))), numbers, lambda a, b: _turns(*given, batch, a, b))

    def learn(self, data: LinearData, size: int, weight: Array) -> None:
        """Compute all batches with the gradients of a linear problem, on this thread.

        Args:
            data: the problem.
            size: samples of a mini-batch.
            weight: what multiplies each gradient, in the order of the lot's draws.
        """
        memory = gradient_memory(data, size, self.state[0].numpy().dtype)
        _learn(*self._given(), data, memory, weight)

"""Gradient tracking in two passes over memory instead of twenty: the compiled step "gradient-tracking".

A method that declares it has the state x, y, g, one step size or one per client, and this step:

    exchange    y ← B̂ y;  x ← Â x - η y;  y ← y - g, g ← 0 where a gradient is dropped
    gradients   y ← y + g⁺ - g, g ← g⁺ for the clients that compute

Which gradients are dropped and how they are weighed is the method's declared rule. The plain twin is the
method's own `step`; a test holds both together.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, HasStepSize, Rule
from spodgt.compiled import aligned, jit, jit_part, share, team_for, usable
from spodgt.compiled.code import SPAN
from spodgt.compiled.instructions import blend_both, many_registers, room, stream
from spodgt.kernels.linear import LinearStep
from spodgt.kernels.mixing import (
    COLUMNS,
    FAR,
    LINE,
    Links,
    Slim,
    ahead,
    combine,
    fetch_row,
    kept_by_senders,
    mix,
    mix_row,
    mix_rows,
    ones_of,
    roomy,
)
from spodgt.kernels.order import BLOCK
from spodgt.kernels.stages import Work, in_stages
from spodgt.kernels.steps import Activity, Batch, State, rebuild
from spodgt.problems.gradients.linear import draw_tasks, gradient_memory, learn_tasks
from spodgt.types import (
    Array,
    CompiledGradient,
    Floats,
    Ints,
    LinearData,
    Minibatches,
    Problem,
    SingleGradients,
    Singly,
)

_WIDE, _WIDE_COLUMNS = 2**17, 2048  # models so long that what counts is to read long pieces of them
_SHORT = COLUMNS  # rows of so many numbers at most are mixed and used in blocks
_MANY = 200  # clients of a run whose blocks of columns do not stay in a cache
Rows = tuple[Array, Array, Array, Array, Array, Array]  # pointers, senders, a, b, diagonals of Â and B̂


@jit
def _exchange(state, drop, step, starts, blocks, links, new, first, last):  # type: ignore[no-untyped-def]
    """Tasks first to last of `exchange`, each one block of columns of one run.

    state: x, y, g (clients, parameters), written to. drop, step: (clients,). starts: (runs + 1,).
    blocks: blocks of columns in a run. links: `Rows` with the (links,) active ones in the middle.
    new: two blocks (clients of the largest run, columns) to work in.
    """
    (x, y, g), (new_x, new_y) = state, new
    pointers, senders, a, b, active, kept_a, kept_b = links
    width, columns = x.shape[1], new_x.shape[1]
    for task in range(first, last):
        run, block = task // blocks, task % blocks
        low, high = starts[run], starts[run + 1]
        left = block * columns
        size = min(width - left, columns)
        combine(x, new_x, (pointers, senders, a, active), kept_a, (0, low), (left, 0), size, low, high)
        combine(y, new_y, (pointers, senders, b, active), kept_b, (0, low), (left, 0), size, low, high)
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
    x: Tensor, y: Tensor, g: Tensor, drop: Array, step: Array, starts: Array, links: Rows, active: Array
) -> tuple[int, Callable[[int, int], None]]:
    """In place, column block by column block: y ← B̂y, x ← Âx - ηy, and y ← y - g, g ← 0 where `drop`.

    `drop` and `step` are (clients,), `starts` the first clients of the runs and the end. Returns how many
    tasks that are, and what does those from one to another.
    """
    largest = int(np.diff(starts).max())
    columns = COLUMNS if x.shape[1] <= _WIDE else _WIDE_COLUMNS
    blocks = -(-x.shape[1] // columns)
    views, ones = (x.numpy(), y.numpy(), g.numpy()), ones_of(active)
    pointers, senders, a, b, kept_a, kept_b = links

    def work(first: int, last: int) -> None:
        rows = pointers, senders, a, b, ones, kept_a, kept_b
        new = _scratch(largest, columns, views[0].dtype)
        _exchange(views, drop, step, starts, blocks, rows, new, first, last)

    return blocks * (len(starts) - 1), work


@jit
def _pull_rows(state, out, drop, step, slim, active, uses, first, last):  # type: ignore[no-untyped-def]
    """Rows first to last: out ← Âx - ηy, and y ← y - g, g ← 0 where `drop`; y is mixed already."""
    (x, y, g), near = state, (slim[0], slim[1], slim[2], active)
    for i in range(first, last):
        to, yi, gi, eta = out[i], y[i], g[i], x.dtype.type(step[i])
        ahead((x,), near, uses, i, last)
        mix_row(x, out, slim, active, 1.0, True, i, i)
        for c in range(len(to)):
            to[c] = to[c] - eta * yi[c]
        if drop[i]:
            for c in range(len(to)):
                yi[c] = yi[c] - gi[c]
            gi[:] = 0


def exchange_rows(
    state: State,
    spare: Tensor,
    drop: Array,
    step: Array,
    links: Links,
    slims: tuple[Slim, Slim],
    active: Array,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `exchange`, for more clients than a cache holds: whole rows, by way of a spare state.

    Returns x, y and what is spare now: the three have changed places.
    """
    x, y, g = state
    if x.shape[1] <= _SHORT:
        y, spare = mix_rows(y, spare, links, slims[1], active), y
    else:
        b = slims[1].weights
        y, spare = mix(y, spare, links, b, active, links.stays(b, active, links.senders)), y
    views, ones = (x.numpy(), y.numpy(), g.numpy()), ones_of(active)
    given = views, spare.numpy(), drop, step, tuple(slims[0]), ones, links.uses
    share(len(x), x.numel(), lambda first, last: _pull_rows(*given, first, last))
    return spare, y, x


@jit_part
def _step(x, y, step):  # type: ignore[no-untyped-def]
    """x ← x - step · y in a row."""
    eta = x.dtype.type(step)
    for c in range(len(x)):
        x[c] = x[c] - eta * y[c]


@jit
def _track_rows(state, new, block, who, slims, active, uses, data, first, last):  # type: ignore[no-untyped-def]
    """Blocks first to last of rows of `track_rows`; `block` are two blocks of rows to work in, of x and of y.

    While one is made, the other goes to memory, piece by piece: the processor waits where many come at once.
    """
    (x, y, g), (to_x, to_y), size, end = state, new, state[0].shape[1], len(state[0])
    drop, step, computes, keys, places, weight, k = who
    (a, b), near = slims, (slims[0][0], slims[0][1], slims[0][2], active)
    both = a[1], a[2], b[2], active
    rows, words, numbers, weights, kept = room(places), room(keys), room(places), room(weight), room(step)
    whose, begin, waiting = room(places), first * BLOCK * size, first - first
    old_x, old_y = block[0][1].reshape(-1), block[1][1].reshape(-1)
    for low in range(first * BLOCK, min(end, last * BLOCK), BLOCK):
        high, count, sent = min(end, low + BLOCK), 0, first - first
        new_x, new_y = block[0][low // BLOCK % 2], block[1][low // BLOCK % 2]
        for i in range(low, high):
            rows[count], words[count], numbers[count], weights[count] = i, keys[i], places[i], weight[i]
            whose[count] = i - low
            count += computes[i]
        draw_tasks((rows, words, numbers, k), data[0], data[1], low - low, count)
        kept_by_senders(b, active, kept, low, high)
        for i in range(low, high):
            ahead((x, y), near, uses, i, end)
            if many_registers(x) and size * x.itemsize <= SPAN:
                place, some, own = (i, i - low), (a[0][i], a[0][i + 1]), kept[i - low]
                blend_both((x, y), (new_x, new_y), place, own, step[i], both, some, size)
            else:
                mix_row(x, new_x, a, active, 1.0, True, i, i - low)
                mix_row(y, new_y, b, active, kept[i - low], False, i, i - low)
                _step(new_x[i - low], new_y[i - low], step[i])
            soon = min(i + FAR, end - 1)
            fetch_row(g, soon if drop[soon] | computes[soon] else i)  # others need no g; no branch
            if drop[i]:
                yi, gi = new_y[i - low], g[i]
                for c in range(size):
                    yi[c] = yi[c] - gi[c]
                gi[:] = 0
            more = waiting if i + 1 == high else waiting * (i + 1 - low) // BLOCK // LINE * LINE
            stream(old_x[sent:more], to_x, begin + sent)
            stream(old_y[sent:more], to_y, begin + sent)
            sent = more
        learn_tasks((new_x, g[low:high], new_y), True, whose, data[0], data[1], weights, low - low, count)
        old_x, old_y, begin, waiting = new_x.reshape(-1), new_y.reshape(-1), low * size, (high - low) * size
    stream(old_x[:waiting], to_x, begin)
    stream(old_y[:waiting], to_y, begin)


def track_rows(
    state: State,
    new: tuple[Tensor, Tensor],
    who: tuple[Array, Array, Array, Array, Array, Array, int],
    links: Links,
    slims: tuple[Slim, Slim],
    active: Array,
    data: tuple[LinearData, int],
) -> None:
    """A whole round into `new` x and y, and into g in place: a block's gradients while it is in a cache.

    `who` says of every row whether its gradient is dropped, its step, whether it computes, the key and place
    of its mini-batch and the weight of its gradient; and the round. `data` is what gradients are made from,
    and how many samples a mini-batch has.
    """
    blocks = -(-len(state[0]) // BLOCK)
    states = tuple(t.numpy() for t in state), tuple(t.numpy().reshape(-1) for t in new)
    fixed, kind = (who, tuple(map(tuple, slims)), ones_of(active), links.uses), states[0][0].dtype

    def work(first: int, last: int) -> None:
        block = tuple(aligned((2, BLOCK, state[0].shape[1]), kind) for _ in range(2))
        _track_rows(*states, block, *fixed, (data[0], gradient_memory(*data, kind)), first, last)

    share(blocks, state[0].numel(), work)


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


# --- the compiled step -------------------------------------------------------------------------------
@dataclass(eq=False)
class GradientTracking:
    """The rounds of a method with state x, y, g; see the head of this file."""

    batch: Batch
    rule: Rule
    step: Floats  # (clients,) η
    weight: Floats  # (clients,) what a gradient is multiplied by
    linear: LinearStep | None = None  # does the same faster, where it fits
    spare: tuple[Tensor, ...] = ()  # further states, for exchanges by whole rows

    @classmethod
    def of(cls, algorithm: Algorithm, batch: Batch) -> GradientTracking | None:
        step = algorithm.step_size if isinstance(algorithm, HasStepSize) else None
        rule = algorithm.traits.rule
        if rule is None or not isinstance(step, int | float | Tensor):
            return None  # a schedule is not compiled
        p: Floats = batch.p.double().numpy()[:, 0]
        each = np.broadcast_to(np.asarray(step, dtype=np.float64).reshape(-1), p.shape)
        weight = np.ones(len(p))
        if rule == "importance":  # p = 0: a client that never computes has no gradient to weigh
            np.divide(1, p, out=weight, where=p > 0)
        linear = LinearStep.of(algorithm, batch)
        return cls(batch, rule, np.ascontiguousarray(each), weight, linear)

    def own(self, state: State) -> State:
        x, y, g = state
        if max(self.batch.sizes) <= _MANY or x.shape[1] > _SHORT:
            return rebuild(state, (x, y.clone(), g)) if y is g else state
        return rebuild(state, [roomy(tensor).copy_(tensor) for tensor in state])

    @cached_property
    def data(self) -> tuple[LinearData, int] | None:
        """What gradients of a linear model are made from, where all clients draw as many samples."""
        problem = self.batch.problem
        if not isinstance(problem, CompiledGradient):
            return None
        sizes = problem.batches(np.arange(len(self.batch.p)))
        data = problem.linear_data(self.batch.p.dtype)
        if data is None or sizes.min() < sizes.max():
            return None
        return data if self.batch.clients is None else by_rows(data, self.batch.clients), int(sizes[0])

    @cached_property
    def weights(self) -> tuple[Array, Array]:
        """a and b in the precision of the state: what is kept is the rest of what really goes."""
        kind = self.batch.p.numpy().dtype
        return self.batch.weights["a"].astype(kind), self.batch.weights["b"].astype(kind)

    @cached_property
    def slims(self) -> tuple[Slim, Slim]:
        """The links with a, and with b."""
        (a, b), links = self.weights, self.batch.links
        return Slim.of(links, a, sent=False), Slim.of(links, b, sent=True)

    @property
    def numbers(self) -> tuple[int, int]:
        width = self.batch.problem.parameters
        return width, width

    def advance(self, state: State, activity: Activity) -> State | None:
        if self.linear is not None and (after := self.linear.advance(state, activity)) is not None:
            return after
        if activity.links.push is not None or activity.roles is not None or not usable(*state):
            return None
        if (singly := self._singly(state)) is not None:
            parts = team_for(state[0].numel())
            in_stages(team_for(sys.maxsize), self._stages(state, activity, singly, parts))
            return state
        for number, k in enumerate(activity.rounds):
            computes = activity.computes[number : number + 2]
            state = self._round(state, computes, activity.links.pull[number], k)
        return state

    def _singly(self, state: State) -> Singly | None:
        """How gradients are made one by one, where they can and rows are exchanged in blocks of columns."""
        (x, y, g), problem = state, self.batch.problem
        if max(self.batch.sizes) > _MANY or not isinstance(problem, SingleGradients):
            return None
        return problem.singly(x, g, y, self.weight)

    def _stages(
        self, state: State, activity: Activity, singly: Singly, parts: int
    ) -> Iterator[tuple[int, Work]]:
        """Exchange, in so many parts, and gradients in turn, round by round."""
        batch = self.batch
        for number, k in enumerate(activity.rounds):
            before, now = activity.computes[number : number + 2]
            which = np.flatnonzero(now)
            clients = which if batch.clients is None else batch.clients[which]
            batches = Minibatches(clients, batch.keys[which], batch.places[which], k)
            track = singly(which, batches)
            tasks, work = self._exchange(state, self._dropped(before), activity.links.pull[number])
            yield parts, partial(_part, work, tasks, parts)
            yield len(which), track

    def _exchange(self, state: State, drop: Array, active: Array) -> tuple[int, Callable[[int, int], None]]:
        """The tasks of `exchange`."""
        (x, y, g), batch, (a, b) = state, self.batch, self.weights
        links = batch.links
        kept = links.stays(a, active, links.receivers), links.stays(b, active, links.senders)
        rows = links.pointers, links.senders, a, b, *kept
        return exchange(x, y, g, drop, self.step, batch.starts, rows, active)

    def _dropped(self, before: Array) -> Array:
        """Whose gradients are dropped, by who computed the round before."""
        return np.zeros_like(before) if self.rule == "memory" else before

    def _round(self, state: State, computes: Array, active: Array, k: int) -> State:
        batch, (x, y, g) = self.batch, state
        links, (before, now) = batch.links, computes
        drop = self._dropped(before)
        if max(batch.sizes) > _MANY and x.shape[1] <= _SHORT and self.data is not None:
            new_x, new_y = self.spare or (roomy(x), roomy(x))
            who = drop, self.step, now, batch.keys, batch.places, self.weight, k
            track_rows(state, (new_x, new_y), who, links, self.slims, active, self.data)
            self.spare = x, y
            return rebuild(state, (new_x, new_y, g))
        if max(batch.sizes) <= _MANY:
            tasks, work = self._exchange(state, drop, active)
            share(tasks, x.numel(), work)
        else:
            (spare,) = self.spare or (roomy(x),)
            x, y, spare = exchange_rows(state, spare, drop, self.step, links, self.slims, active)
            self.spare = (spare,)
        if now.any():
            which = np.flatnonzero(now)
            clients = which if batch.clients is None else batch.clients[which]
            batches = Minibatches(clients, batch.keys[which], batch.places[which], k)
            track(batch.problem, (x, g, y), which, batches, self.weight[which])
        return rebuild(state, (x, y, g))


def _part(work: Callable[[int, int], None], tasks: int, parts: int, n: int) -> None:
    """The n-th of so many parts of all tasks."""
    work(tasks * n // parts, tasks * (n + 1) // parts)


def by_rows(data: LinearData, clients: Ints) -> LinearData:
    """The same with the lists of samples in the order of rows: `clients` (rows,) says whose each is."""
    sizes = np.diff(data.offsets)[clients]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = np.repeat(data.offsets[clients] - offsets[:-1], sizes) + np.arange(offsets[-1])
    return data._replace(numbers=data.numbers[places], offsets=offsets)


def track(
    problem: Problem, state: tuple[Tensor, Tensor, Tensor], rows: Array, batches: Minibatches, weight: Floats
) -> None:
    """y ← y + g⁺ - g and g ← g⁺ in some rows of x, g, y, in one pass where the problem can.

    `batches` are those of the rows, one by one; a problem sees them in the order of clients.
    """
    x, g, y = state
    if isinstance(problem, CompiledGradient) and problem.grad_into(x, g, y, rows, batches, weight):
        return
    if rows is not batches.rows:
        order = np.argsort(batches.rows)
        rows, batches, weight = rows[order], batches.part(order), weight[order]
    in_order = rows is batches.rows and len(rows) == len(x)
    if in_order:
        models = x
    elif usable(x):  # threads of torch that have nothing to do would keep a core busy for milliseconds
        models = torch.from_numpy(x.numpy().take(rows, 0))
    else:
        models = x[torch.from_numpy(rows)]
    renew(y, g, problem.grad(models, batches), rows, weight)

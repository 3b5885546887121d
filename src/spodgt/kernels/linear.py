"""Many rounds of a method in one compiled call: the compiled step "linear".

A method declares it if its step is linear in the rows of its state (`kernels.program`); it is used where the
problem is a linear model. A round of one run is cut into tasks, one for some classes of the model each:

    gradients of the round before, from its slopes    y ← y + g⁺ - g …    (what follows the gradient)
    the sums and mixings of this round                x ← Â x - η y …     (what comes before it)
    the scores of the clients that compute

Whoever scores a client last turns its scores into slopes; with the last task the next round begins. Threads
take tasks as they come: first runs that nobody has begun, then tasks of runs under way. A thread that is
held up keeps others from one task, not from their runs. A task reads and writes its own classes alone, so
how many tasks there are changes no result; and what it writes are long pieces of memory, so that two threads
rarely meet in one line of a cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.compose.schedules import fixed
from spodgt.compiled import aligned, jit, jit_part, team_for, together, usable
from spodgt.compiled.instructions import swap
from spodgt.kernels.columns import STEP_SIZE, Columns
from spodgt.kernels.mixing import combine
from spodgt.kernels.program import WEIGHTS, Program, trace
from spodgt.kernels.steps import Activity, Batch, State, rebuild
from spodgt.kernels.symbols import NotLinear
from spodgt.problems.gradients.linear import (
    TILE,
    add_slopes,
    chunk_of,
    chunk_size,
    draw_samples,
    fill_tile,
    score_shape,
    score_tile,
    sum_slopes,
)
from spodgt.problems.losses import slopes
from spodgt.types import Array, CompiledGradient, LinearData

_SPIN = 3000  # looks at what others do before a thread goes to sleep
_HEAD = 2  # numbers in front of the claims of a run's tasks: where it stands, and how many are finished
_APART = 8  # numbers of a line of the cache: what threads count stands in lines apart
_COLUMNS = 256  # of a block: with ten clients it stays in the first-level cache
_MANY = 200  # clients of a run whose blocks leave the caches


# --- rows --------------------------------------------------------------------------------------------
@jit
def _sum_rows(store, work, op, terms, factors, mask, low, high, base, area):  # type: ignore[no-untyped-def]
    """A LIN operation for clients low to high.

    `area` is (left, size, pieces, stride): `pieces` pieces of `size` columns, the first at `left`. Piece n of
    client i is row i - base + n of `work`.
    """
    to_, which, side, begin, count, own = op[1], op[3], op[4], op[5], op[6], len(store)
    first, size, pieces, stride = area
    for i in range(low, high):
        if which >= 0 and mask[which, i] != (side == 1):
            continue
        for n in range(pieces):
            left, at = first + n * stride, i - base + n
            right = left + size
            to = store[to_, i, left:right] if to_ < own else work[to_ - own, at, :size]
            if count == 0:
                to[:] = 0
                continue
            q, f0 = terms[begin, 0], factors[terms[begin, 1], i]
            r0 = store[q, i, left:right] if q < own else work[q - own, at, :size]
            if count == 1:
                for c in range(size):
                    to[c] = f0 * r0[c]
                continue
            p, f1 = terms[begin + 1, 0], factors[terms[begin + 1, 1], i]
            r1 = store[p, i, left:right] if p < own else work[p - own, at, :size]
            if q == to_:  # said in so many words: what may be the same memory is not vectorised
                for c in range(size):
                    to[c] = f0 * to[c] + f1 * r1[c]
            elif p == to_:
                for c in range(size):
                    to[c] = f0 * r0[c] + f1 * to[c]
            else:
                for c in range(size):
                    to[c] = f0 * r0[c] + f1 * r1[c]
            for m in range(begin + 2, begin + count):
                q, f1 = terms[m, 0], factors[terms[m, 1], i]
                r1 = store[q, i, left:right] if q < own else work[q - own, at, :size]
                for c in range(size):
                    to[c] += f1 * r1[c]


@jit_part
def _mix_rows(store, work, op, links, r, kept, low, high, left, size):  # type: ignore[no-untyped-def]
    """A MIX operation of round r for clients low to high."""
    pointers, senders, weights, active = links
    target, source, which, lasting = op[1], op[5], op[6], len(store)
    on = active[len(active) - 1 if which == 1 else 0, r]
    how = pointers, senders, weights[which, min(r, weights.shape[1] - 1)], on
    begin, to_begin = low - low, low - low  # 0 as a number, not as a literal: one type for all calls
    x_left, to_left = left, left
    x, out = store[min(source, lasting - 1)], store[min(target, lasting - 1)]
    if source >= lasting:
        x, begin, x_left = work[source - lasting], low, to_begin
    if target >= lasting:
        out, to_begin, to_left = work[target - lasting], low, low - low
    combine(x, out, how, kept[which], (begin, to_begin), (x_left, to_left), size, low, high)


# --- tasks -------------------------------------------------------------------------------------------
@jit_part
def _finish(store, memory, program, tables, drawn, data, r, low, high, classes):  # type: ignore[no-untyped-def]
    """What follows the gradient of round r, in the weights of some classes of clients low to high.

    Their biases are one more piece behind the chunks of features.
    """
    (_, rows, tile), (_, after, terms, _), (factors, masks, _) = memory, program, tables
    (samples, sizes, scores), (begin, end) = drawn, classes
    _, _, inputs, _, scale, whole, bias, _ = data
    features, unit = inputs.shape[1], store.dtype.type(scale)
    size, factor, mask = chunk_of(features), factors[min(r, len(factors) - 1)], masks[r]
    for first in range(0, features + (size if bias else 0), size):
        width, base, area = end - begin, 0, (whole * features + begin, end - begin, 1, 0)
        if first < features:
            width, base = min(size, features - first), begin
            area = begin * features + first, width, end - begin, features
        for i in range(low, high):
            if mask[0, i] and first >= features:
                sum_slopes(scores[i], (begin - begin, sizes[i]), classes, rows[0, 0])
            elif mask[0, i]:
                rows[0, begin:end] = 0
                for s in range(0, sizes[i], TILE):
                    span = s, min(s + TILE, sizes[i])
                    fill_tile(inputs, samples[r % 2, i], span, first, width, unit, tile)
                    add_slopes(scores[i], span, samples[r % 2, i], tile, width, classes, rows[0])
            for n in range(len(after)):
                _sum_rows(store, rows, after[n], terms, factor, mask, i, i + 1, i - base, area)


@jit_part
def _advance(store, memory, program, tables, links, kept, r, run, span, columns):  # type: ignore[no-untyped-def]
    """What comes before the gradient of round r of one run, clients `span`, in a range of columns."""
    (work, _, _), (before, _, terms, _), (factors, masks, some) = memory, program, tables
    (low, high), (begin, end) = span, columns
    factor, mask = factors[min(r, len(factors) - 1)], masks[r]
    for left in range(begin, end, _COLUMNS):  # a block of all clients stays in the first-level cache
        size = min(_COLUMNS, end - left)
        for m in range(len(before)):
            op = before[m]
            if op[2] >= 0 and not some[r, op[2], run]:
                continue
            if op[0] == 1:
                _mix_rows(store, work, op, links, r, kept, low, high, left, size)
            else:
                area = left, size, size // size, size - size  # literals would be another type
                _sum_rows(store, work, op, terms, factor, mask, low, high, low, area)


@jit_part
def _score(store, memory, program, tables, drawn, data, r, i, classes):  # type: ignore[no-untyped-def]
    """The scores of some classes of a client that computes in round r."""
    (_, _, tile), (_, _, _, at), (samples, sizes, scores) = memory, program, drawn
    _, _, inputs, _, scale, _, bias, _ = data
    features, unit = inputs.shape[1], store.dtype.type(scale)
    size = chunk_of(features)
    for first in range(0, features, size):
        width = min(size, features - first)
        for s in range(0, sizes[i], TILE):
            span = s, min(s + TILE, sizes[i])
            fill_tile(inputs, samples[r % 2, i], span, first, width, unit, tile)
            score_tile(store[at, i], tile, span, s, (first, width, features), classes, bias, scores[i])


@jit_part
def _keep(links, kept, r, low, high):  # type: ignore[no-untyped-def]
    """The diagonals of the mixings of round r, of clients low to high."""
    pointers, senders, weights, active = links
    for which in range(len(kept)):
        on, by = active[len(active) - 1 if which == 1 else 0, r], weights[which, min(r, weights.shape[1] - 1)]
        to = kept[which]
        to[low:high] = 1
        for i in range(low, high):
            for link in range(pointers[i], pointers[i + 1]):
                if on[link]:
                    to[senders[link] if which == 1 else i] -= by[link]


@jit_part
def _prepare(tables, drawn, data, whose, r, i):  # type: ignore[no-untyped-def]
    """The mini-batch of client i in round r."""
    (_, masks, _), (samples, sizes, _), (keys, places, k) = tables, drawn, whose
    if r < len(masks) and masks[r, 0, i]:
        draw_samples((i, keys[i], places[i], k + r), data, sizes[i], samples[r % 2, i])


@jit_part
def _conclude(tables, drawn, data, r, i):  # type: ignore[no-untyped-def]
    """The slopes of client i in round r, when all its scores are there."""
    (_, masks, _), (samples, sizes, scores) = tables, drawn
    _, _, _, targets, _, _, _, loss = data
    if masks[r, 0, i]:
        slopes(loss, scores[i], targets, samples[r % 2, i], sizes[i], sizes[i])


# --- threads -----------------------------------------------------------------------------------------
@jit_part
def _begin(ways, start):  # type: ignore[no-untyped-def]
    """A run that nobody has begun, and a run under way; -1 where there is none."""
    going, runs = -1, len(ways)
    for n in range(runs):
        run = (start + n) % runs
        found = swap(ways[run], 0, 0, -1)
        if found == 0:
            return run, going
        if found != -2 and going < 0:
            going = run
    return -1, going


@jit_part
def _added(numbers, at):  # type: ignore[no-untyped-def]
    """numbers[at] += 1, by one thread at a time; returns what it was."""
    was = swap(numbers, at, 0, 0)
    while swap(numbers, at, was, was + 1) != was:
        was = swap(numbers, at, 0, 0)
    return was


@jit
def _work(store, steps, tables, links, room, drawn, data, whose, starts, ways):  # type: ignore[no-untyped-def]
    """What one thread does of all rounds of all runs; whether everything is done. See `LinearStep`.

    `room` is the memory to work in: the diagonals of the mixings, how many tasks have scored each client, and
    what is this thread's own. Who scores a client last does what follows from it, and draws for the next
    round: by then all tasks have finished the round before, and mixed.
    """
    (keys, places, k, me, team), (kept, scored, memory), (_, masks, _) = whose, room, tables
    _, _, inputs, _, _, classes, bias, _ = data
    features, rounds, runs = inputs.shape[1], len(masks), len(starts) - 1
    tasks, draws = ways.shape[1] - _HEAD, (keys, places, k)
    run, idle = -1, 0
    while idle < _SPIN:
        idle, phase, over = idle + 1, -1, False
        if run < 0:
            fresh, run = _begin(ways, me * runs // team)
            if fresh >= 0:
                run, over = fresh, True  # round -1 is over, the first one follows
            elif run < 0:
                return True
        low, high, way = starts[run], starts[run + 1], ways[run]
        found = swap(way, 0, 0, 0)
        if found == -2:
            run = -1
            continue
        for n in range(tasks if found > 0 else 0):
            task, phase = (me * tasks // team + n) % tasks, found - 1
            if swap(way, _HEAD + task, phase, phase + 1) != phase:
                continue
            some = classes * task // tasks, classes * (task + 1) // tasks
            if phase > 0:
                _finish(store, memory, steps, tables, drawn, data, phase - 1, low, high, some)
            if phase < rounds:
                for part in range(2 if bias else 1):
                    first, stride = (0, features) if part == 0 else (classes * features, 1)
                    columns = first + some[0] * stride, first + some[1] * stride
                    _advance(store, memory, steps, tables, links, kept, phase, run, (low, high), columns)
                for i in range(low, high):
                    if masks[phase, 0, i]:
                        _score(store, memory, steps, tables, drawn, data, phase, i, some)
                    if tasks == 1 or _added(scored, i * _APART) % tasks == tasks - 1:
                        _conclude(tables, drawn, data, phase, i)
                        _prepare(tables, drawn, data, draws, phase + 1, i)
                        if i == low and phase + 1 < rounds:
                            _keep(links, kept, phase + 1, low, high)
            idle = 0
            if _added(way, 1) == tasks - 1:
                swap(way, 1, tasks, 0)
                over = True
                break
        if over:
            for i in range(low, high if phase < 0 else low):
                _prepare(tables, drawn, data, draws, 0, i)
            if phase < 0:
                _keep(links, kept, 0, low, high)
            swap(way, 0, found, phase + 2 if phase < rounds else -2)
    return False


# --- the compiled step -------------------------------------------------------------------------------
@dataclass(eq=False)
class LinearStep:
    """The rounds of a method whose step is linear; see the head of this file."""

    batch: Batch
    algorithm: Algorithm
    data: LinearData
    sizes: Array  # (clients,) samples in a mini-batch
    columns: Columns | None = None  # once a state has been seen
    store: Tensor | None = None  # (registers, clients, parameters)
    registers: tuple[Tensor, ...] = ()  # of the store, one by one
    memory: dict[int, tuple[Array, Array, Array]] = field(default_factory=dict)  # by thread
    fits: bool = True

    @classmethod
    def of(cls, algorithm: Algorithm, batch: Batch) -> LinearStep | None:
        problem, dtype = batch.problem, batch.p.dtype
        if not isinstance(problem, CompiledGradient) or max(batch.sizes) > _MANY:
            return None
        data = problem.linear_data(dtype)
        if data is None or not usable(batch.p):
            return None
        return cls(batch, algorithm, data, problem.batches(np.arange(len(batch.p))))

    def own(self, state: State) -> State:
        seen: set[int] = set()
        parts = []
        for tensor in state:
            parts.append(tensor.clone() if tensor.data_ptr() in seen else tensor)
            seen.add(parts[-1].data_ptr())
        return rebuild(state, parts)

    @property
    def program(self) -> Program:
        assert self.columns is not None
        return self.columns.program

    @property
    def numbers(self) -> tuple[int, int]:
        sizes = [
            (which == 1, self.batch.problem.parameters if wide else 1) for which, wide in self.program.mixed
        ]
        return sum(n for pushed, n in sizes if not pushed), sum(n for pushed, n in sizes if pushed)

    def advance(self, state: State, activity: Activity) -> State | None:
        if not usable(*state) or (columns := self._traced(state)) is None:
            return None
        batch, program, names = self.batch, columns.program, self.algorithm.traits.state
        store = self._loaded(state)
        narrow = {n: t for n, t in zip(names, state, strict=True) if n in program.narrow}
        tables, narrow = columns.tables(activity, narrow)
        steps = program.before, program.after, program.terms, program.at
        weights, active = columns.weights(activity), columns.active(activity)
        links = batch.links.pointers, batch.links.senders, weights, active
        drawn, kept, scored = self._shared_memory
        scored[:] = 0  # what others counted up to depends on the number of threads, which may have changed
        given = store.numpy(), steps, tables, links
        team = team_for(state[0].numel() * len(activity.cost))
        # Runs are divided only where there are fewer of them than threads.
        tasks = max(1, min(-(-team // len(batch.sizes)), self.data.classes // 2))
        team = min(team, tasks * len(batch.sizes))
        ways = np.zeros((len(batch.sizes), _HEAD + tasks), np.int64)
        calls = []
        for me in range(team):
            room = kept[: len(weights)], scored, self._memory(me)
            whose = batch.keys, batch.places, activity.first, me, team
            calls.append(_work.bound(*given, room, drawn, self.data, whose, batch.starts, ways))
        together(team, lambda me: bool(calls[me]()))
        wide = dict(zip(program.fields, self.registers, strict=False))
        return rebuild(state, [wide[name] if name in wide else narrow[name] for name in names])

    def _traced(self, state: State) -> Columns | None:
        """The method as a program, made from the first state; None where its step is not linear."""
        if self.columns is None and self.fits:
            try:
                program = trace(fixed(self.algorithm, STEP_SIZE), state)
                self.columns = Columns(self.batch, self.algorithm, program)
            except NotLinear:
                self.fits = False
        return self.columns

    @cached_property
    def _shared_memory(self) -> tuple[tuple[Array, Array, Array], Array, Array]:
        """For all threads: mini-batches, sizes and scores; diagonals; how many tasks have scored whom."""
        clients, most = len(self.sizes), int(self.sizes.max())
        scores = aligned((clients, *score_shape(self.data.classes, most)), self._kind)
        drawn = np.empty((2, clients, most), np.int64), self.sizes, scores
        return drawn, np.empty((len(WEIGHTS), clients)), np.zeros(clients * _APART, np.int64)

    def _memory(self, me: int) -> tuple[Array, Array, Array]:
        """What a thread works in: blocks of columns, rows of gradients, a tile of samples."""
        if me not in self.memory:
            program, classes, size = self.program, self.data.classes, chunk_size(self.data.inputs.shape[1])
            self.memory[me] = (
                aligned((program.working, max(self.batch.sizes), _COLUMNS), self._kind),
                aligned((program.rows, classes, max(size, classes)), self._kind),
                aligned((TILE, size), self._kind),
            )
        return self.memory[me]

    @property
    def _kind(self) -> np.dtype[np.generic]:
        return self.registers[0].numpy().dtype

    def _loaded(self, state: State) -> Tensor:
        """The registers with the state in them."""
        program = self.program
        wide = [t for n, t in zip(self.algorithm.traits.state, state, strict=True) if n in program.fields]
        if self.store is None:
            self.store = state[0].new_empty(program.kept, *state[0].shape)
            self.registers = self.store.unbind()
        for to, tensor in zip(self.registers, wide, strict=False):
            if to.data_ptr() != tensor.data_ptr():
                to.copy_(tensor)
        return self.store

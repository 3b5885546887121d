"""Many rounds of a method in one compiled call: the compiled step "linear".

A method declares it if its step is linear in the rows of its state (`kernels.program`); it is used where the
problem is a linear model. A run is cut into tasks, one for some classes of the model each, and a round of a
task into steps:

    for every client, its gradient of the round before, from all scores    y ← y + g⁺ - g …
    the sums and mixings of this round                                     x ← Â x - η y …
    for every client that computes, its scores of these classes

A task writes its own classes alone, in lines of memory of their own, so how many tasks there are changes no
result. All it needs of other tasks are a client's scores, when it comes to its gradient: threads do not meet,
and one that is ahead by less than a round does not wait. A thread keeps a task as long as it goes on; one
that has none asks for those of others. A thread that is held up keeps others from one task, not from runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.compose.schedules import fixed
from spodgt.compiled import aligned, jit, jit_part, team_for, together, usable
from spodgt.compiled.instructions import look, swap, tell
from spodgt.kernels.columns import STEP_SIZE, Columns
from spodgt.kernels.mixing import combine
from spodgt.kernels.program import WEIGHTS, Program, trace
from spodgt.kernels.steps import Activity, Batch, State, rebuild
from spodgt.kernels.symbols import NotLinear
from spodgt.problems.gradients.linear import (
    TILE,
    chunk_of,
    chunk_size,
    draw_samples,
    score_batch,
    score_shape,
    sum_batch,
    sum_slopes,
)
from spodgt.problems.losses import slopes
from spodgt.types import Array, CompiledGradient, LinearData

_SPIN = 3000  # looks at what others do before a thread goes to sleep
_PATIENCE = 300  # looks before it asks others for one of their tasks
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
def _carry(flat, store, data, span, classes, back):  # type: ignore[no-untyped-def]
    """The fields of clients `span` into their registers, some classes of them; or `back` again."""
    _, _, inputs, _, _, whole, bias, _ = data
    features, stride = inputs.shape[1], store.shape[2] // whole
    for f in range(len(flat)):
        for i in range(span[0], span[1]):
            for c in range(classes[0], classes[1]):
                row, left = flat[f, i, c * features : (c + 1) * features], c * stride
                here, last, other = store[f, i, left : left + features], left + features, whole * features + c
                for d in range(features):
                    if back:
                        row[d] = here[d]
                    else:
                        here[d] = row[d]
                if bias and back:
                    flat[f, i, other] = store[f, i, last]
                elif bias:
                    store[f, i, last] = flat[f, i, other]


@jit_part
def _prepare(mask, samples, count, data, whose, r, i):  # type: ignore[no-untyped-def]
    """The mini-batch of client i in round r."""
    keys, places, k, _, _ = whose
    if mask[0, i]:
        draw_samples((i, keys[i], places[i], k + r), data, count, samples)


@jit_part
def _finish(store, memory, program, tables, batch, data, r, i, classes):  # type: ignore[no-untyped-def]
    """What follows the gradient of client i in round r, in some classes.

    `batch` is the scores of its mini-batch, the samples and how many. The bias of a class is one more number
    behind its weights.
    """
    (_, rows, tile, slope, _), (_, after, terms, _), (factors, masks, _) = memory, program, tables
    (_, _, inputs, targets, scale, whole, bias, loss), (scores, samples, count) = data, batch
    (begin, end), features, stride = classes, inputs.shape[1], store.shape[2] // whole
    size, unit = chunk_of(features), store.dtype.type(scale)
    factor, mask = factors[min(r, len(factors) - 1)], masks[r]
    if mask[0, i]:
        for c in range(whole):  # other tasks turn them into slopes for themselves
            for s in range(count):
                slope[c, s] = scores[c, s]
        slopes(loss, slope, targets, samples, count, count)
    for first in range(0, features, size):
        width = min(size, features - first)
        more = 1 if bias and first + width == features else 0
        if mask[0, i]:
            sum_batch(slope, inputs, samples, count, (first, width), unit, classes, tile, rows[0])
            for c in range(begin, end if more else begin):
                sum_slopes(slope, (begin - begin, count), (c, c + 1), rows[0, c, width:])
        area = begin * stride + first, width + more, end - begin, stride
        for n in range(len(after)):
            _sum_rows(store, rows, after[n], terms, factor, mask, i, i + 1, i - begin, area)


@jit_part
def _advance(store, memory, program, tables, links, r, run, span, classes, whole):  # type: ignore[no-untyped-def]
    """What comes before the gradient of round r of one run, clients `span`, in some classes."""
    (work, _, _, _, kept), (before, _, terms, _), (factors, masks, some) = memory, program, tables
    (low, high), stride = span, store.shape[2] // whole
    factor, mask = factors[min(r, len(factors) - 1)], masks[r]
    _keep(links, kept, r, low, high)
    for left in range(classes[0] * stride, classes[1] * stride, _COLUMNS):
        size = min(_COLUMNS, classes[1] * stride - left)  # of all clients they stay in the first-level cache
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
def _score(store, tile, at, batch, data, i, classes):  # type: ignore[no-untyped-def]
    """The scores of some classes of a client that computes; `batch` as in `_finish`."""
    (scores, samples, count), (_, _, inputs, _, scale, whole, bias, _) = batch, data
    stride, unit = store.shape[2] // whole, store.dtype.type(scale)
    shape = stride, inputs.shape[1], stride, bias
    score_batch(store[at, i], inputs, samples, count, unit, classes, shape, tile, scores)


@jit_part
def _keep(links, kept, r, low, high):  # type: ignore[no-untyped-def]
    """The diagonals of the mixings of round r, of clients low to high."""
    pointers, senders, weights, active = links
    for which in range(len(weights)):
        on, by = active[len(active) - 1 if which == 1 else 0, r], weights[which, min(r, weights.shape[1] - 1)]
        to = kept[which]
        to[low:high] = 1
        for i in range(low, high):
            for link in range(pointers[i], pointers[i + 1]):
                if on[link]:
                    to[senders[link] if which == 1 else i] -= by[link]


# --- threads -----------------------------------------------------------------------------------------
@jit_part
def _others(ways, first, tasks, own):  # type: ignore[no-untyped-def]
    """Where the slowest other task of a run stands."""
    found = np.int64(2**62)
    for n in range(first, first + tasks):
        if n != own:
            found = min(found, look(ways[n], 1))
    return found


@jit
def _go(states, program, tables, links, room, data, whose, starts, ways, own):  # type: ignore[no-untyped-def]
    """Task `own` from where it stands, as far as it goes; how many steps that was. See `_work`."""
    (flat, store), ((samples, sizes, scores), memory), (_, masks, _) = states, room, tables
    tasks, rounds, classes = len(samples), len(masks), data[5]
    run, task = own // tasks, own % tasks
    span, some = (starts[run], starts[run + 1]), (classes * task // tasks, classes * (task + 1) // tasks)
    clients, first = span[1] - span[0], run * tasks
    length, here = 2 * clients + 1, samples[task]
    step, known = look(ways[own], 1), np.int64(-1)
    begun, end = step, rounds * length + clients + 1
    while step < end:
        r, part = step // length, step % length
        i = span[0] + (part if part < clients else max(part - clients - 1, 0))
        needed = np.int64(-1)
        if part < clients and r > 0 and masks[r - 1, 0, i]:
            needed = step - length + clients + 2  # the others have scored this client
        elif part == clients:
            needed = step - length  # the others are done with the scores of the round before the last
        if known < needed and tasks > 1:
            known = _others(ways, first, tasks, own)
            if known < needed:
                break
        last = scores[(r - 1 if part < clients else r) % 2, i], here[i], sizes[i]
        if part < clients:
            if step == 0:
                _carry(flat, store, data, span, some, False)
            if r > 0:
                _finish(store, memory, program, tables, last, data, r - 1, i, some)
            if r < rounds:
                _prepare(masks[r], here[i], sizes[i], data, whose, r, i)
        elif part == clients:
            if r < rounds:
                _advance(store, memory, program, tables, links, r, run, span, some, classes)
            else:
                _carry(flat, store, data, span, some, True)
        elif masks[r, 0, i]:
            _score(store, memory[2], program[3], last, data, i, some)
        step += 1
        tell(ways[own], 1, step)
        if step % length == 0 and look(ways[len(ways) - 1], 0) == 1:
            tell(ways[len(ways) - 1], 0, 0)
            break
    return step - begun


@jit
def _work(states, program, tables, links, room, data, whose, starts, ways):  # type: ignore[no-untyped-def]
    """What one thread does of all tasks of all runs; whether everything is done. See `LinearStep`.

    A task has a row in `ways`: whether a thread has it, and how many of its steps are done. In the last row
    is whether a thread asks for a task: others then let go of theirs at the end of a round.
    """
    (_, _, _, me, team), total, tasks, idle = whose, len(ways) - 1, len(room[0][0]), 0
    while idle < _SPIN:
        idle, over = idle + 1, True
        for n in range(total):
            own = (me * total // team + n) % total
            clients = starts[own // tasks + 1] - starts[own // tasks]
            if look(ways[own], 1) == len(tables[1]) * (2 * clients + 1) + clients + 1:
                continue
            over = False
            if swap(ways[own], 0, 0, 1) == 0:
                if _go(states, program, tables, links, room, data, whose, starts, ways, own) > 0:
                    idle = 0
                tell(ways[own], 0, 0)
        if over:
            return True
        if idle == _PATIENCE:
            tell(ways[total], 0, 1)
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
    fields: Tensor | None = None  # (fields, clients, parameters)
    memory: dict[int, tuple[Array, ...]] = field(default_factory=dict)  # by thread
    drawn: tuple[Array, Array, Array] | None = None
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
        fields = self._loaded(state)
        narrow = {n: t for n, t in zip(names, state, strict=True) if n in program.narrow}
        tables, narrow = columns.tables(activity, narrow)
        steps = program.before, program.after, program.terms, program.at
        links = batch.links.pointers, batch.links.senders, columns.weights(activity), columns.active(activity)
        team = team_for(state[0].numel() * len(activity.cost))
        # Runs are divided only where there are fewer of them than threads.
        tasks = max(1, min(-(-team // len(batch.sizes)), self.data.classes // 2))
        team = min(team, tasks * len(batch.sizes))
        ways = np.zeros((tasks * len(batch.sizes) + 1, _APART), np.int64)
        given = (fields.numpy(), self._store), steps, tables, links
        calls = []
        for me in range(team):
            whose = batch.keys, batch.places, activity.first, me, team
            room = self._drawn(tasks), self._memory(me)
            calls.append(_work.bound(*given, room, self.data, whose, batch.starts, ways))
        together(team, lambda me: bool(calls[me]()))
        wide = dict(zip(program.fields, fields.unbind(), strict=True))
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
    def _store(self) -> Array:
        """(registers, clients, numbers): each class, with its bias behind, begins with a line of the cache.

        So threads, which have classes of their own, write to lines apart, and loops read whole lines.
        """
        data, kind = self.data, self._kind
        line = 64 // kind.itemsize
        stride = -(-(data.inputs.shape[1] + data.bias) // line) * line
        store = aligned((self.program.kept, len(self.sizes), data.classes * stride), kind)
        store[:] = 0
        return store

    def _drawn(self, tasks: int) -> tuple[Array, Array, Array]:
        """Mini-batches of each task, their sizes, and scores of this round and the last, for all."""
        if self.drawn is None or len(self.drawn[0]) != tasks:
            clients, most = len(self.sizes), int(self.sizes.max())
            scores = aligned((2, clients, *score_shape(self.data.classes, most)), self._kind)
            self.drawn = np.empty((tasks, clients, most), np.int64), self.sizes, scores
        return self.drawn

    def _memory(self, me: int) -> tuple[Array, ...]:
        """What a thread works in: blocks of columns, rows of gradients, samples, slopes, diagonals."""
        if me not in self.memory:
            program, classes, most = self.program, self.data.classes, int(self.sizes.max())
            size = chunk_size(self.data.inputs.shape[1]) + 64 // self._kind.itemsize  # and a bias
            block = program.working, max(self.batch.sizes), _COLUMNS
            shapes = block, (program.rows, classes, size), (TILE, size), score_shape(classes, most)
            kept = np.empty((len(WEIGHTS), len(self.sizes)))
            self.memory[me] = *(aligned(shape, self._kind) for shape in shapes), kept
        return self.memory[me]

    @property
    def _kind(self) -> np.dtype[np.generic]:
        assert self.fields is not None
        return self.fields.new_empty(0).numpy().dtype

    def _loaded(self, state: State) -> Tensor:
        """The fields of the state that are whole rows, in memory of this step."""
        program = self.program
        wide = [t for n, t in zip(self.algorithm.traits.state, state, strict=True) if n in program.fields]
        if self.fields is None:
            self.fields = state[0].new_empty(len(wide), *state[0].shape)
        for to, tensor in zip(self.fields.unbind(), wide, strict=True):
            if to.data_ptr() != tensor.data_ptr():
                to.copy_(tensor)
        return self.fields

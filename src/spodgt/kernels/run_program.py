"""Compiled loops for the rounds of one run, from the program of a method's step (`program.Program`).

One call computes many rounds of a linear model, in memory of the run. The plain equivalent is the method's
own `step`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spodgt.engine import compiled_loop
from spodgt.kernels.mixing import (
    blend_two,
    fill_diagonal,
    mix_columns,
    mix_differences,
    select_links,
)
from spodgt.problems.gradients.linear_model import (
    UINT,
    aligned_zeros,
    copy_padded,
    minibatch_gradient,
)
from spodgt.types import Array, Bools, Floats, Ints, Words

_LIN, _MIX = 0, 1  # kinds of operations, see `program.Program`
_PUSH = 1  # mixing weights whose columns sum to one
KINDS = 3  # of mixing weights


# --- arguments -----------------------------------------------------------------------------------
class Operations(NamedTuple):
    """The program of a round, as loops read it; see `program.Program`."""

    before: Ints  # (operations, 7)
    after: Ints  # (operations, 7)
    terms: Ints  # (terms, 2)
    mixes: Bools  # (KINDS,) which mixing weights are used
    gradient_at: int  # register
    kept: int
    working: int
    rows: int
    columns: int  # of a block of working registers; no result depends on it


class Coefficients(NamedTuple):
    """Numbers and conditions of some rounds, for the clients of a run."""

    factors: Array  # (rounds or 1, coefficients, clients)
    masks: Bools  # (rounds, masks, clients): the first one tells which clients compute
    any_masks: Bools  # (rounds, masks): whether a mask holds for any client


class RunLinks(NamedTuple):
    """Links of a run in some rounds."""

    pointers: Ints  # (clients + 1,) where the links of each receiver begin
    senders: Ints  # (links,)
    weights: Floats  # (kinds, rounds or 1, links): a, b, w if used; rounded to the models' type
    active: Bools  # (1 or 2, rounds, links): pulls and gossip; pushes, where they have links of their own


class Draws(NamedTuple):
    """What the mini-batches of the clients of a run are drawn by."""

    rows: Ints  # (clients,) in the problem
    keys: Words  # (clients,)
    client_index: Ints  # (clients,)
    batch_sizes: Ints  # (clients,)
    chunks: Ints  # (clients,) `linear_model.chunk_length` of these
    first_round: int


class Registers(NamedTuple):
    """Where registers lie: register r, client i, column c is at starts[r] + i · rows[r] + c · shifts[r]."""

    starts: Words
    rows: Words
    shifts: Words  # 1 where all columns are there, 0 for blocks of columns


class RunMemory(NamedTuple):
    """Memory of a run."""

    numbers: Array  # all registers
    early: Registers  # before the gradient
    late: Registers  # after it
    kept: Floats  # (clients,) a diagonal
    begins: Ints  # (KINDS, clients + 1) mixing matrices of a round, see `mixing.select_links`
    senders: Ints  # (KINDS, entries)
    entries: Array  # (KINDS, entries)

    @staticmethod
    def create(
        operations: Operations, shape: tuple[int, int], links: int, dtype: np.dtype[np.generic]
    ) -> RunMemory:
        """Memory of a run of `shape` = (clients, width) with so many links.

        The first `kept` registers are (clients, width). Behind them are blocks (clients, columns), which
        are used before the gradient; and, in the same place, rows (width,), which are used after it,
        client by client.
        """
        clients, width = shape
        columns = operations.columns
        end = operations.kept * clients * width
        kept = [(n * clients * width, width, 1) for n in range(operations.kept)]
        blocks = [(end + n * clients * columns, columns, 0) for n in range(operations.working)]
        rows = [(end + n * width, 0, 1) for n in range(operations.rows)]
        early = Registers(*np.array(kept + blocks, np.uint64).reshape(-1, 3).T.copy())
        late = Registers(*np.array(kept + rows, np.uint64).reshape(-1, 3).T.copy())
        size = end + max(operations.working * clients * columns, operations.rows * width)
        entries = links + 2 * clients
        return RunMemory(
            aligned_zeros(size, dtype),
            early,
            late,
            np.empty(clients),
            np.empty((KINDS, clients + 1), np.int64),
            np.empty((KINDS, entries), np.int64),
            np.empty((KINDS, entries), dtype),
        )


# --- rounds --------------------------------------------------------------------------------------
@compiled_loop
def advance_run(  # type: ignore[no-untyped-def]
    fields, starts, memory, operations, coefficients, links, draws, data, stride, scratch
):
    """In place: the fields of one run, a linear model, after some rounds.

    Args:
        fields: all fields of all clients of the batch, flat.
        starts: (fields,) where each field of this run begins there.
        memory: a `RunMemory`.
        operations: an `Operations`.
        coefficients: a `Coefficients`.
        links: a `RunLinks`.
        draws: a `Draws`.
        data: a `LinearData`.
        stride: of padded rows.
        scratch: a `Scratch`.
    """
    numbers = memory.numbers
    clients = len(draws.keys)
    width = data.classes * stride
    _copy_fields(fields, starts, numbers, clients, data, stride, False)
    for r in range(len(coefficients.masks)):
        _run_before(memory, r, width, operations, coefficients, links)
        for i in range(clients):
            if coefficients.masks[r, 0, i]:
                at = memory.late.starts[operations.gradient_at] + UINT(i) * UINT(width)
                k = draws.first_round + r
                draw = (
                    draws.rows[i],
                    draws.keys[i],
                    draws.client_index[i],
                    k,
                    draws.batch_sizes[i],
                    draws.chunks[i],
                )
                gradient = memory.late.starts[operations.kept]
                minibatch_gradient(
                    numbers, at, numbers[gradient:], data, UINT(stride), draw, scratch
                )
            _run_after(memory, r, i, width, operations, coefficients)
    _copy_fields(fields, starts, numbers, clients, data, stride, True)


@compiled_loop
def _copy_fields(fields, starts, numbers, clients, data, stride, back):  # type: ignore[no-untyped-def]
    """Copy the fields of a run into its registers, or `back`."""
    parameters = data.classes * data.inputs.shape[1] + (data.classes if data.bias else 0)
    for f in range(len(starts)):
        for i in range(clients):
            at = UINT(starts[f] + i * parameters)
            to = UINT((f * clients + i) * data.classes * stride)
            copy_padded(fields, at, numbers, to, data, UINT(stride), back)


@compiled_loop
def _run_before(memory, r, width, operations, coefficients, links):  # type: ignore[no-untyped-def]
    """In place: the operations of round r before the gradient, block of columns by block of columns."""
    numbers = memory.numbers
    registers = memory.early
    before = operations.before
    factors = coefficients.factors[min(r, len(coefficients.factors) - 1)]
    masks = coefficients.masks[r]
    for kind in range(len(links.weights)):
        if operations.mixes[kind]:
            weights = links.weights[kind, min(r, links.weights.shape[1] - 1)]
            active = links.active[len(links.active) - 1 if kind == _PUSH else 0, r]
            fill_diagonal(
                links.pointers, links.senders, weights, active, kind == _PUSH, memory.kept
            )
            begins, senders, entries = (
                memory.begins[kind],
                memory.senders[kind],
                memory.entries[kind],
            )
            select_links(
                links.pointers,
                links.senders,
                weights,
                active,
                memory.kept,
                begins,
                senders,
                entries,
            )
    for left in range(0, width, operations.columns):
        size = UINT(min(operations.columns, width - left))
        for n in range(len(before)):
            guard = before[n, 2]
            if guard >= 0 and not coefficients.any_masks[r, guard]:
                continue
            if before[n, 0] != _LIN:
                s = before[n, 5]
                t = before[n, 1]
                kind = before[n, 6]
                source = registers.starts[s] + UINT(left) * registers.shifts[s], registers.rows[s]
                target = registers.starts[t] + UINT(left) * registers.shifts[t], registers.rows[t]
                begins, senders, entries = (
                    memory.begins[kind],
                    memory.senders[kind],
                    memory.entries[kind],
                )
                if before[n, 0] == _MIX:
                    mix_columns(numbers, source, numbers, target, begins, senders, entries, size)
                else:
                    mix_differences(
                        numbers, source, numbers, target, begins, senders, entries, size
                    )
            else:
                for i in range(len(memory.kept)):
                    _combine(
                        numbers,
                        registers,
                        before,
                        n,
                        operations.terms,
                        factors,
                        masks,
                        i,
                        UINT(left),
                        size,
                    )


@compiled_loop
def _run_after(memory, r, i, width, operations, coefficients):  # type: ignore[no-untyped-def]
    """In place: the operations of round r after the gradient of client i."""
    factors = coefficients.factors[min(r, len(coefficients.factors) - 1)]
    masks = coefficients.masks[r]
    table = operations.after
    for n in range(len(table)):
        _combine(
            memory.numbers,
            memory.late,
            table,
            n,
            operations.terms,
            factors,
            masks,
            i,
            UINT(0),
            UINT(width),
        )


@compiled_loop
def _combine(numbers, registers, operations, n, terms, factors, masks, i, left, size):  # type: ignore[no-untyped-def]
    """A linear combination: operation n for client i, in `size` columns from `left` on.

    If the target is one of its own terms, it is the first one (`program` sorts them).
    """
    mask = operations[n, 3]
    if mask >= 0 and masks[mask, i] != (operations[n, 4] == 1):
        return
    row = UINT(i)
    target = operations[n, 1]
    begin = operations[n, 5]
    end = begin + operations[n, 6]
    to = registers.starts[target] + row * registers.rows[target] + left * registers.shifts[target]
    if end == begin:
        for c in range(size):
            numbers[to + c] = 0
        return
    term = terms[begin, 0]
    a = registers.starts[term] + row * registers.rows[term] + left * registers.shifts[term]
    w = factors[terms[begin, 1], i]
    if end == begin + 1:
        for c in range(size):
            numbers[to + c] = w * numbers[a + c]
        return
    term = terms[begin + 1, 0]
    b = registers.starts[term] + row * registers.rows[term] + left * registers.shifts[term]
    v = factors[terms[begin + 1, 1], i]
    if a == to:  # a loop of its own: the compiler does not vectorize two names for the same memory
        for c in range(size):
            numbers[to + c] = w * numbers[to + c] + v * numbers[b + c]
    else:
        blend_two(numbers, to, numbers, a, b, w, v, size)
    for m in range(begin + 2, end):
        term = terms[m, 0]
        a = registers.starts[term] + row * registers.rows[term] + left * registers.shifts[term]
        w = factors[terms[m, 1], i]
        for c in range(size):
            numbers[to + c] += w * numbers[a + c]

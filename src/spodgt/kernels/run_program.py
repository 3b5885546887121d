"""Compiled loops for the rounds of one run, from the program of a method's step (`program.Program`).

One call computes many rounds of a linear model in the memory of the run. The plain equivalent is the
method's own `step`.
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
from spodgt.kernels.program import (
    END,
    FIRST,
    GUARD,
    KIND,
    MASK,
    MATRICES,
    MATRIX,
    MIX,
    NO_MASK,
    SIDE,
    SOURCE,
    SUM,
    TARGET,
)
from spodgt.kernels.tracing import PUSH
from spodgt.problems.gradients.linear_model import (
    UINT,
    aligned_zeros,
    copy_padded,
    minibatch_gradient,
)
from spodgt.types import Array, Bools, Floats, Ints, Words


# --- arguments -----------------------------------------------------------------------------------
class Operations(NamedTuple):
    """The program of a round, as loops read it; see `program.Program`."""

    before: Ints  # (operations, fields of `Operation`)
    after: Ints
    terms: Ints  # (terms, 2)
    uses_matrix: Bools  # (matrices,) mixing matrices of rows
    gradient_at: int  # register
    lasting: int
    blocks: int
    rows: int
    columns: int  # of a block; no result depends on it


class Coefficients(NamedTuple):
    """Coefficients and masks of some rounds, for the clients of a run."""

    factors: Array  # (rounds or 1, coefficients, clients)
    masks: Bools  # (rounds, masks, clients): the first one is the active clients
    any_masks: Bools  # (rounds, masks): whether a mask holds for any client


class RunLinks(NamedTuple):
    """Links of a run in some rounds."""

    pointers: Ints  # (clients + 1,) where the links of each receiver begin
    senders: Ints  # (links,)
    weights: Floats  # (matrices, rounds or 1, links): a, b, w if used; rounded to the models' type
    active: Bools  # (1 or 2, rounds, links): pulls and gossip; pushes, if they have other links


class Draws(NamedTuple):
    """Keys of the mini-batches of the clients of a run."""

    rows: Ints  # (clients,) in the problem
    keys: Words  # (clients,)
    client_index: Ints  # (clients,)
    batch_sizes: Ints  # (clients,)
    chunks: Ints  # (clients,) `linear_model.chunk_length` of these
    first_round: int


class Registers(NamedTuple):
    """Memory layout: register r, client i, column c is at starts[r] + i · strides[r] + c · shifts[r]."""

    starts: Words
    strides: Words
    shifts: Words  # 1: all columns are stored; 0: the current block of columns

    @classmethod
    def create(cls, layout: list[tuple[int, int, int]]) -> Registers:
        """From (start, stride, shift) of each register."""
        return cls(*np.ascontiguousarray(np.array(layout, np.uint64).reshape(-1, 3).T))


class RunMemory(NamedTuple):
    """Memory of a run."""

    numbers: Array  # all registers
    before: Registers  # before the gradient
    after: Registers  # after it
    diagonal: Floats  # (clients,) of a mixing matrix
    begins: Ints  # (matrices, clients + 1) mixing matrices of a round, see `mixing.select_links`
    senders: Ints  # (matrices, entries)
    entries: Array  # (matrices, entries)

    @staticmethod
    def create(
        operations: Operations, shape: tuple[int, int], links: int, dtype: np.dtype[np.generic]
    ) -> RunMemory:
        """Allocate the memory of a run.

        The first `lasting` registers are (clients, width). After them are blocks (clients, columns),
        used before the gradient, and at the same addresses rows (width,), used after it, client by
        client.

        Args:
            operations: The program.
            shape: (clients, width).
            links: Number of links.
            dtype: Of the models.
        """
        clients, width = shape
        block = clients * operations.columns
        end = operations.lasting * clients * width
        lasting = [(n * clients * width, width, 1) for n in range(operations.lasting)]
        blocks = [(end + n * block, operations.columns, 0) for n in range(operations.blocks)]
        rows = [(end + n * width, 0, 1) for n in range(operations.rows)]
        size = end + max(operations.blocks * block, operations.rows * width)
        entries = links + 2 * clients
        return RunMemory(
            numbers=aligned_zeros(size, dtype),
            before=Registers.create(lasting + blocks),
            after=Registers.create(lasting + rows),
            diagonal=np.empty(clients),
            begins=np.empty((len(MATRICES), clients + 1), np.int64),
            senders=np.empty((len(MATRICES), entries), np.int64),
            entries=np.empty((len(MATRICES), entries), dtype),
        )


# --- rounds --------------------------------------------------------------------------------------
@compiled_loop
def advance_run(  # type: ignore[no-untyped-def]
    fields, starts, memory, operations, coefficients, links, draws, data, stride, scratch
):
    """Advance the fields of one run of a linear model by some rounds, in place.

    Args:
        fields: All fields of all clients of the batch, flat.
        starts: (fields,) where each field of this run begins in `fields`.
        memory: A `RunMemory`.
        operations: An `Operations`.
        coefficients: A `Coefficients`.
        links: A `RunLinks`.
        draws: A `Draws`.
        data: A `LinearData`.
        stride: Of padded rows.
        scratch: A `Scratch`.
    """
    numbers = memory.numbers
    clients = len(draws.keys)
    width = data.classes * stride
    _copy_fields(fields, starts, numbers, clients, data, stride, False)
    for r in range(len(coefficients.masks)):
        _fill_matrices(memory, r, operations, links)
        _run_before(memory, r, width, operations, coefficients)
        for i in range(clients):
            if coefficients.masks[r, 0, i]:
                model = memory.after.starts[operations.gradient_at] + UINT(i) * UINT(width)
                gradient = memory.after.starts[operations.lasting]
                draw = (
                    draws.rows[i],
                    draws.keys[i],
                    draws.client_index[i],
                    draws.first_round + r,
                    draws.batch_sizes[i],
                    draws.chunks[i],
                )
                minibatch_gradient(
                    numbers, model, numbers[gradient:], data, UINT(stride), draw, scratch
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
def _fill_matrices(memory, r, operations, links):  # type: ignore[no-untyped-def]
    """Store the mixing matrices of the active links of round r in the memory."""
    for matrix in range(len(links.weights)):
        if operations.uses_matrix[matrix]:
            weights = links.weights[matrix, min(r, links.weights.shape[1] - 1)]
            is_push = matrix == PUSH
            active = links.active[len(links.active) - 1 if is_push else 0, r]
            fill_diagonal(links.pointers, links.senders, weights, active, is_push, memory.diagonal)
            select_links(
                links.pointers,
                links.senders,
                weights,
                active,
                memory.diagonal,
                memory.begins[matrix],
                memory.senders[matrix],
                memory.entries[matrix],
            )


@compiled_loop
def _run_before(memory, r, width, operations, coefficients):  # type: ignore[no-untyped-def]
    """Run the operations of round r before the gradient, one block of columns after the other."""
    table = operations.before
    factors = coefficients.factors[min(r, len(coefficients.factors) - 1)]
    masks = coefficients.masks[r]
    for left in range(0, width, operations.columns):
        size = UINT(min(operations.columns, width - left))
        for n in range(len(table)):
            guard = table[n, GUARD]
            if guard != NO_MASK and not coefficients.any_masks[r, guard]:
                continue
            if table[n, KIND] != SUM:
                _mix(memory, table, n, UINT(left), size)
                continue
            for i in range(len(memory.diagonal)):
                _combine(
                    memory.numbers,
                    memory.before,
                    table,
                    n,
                    operations.terms,
                    factors,
                    masks,
                    i,
                    UINT(left),
                    size,
                )


@compiled_loop
def _mix(memory, table, n, left, size):  # type: ignore[no-untyped-def]
    """Run the mixing operation n in `size` columns from `left` on."""
    numbers = memory.numbers
    registers = memory.before
    s = table[n, SOURCE]
    t = table[n, TARGET]
    source = registers.starts[s] + left * registers.shifts[s], registers.strides[s]
    target = registers.starts[t] + left * registers.shifts[t], registers.strides[t]
    begins = memory.begins[table[n, MATRIX]]
    senders = memory.senders[table[n, MATRIX]]
    entries = memory.entries[table[n, MATRIX]]
    if table[n, KIND] == MIX:
        mix_columns(numbers, source, numbers, target, begins, senders, entries, size)
    else:
        mix_differences(numbers, source, numbers, target, begins, senders, entries, size)


@compiled_loop
def _run_after(memory, r, i, width, operations, coefficients):  # type: ignore[no-untyped-def]
    """Run the operations of round r after the gradient, for client i."""
    factors = coefficients.factors[min(r, len(coefficients.factors) - 1)]
    masks = coefficients.masks[r]
    table = operations.after
    for n in range(len(table)):
        _combine(
            memory.numbers,
            memory.after,
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
def _address(registers, register, i, left):  # type: ignore[no-untyped-def]
    """Where the columns from `left` on of client i begin."""
    start = registers.starts[register] + UINT(i) * registers.strides[register]
    return start + left * registers.shifts[register]


@compiled_loop
def _combine(numbers, registers, table, n, terms, factors, masks, i, left, size):  # type: ignore[no-untyped-def]
    """Run the sum n of a table for client i, in `size` columns from `left` on.

    If the target is one of its own terms, it is the first one (`program` sorts them).
    """
    mask = table[n, MASK]
    if mask != NO_MASK and masks[mask, i] != (table[n, SIDE] == 1):
        return
    to = _address(registers, table[n, TARGET], i, left)
    first = table[n, FIRST]
    end = table[n, END]
    if end == first:
        for c in range(size):
            numbers[to + c] = 0
        return
    a = _address(registers, terms[first, 0], i, left)
    w = factors[terms[first, 1], i]
    if end == first + 1:
        for c in range(size):
            numbers[to + c] = w * numbers[a + c]
        return
    b = _address(registers, terms[first + 1, 0], i, left)
    v = factors[terms[first + 1, 1], i]
    if a == to:  # a separate loop: the compiler does not vectorize two names for the same memory
        for c in range(size):
            numbers[to + c] = w * numbers[to + c] + v * numbers[b + c]
    else:
        blend_two(numbers, to, numbers, a, b, w, v, size)
    for m in range(first + 2, end):
        a = _address(registers, terms[m, 0], i, left)
        w = factors[terms[m, 1], i]
        for c in range(size):
            numbers[to + c] += w * numbers[a + c]

"""Compiled loops for the rounds of one run, from the program of a method's step (`program.Program`).

One call computes many rounds of a linear model in the memory of the run. The plain equivalent is the
method's own `step`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spodgt.engine import compiled_loop, inlined_loop
from spodgt.kernels.mixing import (
    blend_two,
    fill_diagonal,
    mix_columns,
    mix_differences,
    select_links,
)
from spodgt.kernels.program import MATRICES, MIX, NO_MASK, SUM
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

    before: Array  # (operations,) of type `OPERATION`
    after: Array
    terms: Ints  # (terms, 2)
    uses_matrix: Bools  # (matrices,) mixing matrices of rows
    gradient_at: int  # register
    lasting: int
    blocks: int
    rows: int
    columns: int  # of a block; no result depends on it


class Coefficients(NamedTuple):
    """Coefficients and masks of some rounds, for the clients of a run."""

    factors: Array  # (rounds, coefficients, clients)
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


class RunMemory(NamedTuple):
    """Memory of a run.

    Column c of client i in register r is numbers[start + i · stride + c · shift], where start, stride
    and shift are row r of `before` or `after`. The shift is 1 if all columns are stored, and 0 if
    only the current block of columns is.
    """

    numbers: Array  # all registers
    before: Words  # (registers, 3) before the gradient
    after: Words  # (registers, 3) after it
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
            before=np.array(lasting + blocks, np.uint64),
            after=np.array(lasting + rows, np.uint64),
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
    clients = UINT(len(draws.keys))
    width = UINT(data.classes * stride)
    columns = UINT(operations.columns)
    gradient = numbers[memory.after[operations.lasting, 0] :]
    _copy_fields(fields, starts, numbers, clients, data, stride, False)
    for r in range(len(coefficients.masks)):
        _fill_matrices(memory, r, operations, links)
        masks = coefficients.masks[r]
        values = operations.terms, coefficients.factors[r], masks, coefficients.any_masks[r]
        for left in range(UINT(0), width, columns):
            block = left, min(columns, width - left)
            _run(operations.before, values, memory, memory.before, (UINT(0), clients), block)
        for i in range(clients):
            if masks[0, i]:
                model = memory.after[operations.gradient_at, 0] + i * width
                draw = (
                    draws.rows[i],
                    draws.keys[i],
                    draws.client_index[i],
                    draws.first_round + r,
                    draws.batch_sizes[i],
                    draws.chunks[i],
                )
                minibatch_gradient(numbers, model, gradient, data, UINT(stride), draw, scratch)
            row = UINT(0), width
            _run(operations.after, values, memory, memory.after, (i, i + UINT(1)), row)
    _copy_fields(fields, starts, numbers, clients, data, stride, True)


@compiled_loop
def _copy_fields(fields, starts, numbers, clients, data, stride, back):  # type: ignore[no-untyped-def]
    """Copy the fields of a run into its registers, or `back`."""
    parameters = data.classes * data.inputs.shape[1] + (data.classes if data.bias else 0)
    width = UINT(data.classes * stride)
    for f in range(UINT(len(starts))):
        for i in range(clients):
            at = UINT(starts[f]) + i * UINT(parameters)
            to = (f * clients + i) * width
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
def _run(table, values, memory, registers, clients, block):  # type: ignore[no-untyped-def]
    """Run the operations of a table.

    Args:
        table: Operations before or after the gradient.
        values: Terms, coefficients, masks, and whether a mask holds for any client.
        memory: A `RunMemory`.
        registers: Those of the memory before or after the gradient.
        clients: (first client, end), unsigned.
        block: (first column, number of columns), unsigned.
    """
    terms, factors, masks, any_masks = values
    for n in range(len(table)):
        operation = table[n]
        if operation.guard != NO_MASK and not any_masks[operation.guard]:
            continue
        if operation.kind == SUM:
            _sum(memory.numbers, registers, operation, terms, factors, masks, clients, block)
        else:
            _mix(memory, registers, operation, block)


@inlined_loop
def _mix(memory, registers, operation, block):  # type: ignore[no-untyped-def]
    """Run a mixing operation."""
    left, size = block
    numbers = memory.numbers
    s = operation.source
    t = operation.target
    source = registers[s, 0] + left * registers[s, 2], registers[s, 1]
    target = registers[t, 0] + left * registers[t, 2], registers[t, 1]
    begins = memory.begins[operation.matrix]
    senders = memory.senders[operation.matrix]
    entries = memory.entries[operation.matrix]
    if operation.kind == MIX:
        mix_columns(numbers, source, numbers, target, begins, senders, entries, size)
    else:
        mix_differences(numbers, source, numbers, target, begins, senders, entries, size)


@inlined_loop
def _sum(numbers, registers, operation, terms, factors, masks, clients, block):  # type: ignore[no-untyped-def]
    """Run a sum: target = Σ coefficient · register, for the clients that its mask selects.

    If the target is one of its own terms, it is the first one (`program` sorts them).
    """
    left, size = block
    first = operation.first
    end = operation.end
    for i in range(clients[0], clients[1]):
        if operation.mask != NO_MASK and masks[operation.mask, i] != (operation.side == 1):
            continue
        to = _address(registers, operation.target, i, left)
        if end == first:
            for c in range(size):
                numbers[to + c] = 0
            continue
        a = _address(registers, terms[first, 0], i, left)
        w = factors[terms[first, 1], i]
        if end == first + 1:
            for c in range(size):
                numbers[to + c] = w * numbers[a + c]
            continue
        b = _address(registers, terms[first + 1, 0], i, left)
        v = factors[terms[first + 1, 1], i]
        if a == to:  # of its own: the compiler does not vectorize two names for the same memory
            for c in range(size):
                numbers[to + c] = w * numbers[to + c] + v * numbers[b + c]
        else:
            blend_two(numbers, to, numbers, a, b, w, v, size)
        for m in range(first + 2, end):
            a = _address(registers, terms[m, 0], i, left)
            w = factors[terms[m, 1], i]
            for c in range(size):
                numbers[to + c] += w * numbers[a + c]


@inlined_loop
def _address(registers, register, i, left):  # type: ignore[no-untyped-def]
    """Where the columns from `left` on of client i begin."""
    start = registers[register, 0] + i * registers[register, 1]
    return start + left * registers[register, 2]

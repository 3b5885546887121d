"""Compiled loops for mixing over active links; `links.MixingOperator` has the same in PyTorch.

Arrays are flat and rows are unsigned offsets into them, for the reasons given in
`problems.gradients.linear_model`.
"""

from __future__ import annotations

import numpy as np

from spodgt.engine import compiled_loop, inlined_loop
from spodgt.problems.gradients.linear_model import UINT


@compiled_loop
def fill_diagonal(pointers, senders, weights, active, sender_keeps, diagonal):  # type: ignore[no-untyped-def]
    """Compute the diagonal (clients,) of the mixing matrix of the active links.

    With `sender_keeps`, the diagonal is the share that a client does not send, so columns sum to one;
    otherwise rows do.
    """
    for i in range(len(diagonal)):
        diagonal[i] = 1.0
    for i in range(len(diagonal)):
        for link in range(pointers[i], pointers[i + 1]):
            if active[link]:
                diagonal[senders[link] if sender_keeps else i] -= weights[link]


@compiled_loop
def select_links(pointers, senders, weights, active, diagonal, begins, columns, entries):  # type: ignore[no-untyped-def]
    """Store the mixing matrix of the active links in CSR format, the diagonal first in each row.

    Args:
        pointers: (clients + 1,) where the links of each receiver begin.
        senders: (links,).
        weights: (links,).
        active: (links,).
        diagonal: (clients,).
        begins: Output (clients + 1,): where each row begins in `columns` and `entries`.
        columns: Output: senders. Every row has an even number of entries; a zero may be added.
        entries: Output: weights.
    """
    count = 0
    for i in range(len(diagonal)):
        begins[i] = count
        columns[count] = i
        entries[count] = diagonal[i]
        count += 1
        for link in range(pointers[i], pointers[i + 1]):
            if active[link]:
                columns[count] = senders[link]
                entries[count] = weights[link]
                count += 1
        if (count - begins[i]) % 2:
            columns[count] = i
            entries[count] = 0
            count += 1
    begins[len(diagonal)] = count


@inlined_loop
def mix_columns(x, source, out, target, begins, senders, entries, size):  # type: ignore[no-untyped-def]
    """Compute out = matrix · x in `size` columns; `select_links` defines the matrix.

    Args:
        x: Flat array.
        source: (where row 0 begins in x, distance of two rows), unsigned.
        out: Flat array.
        target: The same as `source`, of `out`.
        begins, senders, entries: The matrix.
        size: Number of columns.
    """
    source_at, source_row = source
    target_at, target_row = target
    for i in range(len(begins) - 1):
        to = target_at + UINT(i) * target_row
        n = begins[i]
        a = source_at + UINT(senders[n]) * source_row
        b = source_at + UINT(senders[n + 1]) * source_row
        if begins[i + 1] - n == 2:
            blend_two(out, to, x, a, b, entries[n], entries[n + 1], size)
            continue
        c = source_at + UINT(senders[n + 2]) * source_row
        d = source_at + UINT(senders[n + 3]) * source_row
        blend_four(out, to, x, a, b, c, d, entries, n, size)
        for m in range(n + 4, begins[i + 1], 2):
            a = source_at + UINT(senders[m]) * source_row
            b = source_at + UINT(senders[m + 1]) * source_row
            add_two(out, to, x, a, b, entries[m], entries[m + 1], size)


@inlined_loop
def mix_differences(x, source, out, target, begins, senders, entries, size):  # type: ignore[no-untyped-def]
    """Compute out = (matrix - I) · x as sums of entries · (x_j - x_i); arguments as for `mix_columns`.

    For rows that nearly agree, this loses no digits, unlike a mixed row minus the row itself.
    """
    source_at, source_row = source
    target_at, target_row = target
    for i in range(len(begins) - 1):
        own = source_at + UINT(i) * source_row
        to = target_at + UINT(i) * target_row
        for c in range(size):
            out[to + c] = 0
        for n in range(begins[i] + 1, begins[i + 1]):
            a = source_at + UINT(senders[n]) * source_row
            w = entries[n]
            for c in range(size):
                out[to + c] += w * (x[a + c] - x[own + c])


@inlined_loop
def blend_two(target, to, source, a, b, w, v, size):  # type: ignore[no-untyped-def]
    """target = w · a + v · b, of rows at these offsets."""
    for n in range(size):
        target[to + n] = w * source[a + n] + v * source[b + n]


@inlined_loop
def blend_four(target, to, source, a, b, c, d, entries, m, size):  # type: ignore[no-untyped-def]
    """target = the rows a, b, c and d times the entries m to m + 3."""
    w = entries[m]
    v = entries[m + 1]
    u = entries[m + 2]
    t = entries[m + 3]
    for n in range(size):
        target[to + n] = (
            w * source[a + n] + v * source[b + n] + u * source[c + n] + t * source[d + n]
        )


@inlined_loop
def add_two(target, to, source, a, b, w, v, size):  # type: ignore[no-untyped-def]
    """target += w · a + v · b"""
    for n in range(size):
        target[to + n] += w * source[a + n] + v * source[b + n]


@compiled_loop
def mix_matrix(x, out, pointers, senders, weights, active, diagonal, block_columns):  # type: ignore[no-untyped-def]
    """Compute out = mixing matrix of the active links · x (clients, width), in blocks of columns."""
    begins = np.empty(len(pointers), np.int64)
    columns = np.empty(len(senders) + 2 * len(diagonal), np.int64)
    entries = np.empty(len(senders) + 2 * len(diagonal), x.dtype)
    select_links(pointers, senders, weights, active, diagonal, begins, columns, entries)
    width = UINT(x.shape[1])
    source = x.reshape(-1)
    target = out.reshape(-1)
    for left in range(UINT(0), width, UINT(block_columns)):
        size = min(UINT(block_columns), width - left)
        mix_columns(source, (left, width), target, (left, width), begins, columns, entries, size)

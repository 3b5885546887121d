"""Compiled loops that mix rows over the active links; `links.Links.mix_plain` has the same in PyTorch.

Arrays are flat and rows are unsigned offsets into them, for the reasons given in
`problems.gradients.linear_model`.
"""

from __future__ import annotations

import numpy as np

from spodgt.engine import compiled_loop
from spodgt.problems.gradients.linear_model import UINT


@compiled_loop
def fill_diagonal(pointers, senders, weights, active, sender_keeps, kept):  # type: ignore[no-untyped-def]
    """kept (clients,) ← the diagonal of the mixing matrix: one minus what goes along the active links.

    `sender_keeps`: what is not sent stays with its sender, so columns sum to one. Otherwise rows do.
    """
    for i in range(len(kept)):
        kept[i] = 1.0
    for i in range(len(kept)):
        for link in range(pointers[i], pointers[i + 1]):
            if active[link]:
                kept[senders[link] if sender_keeps else i] -= weights[link]


@compiled_loop
def select_links(pointers, senders, weights, active, kept, begins, chosen, entries):  # type: ignore[no-untyped-def]
    """begins, chosen, entries ← the rows of the mixing matrix: diagonal first, then the active links.

    Args:
        pointers: (clients + 1,) where the links of each receiver begin.
        senders, weights, active: (links,).
        kept: (clients,) the diagonal.
        begins: (clients + 1,) where each row begins in the next two.
        chosen, entries: senders and their weights; a zero makes the number of entries of a row even.
    """
    count = 0
    for i in range(len(kept)):
        begins[i] = count
        chosen[count] = i
        entries[count] = kept[i]
        count += 1
        for link in range(pointers[i], pointers[i + 1]):
            if active[link]:
                chosen[count] = senders[link]
                entries[count] = weights[link]
                count += 1
        if (count - begins[i]) % 2:
            chosen[count] = i
            entries[count] = 0
            count += 1
    begins[len(kept)] = count


@compiled_loop
def mix_columns(x, source, out, target, begins, senders, entries, size):  # type: ignore[no-untyped-def]
    """Row i of `out` ← Σ entries · rows of x, in `size` columns; see `select_links`.

    `source` is (where row 0 begins in x, distance of two rows), both unsigned; `target` the same of `out`.
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


@compiled_loop
def mix_differences(x, source, out, target, begins, senders, entries, size):  # type: ignore[no-untyped-def]
    """Row i of `out` ← Σ entries · (rows of x - row i of x), in `size` columns; see `mix_columns`.

    Rows that are nearly equal lose no digits here, as they do in a mixed row minus the row itself.
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


@compiled_loop
def blend_two(target, to, source, a, b, w, v, size):  # type: ignore[no-untyped-def]
    """target ← w · a + v · b"""
    for n in range(size):
        target[to + n] = w * source[a + n] + v * source[b + n]


@compiled_loop
def blend_four(target, to, source, a, b, c, d, entries, m, size):  # type: ignore[no-untyped-def]
    """target ← the rows a, b, c and d with four entries that follow each other from m on"""
    w, v, u, t = entries[m], entries[m + 1], entries[m + 2], entries[m + 3]
    for n in range(size):
        target[to + n] = (
            w * source[a + n] + v * source[b + n] + u * source[c + n] + t * source[d + n]
        )


@compiled_loop
def add_two(target, to, source, a, b, w, v, size):  # type: ignore[no-untyped-def]
    """target ← target + w · a + v · b"""
    for n in range(size):
        target[to + n] += w * source[a + n] + v * source[b + n]


@compiled_loop
def mix_matrix(x, out, pointers, senders, weights, active, kept, columns):  # type: ignore[no-untyped-def]
    """out ← the mixing matrix of the active links, times x (clients, width), `columns` at a time."""
    begins = np.empty(len(pointers), np.int64)
    chosen = np.empty(len(senders) + 2 * len(kept), np.int64)
    entries = np.empty(len(senders) + 2 * len(kept), x.dtype)
    select_links(pointers, senders, weights, active, kept, begins, chosen, entries)
    width = UINT(x.shape[1])
    source = x.reshape(-1)
    target = out.reshape(-1)
    for left in range(UINT(0), width, UINT(columns)):
        size = min(UINT(columns), width - left)
        mix_columns(source, (left, width), target, (left, width), begins, chosen, entries, size)

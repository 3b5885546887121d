"""Batches of turns laid out for the compiled step: one set of arrays for many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spodgt.runtimes.virtual.plan import Batch
from spodgt.types import Bools, Floats, Ints, Words

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of `rng.words`
Table = list[tuple[int, ...]]


class Lot(NamedTuple):
    """The turns of some batches, one after the other; a row is a client's place in its batch."""

    cuts: Ints  # (batches + 1, 7) where each begins in rows, models, mass, copies, trackers, ahead, draws
    rows: Ints  # clients
    kept: tuple[Floats, Floats]  # of each row, its own part of x and of y
    models: tuple[Ints, Bools, Ints, Floats]  # row that takes it, was it sent here, row or slot, weight
    mass: tuple[Ints, Bools, Ints, Floats]  # the same of trackers
    copies: tuple[Ints, ...]  # row whose x is kept, slot
    trackers: tuple[Ints, ...]  # row whose y is kept, slot
    ahead: tuple[Ints, Ints, Floats]  # client whose next turn takes it, row that sends it, weight
    draws: tuple[Ints, Words]  # clients that compute, and the keys of their mini-batches
    links: Ints  # on which something is sent


def columns(table: Sequence[Sequence[int]], width: int) -> list[Ints]:
    """The columns of a table, each contiguous: a loop is compiled anew for arrays that are not."""
    return [*np.ascontiguousarray(np.array(table, np.int64).reshape(-1, width).T)]


def laid_out(
    batches: Sequence[Batch],
    settle: Callable[[Batch], None],
    receivers: Sequence[int],
    weights: tuple[Floats, Floats],
    keys: Words,
) -> Lot:
    """The arrays of some batches.

    Args:
        batches: In the order of time.
        settle: Called for every batch, after what it reads was noted and before what it keeps is.
        receivers: Of each link.
        weights: (links,) a and b.
        keys: (clients,) of the stream "batch".
    """
    turns, models, mass, copies, trackers, ahead, out = (Table() for _ in range(7))
    cuts, active = Table([(0,) * 7]), 0
    for batch in batches:
        number, base = batch.number, len(turns)
        turns += zip(batch.clients, batch.rounds, batch.computes, strict=True)
        for row, message, newest in batch.got:
            sent = message.sent
            here = sent.batch == number
            if newest:
                models.append((row, message.link, here, sent.row if here else sent.slot, base + row))
            if not message.direct:
                mass.append((row, message.link, here, sent.row if here else sent.mass_slot))
        settle(batch)
        for sent in batch.sent:
            if sent.slot >= 0:
                copies.append((sent.row, sent.slot))
            if sent.mass_slot >= 0:
                trackers.append((sent.row, sent.mass_slot))
        for message in batch.out:
            out.append((base + message.sent.row, message.link))
            if message.direct:
                ahead.append((receivers[message.link], message.sent.row, message.link))
        active += sum(batch.computes)
        cuts.append((*map(len, (turns, models, mass, copies, trackers, ahead)), active))
    (a, b), (rows, rounds, computes), (senders, links) = weights, columns(turns, 3), columns(out, 2)
    to_x, links_x, here_x, where_x, takers = columns(models, 5)
    to_y, links_y, here_y, where_y = columns(mass, 4)
    to, sending, directly = columns(ahead, 3)
    given = ((takers, a[links_x]), (senders, b[links]))  # what leaves the own part of which row
    kept_x, kept_y = (np.asarray(1.0 - np.bincount(*each, len(rows)), np.float64) for each in given)
    busy = np.flatnonzero(computes)
    return Lot(
        np.array(cuts),
        rows,
        (kept_x, kept_y),
        (to_x, here_x != 0, where_x, a[links_x]),
        (to_y, here_y != 0, where_y, b[links_y]),
        tuple(columns(copies, 2)),
        tuple(columns(trackers, 2)),
        (to, sending, b[directly]),
        (rows[busy], shifted(keys, rows[busy], rounds[busy])),
        links,
    )


def shifted(keys: Words, clients: Ints, rounds: Ints) -> Words:
    """Keys of the mini-batches of clients in different rounds: a draw begins with key + golden · (k + 1)."""
    with np.errstate(over="ignore"):
        return keys[clients] + GOLDEN * rounds.astype(np.uint64)

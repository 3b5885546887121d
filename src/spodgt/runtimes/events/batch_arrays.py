"""Batches of turns as arrays for compiled loops (`kernels.event_turns`): one set for many batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spodgt.runtimes.events.schedule import Batch
from spodgt.types import Bools, Floats, Ints, Words

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of `rng.words`
Table = list[tuple[int, ...]]


class Starts(NamedTuple):
    """(batches + 1,) where each batch begins in the arrays of a lot."""

    rows: Ints
    models: Ints
    mass: Ints
    copies: Ints
    trackers: Ints
    ahead: Ints
    draws: Ints


class Messages(NamedTuple):
    """What rows of a batch receive."""

    rows: Ints  # that receive
    is_here: Bools  # whether the copy was sent in this batch; otherwise it is in a pool
    where: Ints  # the sender's row, or the slot
    weights: Floats


class Copies(NamedTuple):
    """Rows that are kept in a pool."""

    rows: Ints
    slots: Ints


class Ahead(NamedTuple):
    """Mass that the next turn of its receiver takes."""

    receivers: Ints  # clients
    rows: Ints  # that send it
    weights: Floats


class GradientDraws(NamedTuple):
    """Gradients of a lot."""

    clients: Ints
    keys: Words  # of the mini-batches


class Lot(NamedTuple):
    """The turns of some batches, one after the other; a row is a client's place in its batch."""

    starts: Starts
    clients: Ints  # of all rows
    kept_x: Floats  # of each row, its own part of x
    kept_y: Floats  # and of y
    models: Messages
    mass: Messages  # the same of trackers
    copies: Copies  # of x
    trackers: Copies  # of y
    ahead: Ahead
    draws: GradientDraws
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
                models.append(
                    (row, message.link, here, sent.row if here else sent.slot, base + row)
                )
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
    a, b = weights
    rows, rounds, computes = columns(turns, 3)
    senders, links = columns(out, 2)
    to_x, links_x, here_x, where_x, takers = columns(models, 5)
    to_y, links_y, here_y, where_y = columns(mass, 4)
    to, sending, directly = columns(ahead, 3)
    busy = np.flatnonzero(computes)
    return Lot(
        Starts(*columns(cuts, 7)),
        rows,
        np.asarray(1.0 - np.bincount(takers, a[links_x], len(rows)), np.float64),
        np.asarray(1.0 - np.bincount(senders, b[links], len(rows)), np.float64),
        Messages(to_x, here_x != 0, where_x, a[links_x]),
        Messages(to_y, here_y != 0, where_y, b[links_y]),
        Copies(*columns(copies, 2)),
        Copies(*columns(trackers, 2)),
        Ahead(to, sending, b[directly]),
        GradientDraws(rows[busy], shifted(keys, rows[busy], rounds[busy])),
        links,
    )


def shifted(keys: Words, clients: Ints, rounds: Ints) -> Words:
    """Keys of the mini-batches of clients in different rounds: a draw begins with key + golden · (k + 1)."""
    with np.errstate(over="ignore"):
        return keys[clients] + GOLDEN * rounds.astype(np.uint64)

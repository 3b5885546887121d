"""An order of clients in which neighbours stand near each other, for states that leave the caches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spodgt.compiled import jit
from spodgt.types import Ints

_GROUP = 512  # clients that are gathered around one before the next group begins
_NEAR = 4096  # rows that stay in a cache together
BLOCK, WINDOW = 32, 8  # rows that are mixed together, and blocks before that still are in a cache
_GAIN = 0.25  # of the links that must come near for a new order to be worth its while


@jit
def _grouped(ends, pointers, links):  # type: ignore[no-untyped-def]
    for end in ends:
        pointers[end + 1] += 1
    for i in range(1, len(pointers)):
        pointers[i] += pointers[i - 1]
    for link in range(len(ends)):
        links[pointers[ends[link]]] = link
        pointers[ends[link]] += 1
    for i in range(len(pointers) - 1, 0, -1):
        pointers[i] = pointers[i - 1]
    pointers[0] = 0


def grouped(ends: Ints, clients: int) -> tuple[Ints, Ints]:
    """The links of every client one after the other, in their order: where each client's begin, and which.

    ends: (links,) the client of each link. clients: how many.
    """
    pointers, links = np.zeros(clients + 1, np.int64), np.empty(len(ends), np.int64)
    _grouped(ends, pointers, links)
    return pointers, links


@jit
def _gather(pointers, links, receivers, seen, order, edge):  # type: ignore[no-untyped-def]
    """order ← clients, group by group: each is the neighbourhood of one that the last group reaches."""
    done, waiting, start = 0, 0, 0
    while done < len(order):
        seed = -1
        while waiting and seed < 0:
            waiting -= 1
            seed = -1 if seen[edge[waiting]] else edge[waiting]
        while seed < 0:
            seed = -1 if seen[start] else start
            start += 1
        first = at = done
        order[done], seen[seed] = seed, True
        done += 1
        while at < done and done - first < _GROUP:
            for n in range(pointers[order[at]], pointers[order[at] + 1]):
                near = receivers[links[n]]
                if not seen[near]:
                    order[done], seen[near] = near, True
                    done += 1
            at += 1
        for member in range(at, done):  # one neighbour of each that was not asked: where groups may begin
            for n in range(pointers[order[member]], pointers[order[member] + 1]):
                near = receivers[links[n]]
                if not seen[near]:
                    edge[waiting] = near
                    waiting += 1
                    break


@jit
def _first_uses(receivers, senders, seen, begins, rows):  # type: ignore[no-untyped-def]
    for link in range(len(receivers)):
        block, row = receivers[link] // BLOCK, senders[link]
        if block - seen[row] > WINDOW:
            rows[begins[-1]] = row
            begins[-1] += 1
        seen[row] = block
        begins[block + 1] = begins[-1]


def first_uses(receivers: Ints, senders: Ints, clients: int) -> tuple[Ints, NDArray[np.int32]]:
    """Of every block of receiving clients, where the rows begin that no block shortly before reads; the rows.

    Links are in the order of their receivers.
    """
    begins, rows = np.zeros(-(-clients // BLOCK) + 2, np.int64), np.empty(len(senders), np.int32)
    _first_uses(receivers, senders, np.full(clients, -WINDOW - 1), begins, rows)
    return np.maximum.accumulate(begins), rows[: begins[-1]].copy()


def nearness(receivers: Ints, senders: Ints) -> float:
    """The share of links whose ends stay in a cache together, if rows are read in their order."""
    return float(np.mean(np.abs(receivers - senders) < _NEAR)) if len(senders) else 1.0


def near_order(clients: int, receivers: Ints, senders: Ints) -> Ints | None:
    """(clients,) in a better order than that of their numbers; None where there is none.

    Groups grow along links, so a graph that lies in a plane is cut into patches. A random graph has no
    patches: everybody is a few links from everybody.
    """
    order, seen = np.empty(clients, np.int64), np.zeros(clients, np.bool_)
    _gather(*grouped(senders, clients), receivers, seen, order, np.empty(clients, np.int64))
    row = np.empty(clients, np.int64)
    row[order] = np.arange(clients)
    gain = nearness(row[receivers], row[senders]) - nearness(receivers, senders)
    return order if gain > _GAIN else None

"""Links and names: what is checked of every graph, and in which order clients and links stand."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import ArrayLike

from spodgt._util.text import short_repr
from spodgt.errors import InvalidNetwork
from spodgt.types import Ints

MOST_CLIENTS = 10**9  # a link is one number below clients², which must fit into 64 bits


class Named:
    """Clients with names, or without: then they are called by their numbers."""

    names: tuple[str, ...] | None

    def label(self, client: int) -> str:
        """What client number `client` is called."""
        return str(client) if self.names is None else self.names[client]


def check_names(names: Iterable[str] | None, clients: int) -> tuple[str, ...] | None:
    """The names as a tuple, one for each client and no two the same."""
    if names is None:
        return None
    found = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    if len(found) != clients or not all(isinstance(name, str) for name in found):
        raise InvalidNetwork(
            f"names must be {clients} texts, one per client, got {short_repr(found)}."
        )
    if len(set(found)) < clients:
        twice = next(name for name in found if found.count(name) > 1)
        raise InvalidNetwork(
            f"names must differ, but {twice!r} is there twice; rename one of them."
        )
    return found


def by_name(nodes: Iterable[Hashable]) -> list[Hashable]:
    """Nodes by their names, numbers in them by value: 2 before 10, n2 before n10.

    The order depends on the names alone, so a graph in memory and the same graph in a file agree.
    """
    given = list(nodes)
    found = {str(node): node for node in given}
    if len(found) < len(given):
        twice = next(node for node in given if found[str(node)] is not node)
        raise InvalidNetwork(
            f"nodes {twice!r} and {found[str(twice)]!r} have the same name; rename one of them."
        )
    return [found[name] for name in sorted(found, key=_natural)]


def _natural(name: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Texts and numbers of a name in turn; a number comes before a text."""
    parts = re.split(r"([0-9]+)", name)
    return [
        (bool(at % 2 == 0), int(part) if at % 2 else 0, part)
        for at, part in enumerate(parts)
        if part
    ], name


def check_ends(clients: int, receivers: ArrayLike, senders: ArrayLike) -> tuple[Ints, Ints]:
    """Both ends of every link as numbers of clients, or what is wrong with them."""
    known = isinstance(clients, int | np.integer) and not isinstance(clients, bool)
    if not known or not 0 <= clients <= MOST_CLIENTS:
        raise InvalidNetwork(
            f"clients must be a whole number of at most {MOST_CLIENTS:,}, got {clients!r:.60}; use 10."
        )
    found = []
    for name, given in (("receivers", receivers), ("senders", senders)):
        try:
            array = np.asarray(given)
        except (TypeError, ValueError, RuntimeError):
            array = np.array("?")
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InvalidNetwork(
                f"{name} must be a list of whole numbers, one per link, got {short_repr(given)}."
            )
        bad = (array < 0) | (array >= clients)
        if bad.any():
            raise InvalidNetwork(
                f"{name} must be clients from 0 to {clients - 1}, but link {int(bad.argmax())} has "
                f"{array[bad.argmax()]}; correct it or use more clients."
            )
        found.append(array.astype(np.int64))
    if len(found[0]) != len(found[1]):
        raise InvalidNetwork(
            f"receivers and senders must have one entry per link, got {len(found[0])} and {len(found[1])}."
        )
    return found[0], found[1]


def order_of(clients: int, receivers: Ints, senders: Ints) -> Ints | None:
    """What sorts the links by receiver, then sender; None where they are sorted. No loops, no repeats."""
    loop = receivers == senders
    if loop.any():
        raise InvalidNetwork(
            f"links must join two clients, but link {int(loop.argmax())} goes from "
            f"{senders[loop.argmax()]} to itself; leave it out, or use Graph.of."
        )
    code = receivers * clients + senders
    if (np.diff(code) > 0).all():
        return None
    order = np.argsort(code, kind="stable")
    again = np.flatnonzero(np.diff(code[order]) == 0)
    if len(again):
        link = order[again[0]]
        raise InvalidNetwork(
            f"links must differ, but link {senders[link]} → {receivers[link]} is there twice; "
            "leave one out, or use Graph.of."
        )
    return np.asarray(order, np.int64)

"""Digraphs stored as lists of links, and the checks of these links."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from spodgt._util.text import short_repr
from spodgt.errors import InvalidNetwork
from spodgt.network.names import ClientNames, check_names
from spodgt.types import Floats, Ints

MAX_CLIENTS = 10**9  # the code of a link, receiver * clients + sender, must fit into 64 bits


class Digraph(ClientNames):
    """Degrees, reverse links and labels of a digraph; base of `Graph` and `Network`.

    Links are sorted by receiver, then sender, without self-loops and duplicates.
    """

    clients: int
    receivers: Ints  # (links,)
    senders: Ints  # (links,)

    @property
    def links(self) -> int:
        """Number of links."""
        return len(self.receivers)

    @cached_property
    def in_degree(self) -> Ints:
        """(clients,) number of in-links."""
        return np.bincount(self.receivers, minlength=self.clients)

    @cached_property
    def out_degree(self) -> Ints:
        """(clients,) number of out-links."""
        return np.bincount(self.senders, minlength=self.clients)

    @cached_property
    def reverse(self) -> Ints | None:
        """(links,) index of the reverse of each link; None if a link has no reverse."""
        codes = self.receivers * self.clients + self.senders  # sorted, as the links are
        reverse_codes = self.senders * self.clients + self.receivers
        index = np.searchsorted(codes, reverse_codes)
        if (index == len(codes)).any() or (codes[index] != reverse_codes).any():
            return None
        return np.asarray(index, np.int64)

    @property
    def two_way(self) -> bool:
        """Whether each link has its reverse."""
        return self.reverse is not None

    def one_way_link(self) -> tuple[int, int]:
        """(sender, receiver) of the first link without its reverse.

        Raises:
            ValueError: Each link has its reverse.
        """
        links = set(zip(self.receivers.tolist(), self.senders.tolist(), strict=True))
        for receiver, sender in sorted(links):
            if (sender, receiver) not in links:
                return sender, receiver
        raise ValueError("each link has its reverse")

    def link_label(self, link: int) -> str:
        """Label of a link, "sender → receiver".

        Args:
            link: Index of the link.
        """
        return f"{self.label(self.senders[link])} → {self.label(self.receivers[link])}"


@dataclass(frozen=True, eq=False)
class Graph(Digraph):
    """A digraph, with edge weights if these were given.

    Args:
        clients: Number of clients.
        receivers: (links,) receiver of each link, in any order.
        senders: (links,) sender of each link.
        positions: (clients, 2) in the unit square, for geometric graphs.
        names: One name per client; None: clients are labelled by their numbers.
        weights: (links,) edge weights; NaN: not a number. None: the graph has no edge weights.
        loops: (clients,) weights of self-loops; NaN: the client has none.
    """

    clients: int
    receivers: Ints
    senders: Ints
    positions: Floats | None = None
    names: tuple[str, ...] | None = None
    weights: Floats | None = None
    loops: Floats | None = None

    def __post_init__(self) -> None:
        order = sort_links(self)
        if self.weights is not None:
            object.__setattr__(self, "weights", np.asarray(self.weights)[order])

    @staticmethod
    def of(
        clients: int,
        receivers: ArrayLike,
        senders: ArrayLike,
        positions: Floats | None = None,
        names: tuple[str, ...] | None = None,
        weights: Floats | None = None,
    ) -> Graph:
        """Build a graph from links that may contain self-loops and duplicates.

        The weights of self-loops become `loops`; of duplicates the first one counts.

        Args:
            clients: Number of clients.
            receivers: (links,) receiver of each link.
            senders: (links,) sender of each link.
            positions: (clients, 2) in the unit square.
            names: One name per client.
            weights: (links,) edge weights.
        """
        link_receivers, link_senders = check_links(clients, receivers, senders)
        links = len(link_receivers)
        if weights is not None and np.shape(weights) != (links,):
            raise InvalidNetwork(
                f"weights must be {links}, one per link, got {short_repr(weights)}."
            )
        codes = link_receivers * clients + link_senders
        first = None
        if weights is None:
            codes = np.unique(codes)
        else:
            codes, first = np.unique(codes, return_index=True)
        link_receivers, link_senders = np.divmod(codes, max(1, clients))
        is_link = link_receivers != link_senders
        ends = (link_receivers[is_link], link_senders[is_link])
        if weights is None:
            return Graph(clients, *ends, positions, names)
        weights = np.asarray(weights, float)[first]
        loops = np.full(clients, np.nan)
        loops[link_receivers[~is_link]] = weights[~is_link]
        return Graph(clients, *ends, positions, names, weights[is_link], loops)

    def components(self) -> tuple[int, Ints]:
        """Number of strongly connected components, and (clients,) the component of each client."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        ones = np.ones(self.links, dtype=bool)
        shape = (self.clients, self.clients)
        adjacency = coo_array((ones, (self.receivers, self.senders)), shape=shape)
        count, labels = connected_components(adjacency.tocsr(), directed=True, connection="strong")
        return int(count), labels.astype(np.int64)


def sort_links(graph: Digraph) -> Ints | slice:
    """Check and sort the links of a new graph, and check its names; returns the order."""
    receivers, senders = check_links(graph.clients, graph.receivers, graph.senders)
    order = _sorted_order(graph.clients, receivers, senders)
    object.__setattr__(graph, "receivers", receivers[order])
    object.__setattr__(graph, "senders", senders[order])
    object.__setattr__(graph, "names", check_names(graph.names, graph.clients))
    return order


def check_links(clients: int, receivers: ArrayLike, senders: ArrayLike) -> tuple[Ints, Ints]:
    """Receivers and senders as (links,) arrays.

    Raises:
        InvalidNetwork: `clients` or the number of a client is out of range.
    """
    is_integer = isinstance(clients, int | np.integer) and not isinstance(clients, bool)
    if not is_integer or not 0 <= clients <= MAX_CLIENTS:
        raise InvalidNetwork(
            f"clients must be a whole number of at most {MAX_CLIENTS:,}, "
            f"got {clients!r:.60}; use 10."
        )
    receivers = _check_clients("receivers", receivers, clients)
    senders = _check_clients("senders", senders, clients)
    if len(receivers) != len(senders):
        raise InvalidNetwork(
            "receivers and senders must have one entry per link, "
            f"got {len(receivers)} and {len(senders)}."
        )
    return receivers, senders


def _check_clients(name: str, values: ArrayLike, clients: int) -> Ints:
    """(links,) numbers of clients."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        array = np.array("?")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidNetwork(
            f"{name} must be a list of whole numbers, one per link, got {short_repr(values)}."
        )
    out_of_range = (array < 0) | (array >= clients)
    if out_of_range.any():
        link = int(out_of_range.argmax())
        raise InvalidNetwork(
            f"{name} must be clients from 0 to {clients - 1}, but link {link} has "
            f"{array[link]}; correct it or use more clients."
        )
    return array.astype(np.int64)


def _sorted_order(clients: int, receivers: Ints, senders: Ints) -> Ints | slice:
    """(links,) permutation that sorts links by receiver, then sender; a slice: they are sorted.

    Raises:
        InvalidNetwork: There is a self-loop or a duplicate.
    """
    is_loop = receivers == senders
    if is_loop.any():
        link = int(is_loop.argmax())
        raise InvalidNetwork(
            f"links must join two clients, but link {link} joins client "
            f"{senders[link]} and itself; leave it out, or use Graph.of."
        )
    codes = receivers * clients + senders
    if (np.diff(codes) > 0).all():
        return np.s_[:]
    order = np.argsort(codes, kind="stable")
    duplicates = np.flatnonzero(np.diff(codes[order]) == 0)
    if len(duplicates):
        link = order[duplicates[0]]
        raise InvalidNetwork(
            f"links must differ, but link {senders[link]} → {receivers[link]} is there twice; "
            "leave one out, or use Graph.of."
        )
    return np.asarray(order, np.int64)


def check_connected(graph: Graph) -> None:
    """Raise `InvalidNetwork` if the graph is not strongly connected."""
    count, component = graph.components()
    if count == 1:
        return
    if not graph.in_degree.all():
        client = graph.label(int(np.argmin(graph.in_degree)))
        reason = f"client {client} has no in-link"
        fix = "add a link to it"
    elif not graph.out_degree.all():
        client = graph.label(int(np.argmin(graph.out_degree)))
        reason = f"client {client} has no out-link"
        fix = "add a link from it"
    else:
        outside = graph.label(int(np.argmax(component != component[0])))
        reason = f"clients {graph.label(0)} and {outside} cannot reach each other both ways"
        fix = "add links between their groups"
    raise InvalidNetwork(f"the graph must be strongly connected, but {reason}; {fix}.")

"""Two spanning trees with one root: shortest paths to it and from it, by the prices of links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spodgt.errors import InvalidNetwork
from spodgt.network.network import DENSE_LIMIT, Network
from spodgt.types import Bools, Floats, Ints

_DEAREST = (
    1e12  # a price above which all count the same: sums of prices stay exact enough to be ordered
)


@dataclass(frozen=True, eq=False)
class Trees:
    """A root, and the links of its two trees.

    Args:
        root: The client.
        up: (links,) where a link leads one step towards the root: one out-link of every other client.
        down: (links,) where it leads one step away from the root: one in-link of every other client.
        members: (clients,) who can reach the root and be reached by it.
    """

    root: int
    up: Bools
    down: Bools
    members: Bools


def cheapest_trees(
    network: Network,
    prices: Floats,
    alive: Bools,
    *,
    one: bool = False,
    leaders: Bools | None = None,
) -> Trees:
    """The trees of the root with the least sum of prices to and from all others; the lowest number of equals.

    Args:
        network: Who can talk.
        prices: (links,) what the use of each link costs, at least 1.
        alive: (clients,) who may be a root or pass on anything.
        one: Both trees are one, of two-way links whose price is that of both ways; needs every reverse.
        leaders: (clients,) who of them may be the root, at least one; None: everybody.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    m, receivers, senders = network.clients, network.receivers, network.senders
    if m > DENSE_LIMIT:
        raise InvalidNetwork(
            f"trees need the prices between all pairs of at most {DENSE_LIMIT} clients, got {m}; "
            "use spod-gt-memory."
        )
    if one:
        assert network.reverse is not None, "links are two-way"
        prices = prices + prices[network.reverse]
    usable = alive[receivers] & alive[senders]
    cost = np.where(usable, np.clip(prices, 1.0, _DEAREST), np.inf)
    ends = senders[usable], receivers[usable]
    far = dijkstra(csr_array((cost[usable], ends), shape=(m, m)))  # [from, to]
    connected = np.isfinite(far) & np.isfinite(far.T)
    most = connected.sum(1) * (alive if leaders is None else alive & leaders)
    both = np.where(connected, far + far.T, 0.0).sum(1)
    root = int(
        np.lexsort((np.arange(m), both, -most))[0]
    )  # of the largest group that can talk to itself
    members = connected[root] & alive
    away, to = far[root][senders] + cost, cost + far[:, root][receivers]
    inside = members[receivers] & members[senders]
    down = _first(np.where(inside, away, np.inf), receivers, root)
    up = down[network.reverse] if one else _first(np.where(inside, to, np.inf), senders, root)
    return Trees(root, up, down, members)


def _first(prices: Floats, ends: Ints, root: int) -> Bools:
    """(links,): the cheapest link at the end of every client but the root, the first of equals."""
    order = np.lexsort((np.arange(len(ends)), prices, ends))
    order = order[np.isfinite(prices[order]) & (ends[order] != root)]
    chosen = np.zeros(len(ends), bool)
    chosen[order[np.unique(ends[order], return_index=True)[1]]] = True
    return chosen

"""Two spanning trees with one root: shortest paths to it and from it, by costs of links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spodgt.errors import InvalidNetwork
from spodgt.network.network import Network
from spodgt.network.weighted_digraph import DENSE_LIMIT
from spodgt.types import Bools, Floats, Ints

_MAX_COST = 1e12  # larger costs count as this one, so that sums of costs keep their order


@dataclass(frozen=True, eq=False)
class SpanningTrees:
    """A root and the links of its two trees.

    Args:
        root: Number of the root.
        up: (links,) links of the tree towards the root: one out-link of each other member.
        down: (links,) links of the tree away from the root: one in-link of each other member.
        members: (clients,) clients that can reach the root and be reached from it.
    """

    root: int
    up: Bools
    down: Bools
    members: Bools


def cheapest_trees(
    network: Network,
    costs: Floats,
    present: Bools,
    *,
    single_tree: bool = False,
    eligible_roots: Bools | None = None,
) -> SpanningTrees:
    """The trees of the root with the most members and, among these, the least total path cost.

    Ties are broken by the lowest number.

    Args:
        network: The links.
        costs: (links,) cost of each link, at least 1.
        present: (clients,) clients that may be a root or relay messages.
        single_tree: Use one tree of two-way links in both directions, by the sum of both costs;
            each link must have its reverse.
        eligible_roots: (clients,) clients that may be the root, at least one; None: all.

    Raises:
        InvalidNetwork: There are too many clients for a matrix of distances.
    """
    receivers = network.receivers
    senders = network.senders
    if network.clients > DENSE_LIMIT:
        raise InvalidNetwork(
            f"trees need the costs between all pairs of at most {DENSE_LIMIT} clients, got "
            f"{network.clients}; use spod-gt-memory."
        )
    if single_tree:
        assert network.reverse is not None, "links are two-way"
        costs = costs + costs[network.reverse]
    is_usable = present[receivers] & present[senders]
    costs = np.where(is_usable, np.clip(costs, 1.0, _MAX_COST), np.inf)
    distance = _distances(network, costs)
    root, members = _choose_root(distance, present, eligible_roots)

    is_inside = members[receivers] & members[senders]
    cost_from_root = np.where(is_inside, distance[root][senders] + costs, np.inf)
    down = _cheapest_link_per_client(cost_from_root, receivers, root)
    if single_tree:
        return SpanningTrees(root, down[network.reverse], down, members)
    cost_to_root = np.where(is_inside, costs + distance[:, root][receivers], np.inf)
    up = _cheapest_link_per_client(cost_to_root, senders, root)
    return SpanningTrees(root, up, down, members)


def _distances(network: Network, costs: Floats) -> Floats:
    """[from, to]: cost of the cheapest path; infinite if there is none."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    is_usable = np.isfinite(costs)
    ends = (network.senders[is_usable], network.receivers[is_usable])
    shape = (network.clients, network.clients)
    return np.asarray(dijkstra(csr_array((costs[is_usable], ends), shape=shape)))


def _choose_root(
    distance: Floats, present: Bools, eligible_roots: Bools | None
) -> tuple[int, Bools]:
    """The root, and (clients,) the clients connected with it in both directions."""
    is_connected = np.isfinite(distance) & np.isfinite(distance.T)
    may_lead = present if eligible_roots is None else present & eligible_roots
    member_count = is_connected.sum(1) * may_lead
    total_cost = np.where(is_connected, distance + distance.T, 0.0).sum(1)
    number = np.arange(len(distance))
    order = np.lexsort((number, total_cost, -member_count))  # the last key sorts first
    root = int(order[0])
    return root, is_connected[root] & present


def _cheapest_link_per_client(costs: Floats, ends: Ints, root: int) -> Bools:
    """(links,) the cheapest link of each client but the root; the first of equals."""
    order = np.lexsort((np.arange(len(ends)), costs, ends))
    order = order[np.isfinite(costs[order]) & (ends[order] != root)]
    _, first_of_client = np.unique(ends[order], return_index=True)
    is_chosen = np.zeros(len(ends), bool)
    is_chosen[order[first_of_client]] = True
    return is_chosen

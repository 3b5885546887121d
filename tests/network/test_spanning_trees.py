"""Two trees with one root: every path is a cheapest one, and no other root would be cheaper."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spodgt.errors import InvalidNetwork
from spodgt.network import Network, graphs
from spodgt.network.spanning_trees import SpanningTrees, cheapest_trees
from tests.strategies import SEEDS, networks


def path_cost(network: Network, chosen: Any, costs: Any, i: int, root: int, up: bool) -> float:
    """The cost of the way between client i and the root along chosen links, step by step."""
    total, here = 0.0, i
    for _ in range(network.clients):
        if here == root:
            return total
        ends = (network.senders, network.receivers) if up else (network.receivers, network.senders)
        (link,) = np.flatnonzero(chosen & (ends[0] == here))
        total, here = total + costs[link], int(ends[1][link])
    raise AssertionError(f"the way of client {i} is a circle")


def brute_force(network: Network, costs: Any, present: Any) -> dict[int, dict[int, float]]:
    """Distances by networkx, from every client present."""
    graph = nx.DiGraph()
    graph.add_nodes_from(np.flatnonzero(present).tolist())
    for j, i, cost in zip(network.senders.tolist(), network.receivers.tolist(), costs, strict=True):
        if present[i] and present[j]:
            graph.add_edge(j, i, weight=cost)
    return dict(nx.all_pairs_dijkstra_path_length(graph))


@given(networks(most=8), SEEDS, st.booleans())
def test_trees_are_cheapest_and_so_is_the_root(
    network: Network, seed: int, some_gone: bool
) -> None:
    rng = np.random.default_rng(seed)
    costs = 1 / rng.uniform(0.01, 1, network.links)
    present = rng.random(network.clients) < (0.7 if some_gone else 1.1)
    present[rng.integers(network.clients)] = True
    trees, far = cheapest_trees(network, costs, present), brute_force(network, costs, present)
    groups = {i: [j for j in far if j in far[i] and i in far[j]] for i in far}
    members = set(np.flatnonzero(trees.members).tolist())
    assert members == set(groups[trees.root])
    assert len(members) == max(map(len, groups.values()))
    sums = {i: sum(far[i][j] + far[j][i] for j in group) for i, group in groups.items()}
    rivals = [sums[i] for i, group in groups.items() if len(group) == len(members)]
    assert sums[trees.root] <= min(rivals) * (1 + 1e-12)
    assert trees.up.sum() == trees.down.sum() == len(members) - 1
    for i in members:
        up = path_cost(network, trees.up, costs, i, trees.root, up=True)
        down = path_cost(network, trees.down, costs, i, trees.root, up=False)
        np.testing.assert_allclose([up, down], [far[i][trees.root], far[trees.root][i]], rtol=1e-12)


def test_equal_costs_take_the_first_and_tiny_probabilities_do_no_harm() -> None:
    network = Network.draw(graphs.Complete(5))
    everyone = np.ones(5, bool)
    trees = cheapest_trees(network, np.ones(network.links), everyone)
    assert trees.root == 0
    assert (
        set(network.senders[trees.down].tolist())
        == set(network.receivers[trees.up].tolist())
        == {0}
    )
    ring = Network.ring(6)
    dear = cheapest_trees(ring, np.full(6, 1 / np.finfo(float).tiny), np.ones(6, bool))
    assert dear.up.sum() == dear.down.sum() == 5


def test_the_root_is_chosen_among_those_who_may_lead() -> None:
    network = Network.draw(graphs.Complete(5))
    costs, everyone = np.ones(network.links), np.ones(5, bool)
    assert cheapest_trees(network, costs, everyone, eligible_roots=np.arange(5) == 3).root == 3
    assert (
        cheapest_trees(network, costs, np.arange(5) != 1, eligible_roots=np.arange(5) >= 1).root
        == 2
    )


def test_one_client_is_its_own_root() -> None:
    trees: SpanningTrees = cheapest_trees(
        Network.draw(graphs.Complete(1)), np.empty(0), np.ones(1, bool)
    )
    assert trees.root == 0
    assert trees.members.all()


def test_too_many_clients_are_refused() -> None:
    network = Network.ring(2001)
    with pytest.raises(
        InvalidNetwork, match=r"^trees need .* at most 2000 clients, got 2001; use spod-gt"
    ):
        cheapest_trees(network, np.ones(2001), np.ones(2001, bool))

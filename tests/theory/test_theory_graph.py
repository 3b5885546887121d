"""Perron vectors, edge utility and the doubly stochastic question, each against another way to get it."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from spodgt import theory
from spodgt.errors import InvalidNetwork
from spodgt.network import Network, graphs
from spodgt.network.graphs import GraphRecipe, KOut, Ring
from spodgt.types import Floats
from tests.theory.coverings import greedy_covering


def residuals(network: Network, p_hat: Floats) -> tuple[float, float, float, float]:
    A, B = theory.expected_matrices(network, p_hat)
    phi, pi = theory.perron_vectors(network, p_hat)
    assert phi.min() > 0
    assert pi.min() > 0
    return (
        np.abs(phi @ A - phi).sum(),
        np.abs(B @ pi - pi).sum(),
        abs(phi.sum() - 1),
        abs(pi.sum() - 1),
    )


networks = st.builds(
    lambda clients, seed, weights: Network.draw(
        graphs.ErdosRenyi(clients, 0.5), seed=seed, weights=weights
    ),
    st.integers(2, 5),
    st.integers(0, 10_000),
    st.sampled_from(["degree", "random"]),
)


@settings(deadline=None)
@given(network=networks, seed=st.integers(0, 10_000))
def test_perron_vectors(network: Network, seed: int) -> None:
    p_hat = 10 ** np.random.default_rng(seed).uniform(-6, 0, network.links)
    assert max(residuals(network, p_hat)) <= 1e-14


@pytest.mark.parametrize("recipe", [Ring(10_000), KOut(10_000, 16)], ids=lambda recipe: recipe.name)
def test_perron_vectors_of_ten_thousand_clients(recipe: GraphRecipe) -> None:
    """The ring mixes in 10⁸ rounds, the other in ten: factorised and iterated."""
    network = Network.draw(recipe, seed=1)
    p_hat = np.random.default_rng(0).uniform(0.1, 1, network.links)
    assert max(residuals(network, p_hat)) <= 1e-14


def test_perron_vectors_of_ten_thousand_clients_in_the_plane() -> None:
    network = Network.directed_geometric(10_000, 0.02, 0.04, seed=0)
    p_hat = np.random.default_rng(0).uniform(0.1, 1, network.links)
    assert max(residuals(network, p_hat)) <= 1e-14


def test_perron_vectors_of_two_way_links() -> None:
    """Where B = Aᵀ and links never fail, both vectors are proportional to 1 + degree."""
    network = Network.random_geometric(12, 0.5, seed=3)
    expected = (1 + network.in_degree) / (1 + network.in_degree).sum()
    for vector in theory.perron_vectors(network):
        np.testing.assert_allclose(vector, expected, rtol=1e-13)


def best_utility(network: Network) -> tuple[int, int]:
    """K(G) by trying every covering of the ordered pairs by shortest paths."""
    graph = network.graph
    choices = [
        [list(itertools.pairwise(path)) for path in nx.all_shortest_paths(graph, s, t)]
        for s, t in itertools.permutations(graph, 2)
    ]
    utilities = [
        max(sum(link in path for path in covering) for link in graph.edges)
        for covering in itertools.product(*choices)
    ]
    return max(utilities), min(utilities)


@settings(deadline=None, max_examples=30)
@given(clients=st.integers(2, 4), seed=st.integers(0, 10_000))
def test_edge_utility_by_brute_force(clients: int, seed: int) -> None:
    network = Network.draw(graphs.ErdosRenyi(clients, 0.5), seed=seed)
    found, (largest, smallest) = theory.edge_utility(network), best_utility(network)
    assert found.diameter == nx.diameter(network.graph)
    assert found.edge_utility == largest <= found.upper_bound
    assert found.covering_lower_bound <= smallest <= greedy_covering(network) <= largest


@pytest.mark.parametrize("m", [3, 6, 9])
def test_edge_utility_of_known_graphs(m: int) -> None:
    assert theory.edge_utility(Network.ring(m)).edge_utility == m * (m - 1) // 2
    assert theory.edge_utility(Network.draw(graphs.Complete(m))).edge_utility == 1
    assert theory.edge_utility(Network.draw(graphs.Star(m))).edge_utility == m - 1
    path = Network.from_networkx(nx.path_graph(m))
    assert theory.edge_utility(path).edge_utility == m**2 // 4
    bottleneck = nx.DiGraph(
        [(0, 1), *((s, 0) for s in range(2, m)), *((1, s) for s in range(2, m))]
    )
    found = theory.edge_utility(Network.from_networkx(bottleneck))
    assert found.edge_utility == found.upper_bound == m * m - 3 * m + 3


def has_doubly_stochastic_weights(network: Network, self_loops: bool) -> bool:
    """The same question to a linear program: the largest smallest weight must be positive."""
    m = network.clients
    entries = list(zip(network.receivers, network.senders, strict=True))
    entries += [(i, i) for i in range(m)] if self_loops else []
    sums = np.zeros((2 * m, len(entries) + 1))
    for column, (i, j) in enumerate(entries):
        sums[i, column] = sums[m + j, column] = 1
    smallest = np.hstack([-np.eye(len(entries)), np.ones((len(entries), 1))])  # t <= every weight
    cost = np.zeros(len(entries) + 1)
    cost[-1] = -1
    program = linprog(
        cost,
        A_ub=smallest,
        b_ub=np.zeros(len(entries)),
        A_eq=sums,
        b_eq=np.ones(2 * m),
        bounds=(0, 1),
    )
    return bool(program.status == 0 and -program.fun > 1e-9)


@settings(deadline=None, max_examples=60)
@given(clients=st.integers(2, 6), density=st.floats(0.3, 0.9), seed=st.integers(0, 10_000))
def test_doubly_stochasticable(clients: int, density: float, seed: int) -> None:
    network = Network.draw(graphs.ErdosRenyi(clients, density), seed=seed)
    for self_loops in (False, True):
        expected = has_doubly_stochastic_weights(network, self_loops)
        assert theory.doubly_stochasticable(network, self_loops) == expected
    assert theory.doubly_stochasticable(
        network
    )  # self-loops make it a matter of strong connectivity


def test_doubly_stochasticable_of_known_graphs() -> None:
    assert theory.doubly_stochasticable(Network.ring(5), self_loops=False)
    assert not theory.doubly_stochasticable(Network.draw(graphs.Star(5)), self_loops=False)
    # perfect matchings exist, but the chord 0 -> 2 is on none
    chord = Network.from_adjacency([[0, 0, 0, 1], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]])
    assert not theory.doubly_stochasticable(chord, self_loops=False)


def test_no_path_is_an_error() -> None:
    ring = Network.ring(3)
    cut = {name: getattr(ring, name)[:2] for name in ("receivers", "senders", "a", "b")}
    with pytest.raises(InvalidNetwork, match="no path leads from client"):
        theory.edge_utility(replace(ring, **cut))

"""Weights, views and what a network refuses."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import spodgt
from spodgt.errors import InvalidNetwork
from spodgt.network import Network, as_network, graphs
from spodgt.network.graphs import Graph
from tests.strategies import SEEDS, graph, networks


@given(networks())
def test_weights_are_stochastic_and_live_on_the_links(network: Network) -> None:
    m = network.clients
    np.testing.assert_allclose(network.A.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(network.B.sum(0), 1, atol=1e-12)
    for matrix in (network.A, network.B):
        assert (np.diag(matrix) > 0).all()
        np.testing.assert_array_equal(matrix > 0, network.adjacency | np.eye(m, dtype=bool))
    assert network.links == network.adjacency.sum()
    np.testing.assert_array_equal(network.in_degree, network.adjacency.sum(1))
    np.testing.assert_array_equal(network.out_degree, network.adjacency.sum(0))


@given(networks(least=2))
def test_the_papers_degree_rule(network: Network) -> None:
    again = Network.from_adjacency(network.adjacency)
    for i in range(again.clients):
        for j in range(again.clients):
            if again.adjacency[i, j]:
                assert again.A[i, j] == pytest.approx(1 / (1 + again.in_degree[i]))
                assert again.B[i, j] == pytest.approx(1 / (1 + again.out_degree[j]))


@given(networks(least=2))
def test_metropolis_weights_where_links_are_two_way(network: Network) -> None:
    both = Network.from_adjacency(network.adjacency | network.adjacency.T)
    assert both.two_way
    np.testing.assert_allclose(both.W, both.W.T)
    np.testing.assert_allclose(both.W.sum(1), 1, atol=1e-12)
    degree = both.in_degree
    for i, j in zip(both.receivers, both.senders, strict=True):
        assert both.W[i, j] == pytest.approx(1 / (1 + max(degree[i], degree[j])))
    assert both.reverse is not None
    np.testing.assert_array_equal(both.receivers[both.reverse], both.senders)


@given(networks())
def test_there_and_back_through_networkx(network: Network) -> None:
    again = Network.from_networkx(network.graph)
    np.testing.assert_array_equal(again.adjacency, network.adjacency)


def test_directions_of_networkx_and_of_adjacency() -> None:
    """Edge (u, v) sends from u to v; adjacency[i, j] is i hearing j."""
    edges = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")]
    network = Network.from_networkx(nx.DiGraph(edges))
    assert network.adjacency.tolist() == [[0, 0, 1], [1, 0, 0], [1, 1, 0]]
    assert network.in_degree.tolist() == [1, 1, 2]
    assert network.out_degree.tolist() == [2, 1, 1]
    assert Network.from_networkx(nx.path_graph(3)).two_way, (
        "an undirected graph has links both ways"
    )


@given(st.integers(2, 8), SEEDS)
def test_random_weights_differ_between_links(clients: int, seed: int) -> None:
    network = Network.draw(graphs.Complete(clients), weights="random", seed=seed)
    assert len(np.unique(network.a)) == network.links
    np.testing.assert_array_equal(
        network.a, Network.draw(graphs.Complete(clients), weights="random", seed=seed).a
    )


def test_a_recipe_is_drawn_anew_and_a_network_is_held() -> None:
    recipe = spodgt.graphs.RandomGeometric(8, 0.5)
    assert as_network(recipe, 1).links != as_network(recipe, 2).links
    fixed = Network.ring(4)
    assert as_network(fixed, 1) is fixed
    assert as_network(recipe, 1, "random").a.std() > 0


@pytest.mark.parametrize(
    "network",
    [
        Network.random_geometric(6, 0.6),
        Network.directed_geometric(6, 0.5, 0.9),
        Network.ring(6),
        Network.exponential(6),
        Network.draw(graphs.Complete(6)),
        Network.draw(graphs.Star(6)),
        Network.draw(graphs.ErdosRenyi(6, 0.6)),
        Network.draw(graphs.KOut(6, 4)),
        Network.draw(graphs.KRegular(6, 2)),
    ],
    ids=lambda network: f"{network.links} links",
)
def test_shortcuts_build_networks(network: Network) -> None:
    assert network.clients == 6
    assert nx.is_strongly_connected(network.graph)


def weighted(edges: dict[tuple[str, str], Any]) -> nx.DiGraph:
    graph = nx.DiGraph()
    for (u, v), weight in edges.items():
        graph.add_edge(u, v, weight=weight)
    return graph


HALVES = np.full(9, 0.5)
RING = np.roll(np.eye(3, dtype=bool), 1, 0)  # 0 → 1 → 2 → 0
HALF = np.where(RING | np.eye(3, dtype=bool), 0.5, 0.0)


def changed(matrix: Any, i: int, j: int, value: float) -> Any:
    other = np.array(matrix, float)
    other[i, j] = value
    return other


BAD: dict[str, tuple[Any, str]] = {
    "no path": (
        lambda: graph(3, [(0, 1), (1, 0), (1, 2)]),
        "the graph must be strongly connected, but client 2 has no out-link; add a link from it.",
    ),
    "unheard": (
        lambda: graph(3, [(0, 1), (1, 0), (2, 1)]),
        "the graph must be strongly connected, but client 2 has no in-link; add a link to it.",
    ),
    "two groups": (
        lambda: graph(4, [(0, 1), (1, 0), (2, 3), (3, 2)]),
        "the graph must be strongly connected, but clients 0 and 2 cannot reach each other both ways; "
        "add links between their groups.",
    ),
    "empty graph": (
        lambda: Network.from_networkx(nx.DiGraph()),
        "the graph must have at least one client, got none; add nodes.",
    ),
    "no matrix": (
        lambda: Network.from_adjacency([[0, 1], [1]]),
        "adjacency must be a matrix of real numbers, got [[0, 1], [1]].",
    ),
    "not square": (
        lambda: Network.from_adjacency(np.ones((2, 3))),
        "adjacency must be a square (clients, clients) matrix, got shape (2, 3).",
    ),
    "multigraph": (
        lambda: Network.from_networkx(nx.MultiDiGraph([(0, 1), (1, 0)])),
        "graph must be a Graph or DiGraph, got a multigraph; use networkx.DiGraph(graph).",
    ),
    "not networkx": (
        lambda: Network.from_networkx(RING),
        "graph must be a networkx Graph or DiGraph, got ndarray; use from_adjacency for a matrix.",
    ),
    "weights": (
        lambda: Network.ring(3, weights="equal"),
        "weights must be one of degree, random, given, got 'equal'; use degree.",
    ),
    "rows": (
        lambda: Network.from_adjacency(RING, A=changed(HALF, 1, 1, 0.4)),
        "A must have rows that sum to one, but row 1 sums to 0.9. "
        "Row i weighs what client i receives; if columns sum to one, it is B.",
    ),
    "columns": (
        lambda: Network.from_adjacency(RING, B=changed(HALF, 1, 1, 0.7)),
        "B must have columns that sum to one, but column 1 sums to 1.2. "
        "Column j weighs what client j sends; if rows sum to one, it is A.",
    ),
    "negative": (
        lambda: Network.from_adjacency(RING, A=changed(HALF, 0, 1, -0.1)),
        "A must be finite and non-negative, but A[0, 1] is -0.1; set it to 0 or remove link 1 → 0.",
    ),
    "not finite": (
        lambda: Network.from_adjacency(RING, A=changed(HALF, 0, 2, np.nan)),
        "A must be finite and non-negative, but A[0, 2] is nan; set it to 0 or remove link 2 → 0.",
    ),
    "no self-weight": (
        lambda: Network.from_adjacency(RING, A=RING.astype(float)),
        "A must have positive self-weights, but A[0, 0] is 0; leave client 0 some weight for itself.",
    ),
    "unweighed link": (
        lambda: Network.from_adjacency(RING, A=np.eye(3)),
        "A must weigh every link, but link 2 → 0 has weight 0; remove the link.",
    ),
    "stray weight": (
        lambda: Network.from_adjacency(RING, A=np.full((3, 3), 1 / 3)),
        "A must be zero where there is no link, but A[0, 1] is 0.333; add link 1 → 0 or set it to 0.",
    ),
    "wrong size": (
        lambda: Network.from_adjacency(RING, A=np.eye(4)),
        "A must be (3, 3) like the adjacency, got (4, 4).",
    ),
    "not symmetric": (
        lambda: Network.from_adjacency(
            ~np.eye(3, dtype=bool), W=[[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]]
        ),
        "W must be symmetric, but W[0, 1] is 0.3 and W[1, 0] is 0.2; use (W + W.T) / 2.",
    ),
    "no W": (
        lambda: Network.ring(3).W,
        "W exists only where every link has its reverse, and link 2 → 0 has none; "
        "add link 0 → 2 or use a method for directed graphs.",
    ),
    "dense": (
        lambda: Network.ring(3000).A,
        "a dense matrix of 3000 clients is not made above 2000; use network.receivers, network.senders and "
        "the link weights network.a, network.b.",
    ),
    "no network": (
        lambda: as_network(nx.DiGraph(), 0),
        "network must be a spodgt.Network or a recipe of spodgt.graphs, got DiGraph; "
        "use spodgt.Network.from_networkx(graph) for a networkx graph.",
    ),
    "class of recipes": (
        lambda: as_network(spodgt.graphs.Ring, 0),  # type: ignore[arg-type]
        "network must be a spodgt.Network or a recipe of spodgt.graphs, got the class Ring; "
        "use spodgt.graphs.Ring(…) with its arguments.",
    ),
    "nan": (
        lambda: Network.from_adjacency(changed(RING, 0, 1, np.nan)),
        "adjacency must be finite, but [0, 1] is nan; set it to 0 or 1.",
    ),
    "complex": (
        lambda: Network.from_adjacency(RING * 1j),
        "adjacency must be a matrix of real numbers, got complex ones; use its real part.",
    ),
    "sparse complex": (
        lambda: Network.from_adjacency(sparse.coo_array(RING * 1j)),
        "adjacency must be a matrix of real numbers, got complex128.",
    ),
    "sparse A": (
        lambda: Network.from_adjacency(RING, A=sparse.eye_array(4)),
        "A must be (3, 3) like the adjacency, got (4, 4).",
    ),
    "tensor that needs a gradient": (
        lambda: Network.from_adjacency(torch.ones(2, 2, requires_grad=True)),
        "adjacency must be a matrix of real numbers, got tensor([[1., 1.], [1., 1.]], requires_grad=True).",
    ),
    "too many": (
        lambda: Network.ring(10**12),
        "clients must be at most 1,000,000,000, got about 10^12; use clients=10.",
    ),
    "far too many": (
        lambda: Network.ring(10**5000),
        "clients must be at most 1,000,000,000, got about 10^5000; use clients=10.",
    ),
    "too large": (
        lambda: Network.draw(graphs.Complete(10**8)),
        "Complete(clients=100000000) does not fit into memory; use fewer clients or links.",
    ),
    "link out of range": (
        lambda: Graph.of(3, [0], [5]),
        "senders must be clients from 0 to 2, but link 0 has 5; correct it or use more clients.",
    ),
    "negative link": (
        lambda: Graph.of(3, [0, -1], [1, 2]),
        "receivers must be clients from 0 to 2, but link 1 has -1; correct it or use more clients.",
    ),
    "unequal ends": (
        lambda: Graph.of(3, [0, 1], [1]),
        "receivers and senders must have one entry per link, got 2 and 1.",
    ),
    "ends in halves": (
        lambda: Graph.of(3, [0.5], [1]),
        "receivers must be a list of whole numbers, one per link, got [0.5].",
    ),
    "ragged ends": (
        lambda: Graph.of(3, [0, [1]], [1, 2]),  # type: ignore[arg-type]
        "receivers must be a list of whole numbers, one per link, got [0, [1]].",
    ),
    "no clients": (
        lambda: Graph.of("three", [0], [1]),  # type: ignore[arg-type]
        "clients must be a whole number of at most 1,000,000,000, got 'three'; use 10.",
    ),
    "weights of a kind": (
        lambda: Network.ring(3, weights=["degree"]),  # type: ignore[arg-type]
        "weights must be one of degree, random, given, got ['degree']; use degree.",
    ),
    "no graph": (
        lambda: Network.from_graph(nx.DiGraph()),
        "graph must be a Graph, got DiGraph; use spodgt.graphs.Graph.of.",
    ),
    "nodelist that is none": (
        lambda: Network.from_networkx(nx.DiGraph([("a", "b"), ("b", "a")]), nodelist=5),  # type: ignore[arg-type]
        "nodelist must hold every node once, got 5.",
    ),
    "names in one text": (
        lambda: Network.from_adjacency(RING, names="abc"),
        "names must be 3 texts, one per client, got ('abc',).",
    ),
    "positions": (
        lambda: Network(
            2, np.array([0, 1]), np.array([1, 0]), HALVES[:2], HALVES[:2], None, np.ones((3, 2))
        ),
        "positions must be (2, 2), one row per client, got (3, 2).",
    ),
    "weights of a graph": (
        lambda: Graph.of(3, [0], [1], weights=np.ones(2)),
        "weights must be 1, one per link, got array([1., 1.]).",
    ),
    "loop": (
        lambda: Network(2, np.array([0, 1, 1]), np.array([1, 0, 1]), HALVES[:3], HALVES[:3], None),
        "links must join two clients, but link 2 joins client 1 and itself; leave it out, or use Graph.of.",
    ),
    "repeat": (
        lambda: Network(2, np.array([0, 1, 0]), np.array([1, 0, 1]), HALVES[:3], HALVES[:3], None),
        "links must differ, but link 1 → 0 is there twice; leave one out, or use Graph.of.",
    ),
    "weights of other links": (
        lambda: Network(2, np.array([0, 1]), np.array([1, 0]), HALVES[:2], HALVES[:3], None),
        "b must be 2 finite numbers above 0, one per link, got array([0.5, 0.5, 0.5]).",
    ),
    "names of others": (
        lambda: Network.from_adjacency(RING, names=["a", "b"]),
        "names must be 3 texts, one per client, got ('a', 'b').",
    ),
    "names twice": (
        lambda: Network.from_adjacency(RING, names=["a", "b", "a"]),
        "names must differ, but 'a' is there twice; rename one of them.",
    ),
    "nodes of one name": (
        lambda: Network.from_networkx(nx.DiGraph([(1, "1"), ("1", 1)])),
        "nodes 1 and '1' have the same name; rename one of them.",
    ),
    "nodelist": (
        lambda: Network.from_networkx(nx.DiGraph([("a", "b"), ("b", "a")]), nodelist=["a"]),
        "nodelist must hold every node once, got ['a'].",
    ),
    "unheard by name": (
        lambda: Network.from_networkx(
            nx.DiGraph([("lima", "oslo"), ("oslo", "lima"), ("bern", "oslo")])
        ),
        "the graph must be strongly connected, but client bern has no in-link; add a link to it.",
    ),
    "no W by name": (
        lambda: Network.from_networkx(nx.DiGraph([("c", "a"), ("a", "b"), ("b", "c")])).W,
        "W exists only where every link has its reverse, and link c → a has none; "
        "add link a → c or use a method for directed graphs.",
    ),
    "weighted edges": (
        lambda: Network.from_networkx(weighted({("b", "a"): 1, ("a", "b"): 2.5})),
        "the graph has edge weights (edge a → b has 2.5); "
        "use weights='given' to use them or weights='degree' to ignore them.",
    ),
    "weighted adjacency": (
        lambda: Network.from_adjacency([[0, 2], [1, 0]]),
        "the graph has edge weights (edge 1 → 0 has 2); "
        "use weights='given' to use them or weights='degree' to ignore them.",
    ),
    "weight zero": (
        lambda: Network.from_networkx(weighted({("b", "a"): 1, ("a", "b"): 0}), weights="given"),
        "weights of edges must be finite and above 0, but edge a → b has 0; correct it.",
    ),
    "weight in words": (
        lambda: Network.from_networkx(
            weighted({("b", "a"): 1, ("a", "b"): "heavy"}), weights="given"
        ),
        "weights of edges must be finite and above 0, but edge a → b has no number; correct it.",
    ),
    "weight of a loop": (
        lambda: Network.from_adjacency([[-1, 2], [1, 0]], weights="given"),
        "weights of self-loops must be finite and above 0, but client 0 has -1; correct it or leave it out.",
    ),
    "no weights": (
        lambda: Network.ring(3, weights="given"),
        "weights='given' needs weights on the edges, got none; use weights='degree'.",
    ),
    "radius": (
        lambda: Network.random_geometric(10, 0.05),
        "RandomGeometric(clients=10, radius=0.05) gave no strongly connected graph in 1000 draws (seed 0); "
        "use a larger radius or more clients.",
    ),
    "radius zero": (
        lambda: Network.random_geometric(10, 0),
        "radius must be above 0, got 0; use radius=0.4.",
    ),
    "radius text": (
        lambda: Network.random_geometric(10, "wide"),  # type: ignore[arg-type]
        "radius must be above 0, got 'wide'; use radius=0.4.",
    ),
    "low and high": (
        lambda: Network.directed_geometric(10, 0.6, 0.3),
        "low and high must satisfy 0 < low ≤ high, got low=0.6, high=0.3; use low=0.3, high=0.6.",
    ),
    "clients": (
        lambda: Network.ring(0),
        "clients must be a whole number of at least 1, got 0; use clients=10.",
    ),
    "clients true": (
        lambda: Network.ring(True),
        "clients must be a whole number of at least 1, got True; use clients=10.",
    ),
    "probability": (
        lambda: Network.draw(graphs.ErdosRenyi(5, 1.5)),
        "probability must be in (0, 1], got 1.5; use probability=0.4.",
    ),
    "out": (
        lambda: Network.draw(graphs.KOut(3, 3)),
        "out must be a whole number from 1 to clients - 1 = 2, got 3; use out=2.",
    ),
    "degree": (
        lambda: Network.draw(graphs.KRegular(5, 2.5)),  # type: ignore[arg-type]
        "degree must be a whole number from 1 to clients - 1 = 4, got 2.5; use degree=3.",
    ),
    "seed": (
        lambda: Network.random_geometric(5, 0.9, seed=-1),
        "seed must be a whole number of at least 0, got -1; use 0.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_networks_are_refused_in_one_sentence(case: str) -> None:
    build, sentence = BAD[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        build()
    assert str(caught.value) == sentence
    assert isinstance(caught.value, InvalidNetwork) or case == "seed"


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("complete", spodgt.graphs.Complete(4)),
        ("star", spodgt.graphs.Star(4)),
        ("erdos_renyi", spodgt.graphs.ErdosRenyi(4, 0.7)),
        ("k_out", spodgt.graphs.KOut(4, 2)),
        ("k_regular", spodgt.graphs.KRegular(4, 2)),
    ],
)
def test_network_graph_methods_are_deprecated_for_recipes(name: str, recipe: Any) -> None:
    fields = [value for value in vars(recipe).values() if isinstance(value, int | float)]
    with pytest.warns(DeprecationWarning, match=rf"draw\(spodgt\.graphs\.{type(recipe).__name__}"):
        network = getattr(Network, name)(*fields, seed=1)
    np.testing.assert_array_equal(network.A, Network.draw(recipe, seed=1).A)

"""Graphs a user has: the same clients, links and weights by every route, whatever the order of insertion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

import spodgt
from spodgt.experiment import Experiment
from spodgt.network import GraphFile, Network
from spodgt.network.graphs import Graph
from tests.strategies import SEEDS, networks

ROUTES = (".graphml", ".gml", ".edgelist", ".csv")
NAMES = {
    "numbers": [str(i) for i in range(12)],
    "from one": [str(i + 1) for i in range(12)],
    "words": ["oslo", "lima", "bern", "rome", "n2", "n10", "n1", "N2", "a b"[:1], "2b", "10", "2"],
}


def same(one: Network, other: Network) -> None:
    for name in ("receivers", "senders", "a", "b"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.w is None) == (other.w is None)
    assert one.w is None or np.array_equal(one.w, other.w)  # type: ignore[arg-type]
    assert (one.clients, one.names) == (other.clients, other.names)


def written(graph: nx.DiGraph, path: Path) -> Path:
    """The graph in a file, in the order in which it was built."""
    if path.suffix == ".csv":
        nodes = list(graph)
        matrix = nx.to_numpy_array(graph, nodelist=nodes).T  # [receiver, sender]
        rows = [[node, *map(repr, row.tolist())] for node, row in zip(nodes, matrix, strict=True)]
        path.write_text("\n".join(",".join(map(str, row)) for row in [["", *nodes], *rows]))
    elif path.suffix == ".edgelist":
        heavy = any("weight" in data for *_, data in graph.edges(data=True))
        nx.write_edgelist(graph, path, data=["weight"] if heavy else False)
    else:
        {".gml": nx.write_gml, ".graphml": nx.write_graphml}[path.suffix](graph, path)
    return path


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[Network, nx.DiGraph, nx.DiGraph, bool]:
    """A network, and its graph built twice in other orders; whether edges have weights."""
    network, heavy = draw(networks(least=2)), draw(st.booleans())
    names, draws = NAMES[draw(st.sampled_from(list(NAMES)))], np.random.default_rng(draw(SEEDS))
    weight = draws.choice([0.5, 1.5, 3.0], (network.clients, network.clients))
    built = []
    for as_number in (True, False):
        graph = nx.DiGraph()
        nodes: list[Any] = [int(name) if as_number and name.isdecimal() else name for name in names]
        for node in draws.permutation(network.clients)[: draws.integers(network.clients + 1)]:
            graph.add_node(nodes[node])
        for link in draws.permutation(network.links):
            j, i = int(network.senders[link]), int(network.receivers[link])
            graph.add_edge(nodes[j], nodes[i], **({"weight": float(weight[i, j])} if heavy else {}))
        built.append(graph)
    return network, built[0], built[1], heavy


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(shuffled(), st.sampled_from(ROUTES))
def test_a_graph_is_one_network_by_every_route(
    tmp_path: Path, made: tuple[Network, nx.DiGraph, nx.DiGraph, bool], suffix: str
) -> None:
    network, one, other, heavy = made
    weights = "given" if heavy else None
    first = Network.from_networkx(one, weights=weights)
    same(first, Network.from_networkx(other, weights=weights))
    same(
        first,
        Network.draw(GraphFile(str(written(other, tmp_path / f"net{suffix}"))), weights=weights),
    )
    if set(map(str, one)) == set(NAMES["numbers"][: network.clients]):
        assert first.names is None
        np.testing.assert_array_equal(first.adjacency, network.adjacency)
    for j, i in zip(first.senders, first.receivers, strict=True):
        assert (first.label(j), first.label(i)) in {(str(u), str(v)) for u, v in one.edges}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(shuffled(), st.sampled_from(ROUTES))
def test_a_graph_is_one_experiment_by_every_route(
    tmp_path: Path, made: tuple[Network, nx.DiGraph, nx.DiGraph, bool], suffix: str
) -> None:
    network, one, other, heavy = made
    rule = {"weights": "given"} if heavy else {}
    tables = {
        "run": {"methods": ["spod-gt"], "rounds": 4, "seeds": [3]},
        "network": {"kind": "file", "path": str(written(other, tmp_path / f"net{suffix}")), **rule},
        "participation": {"kind": "bernoulli", "p": list(np.linspace(0.3, 0.9, network.clients))},
        "problem": {"kind": "quadratic", "parameters": 2},
    }
    experiment = Experiment.parse(tables)
    ours = spodgt.run(experiment)
    theirs = spodgt.compare(
        ["spod-gt"], experiment.base_problem, Network.from_networkx(one, **rule),  # type: ignore[arg-type]
        experiment.participation, rounds=4, seeds=[3],
    )  # fmt: skip
    for table in ("networks", "participation"):
        assert getattr(ours, table).equals(getattr(theirs, table))
    assert ours.frame.equals(theirs.frame)


def test_names_are_sorted_numbers_in_them_by_value() -> None:
    graph = nx.DiGraph(nx.utils.pairwise(["n10", "n2", "b", "10", "9", "n1"], cyclic=True))
    assert Network.from_networkx(graph).names == ("9", "10", "b", "n1", "n2", "n10")
    nodes = ["n1", "n2", "n10", "b", "9", "10"]
    assert Network.from_networkx(graph, nodelist=nodes).names == tuple(nodes)
    assert Network.from_networkx(nx.grid_2d_graph(2, 2)).names == (
        "(0, 0)",
        "(0, 1)",
        "(1, 0)",
        "(1, 1)",
    )
    assert list(Network.from_networkx(graph).graph) == ["9", "10", "b", "n1", "n2", "n10"]


@given(networks(least=2), SEEDS)
def test_links_in_another_order_are_the_same_network(network: Network, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(network.links)
    w = None if network.w is None else network.w[order]
    ends = network.receivers[order], network.senders[order]
    same(network, Network(network.clients, *ends, network.a[order], network.b[order], w))
    by_degree = Network.from_adjacency(network.adjacency)
    same(by_degree, Network.from_graph(Graph(network.clients, *ends)))
    same(
        by_degree, Network.from_graph(Graph.of(network.clients, *(np.r_[end, end] for end in ends)))
    )


def test_a_ring_with_its_links_backwards_mixes_like_the_ring() -> None:
    backwards = Network.from_graph(Graph(3, np.array([2, 1, 0]), np.array([1, 0, 2])))
    problem = spodgt.Quadratic.random(3, 2, seed=1)
    runs = [
        spodgt.train("spod-gt", problem, net, rounds=50, keep_states=True).states[0].x
        for net in (backwards, Network.ring(3))
    ]
    assert torch.equal(*runs)


# --- weights of edges ----------------------------------------------------------------------------------
@given(networks(least=2), SEEDS)
def test_given_weights_divide_rows_and_columns(network: Network, seed: int) -> None:
    draws = np.random.default_rng(seed)
    M = network.adjacency * draws.uniform(0.1, 5, (network.clients,) * 2)
    loops = np.where(
        draws.random(network.clients) < 0.5, draws.uniform(0.1, 5, network.clients), 0.0
    )
    ours = Network.from_adjacency(M + np.diag(loops), weights="given")
    for matrix, axis in ((ours.A, 1), (ours.B, 0)):
        own = np.where(loops > 0, loops, M.sum(axis) / (M > 0).sum(axis))
        whole = M + np.diag(own)
        np.testing.assert_allclose(matrix, whole / whole.sum(axis, keepdims=True), atol=1e-12)
    same(ours, Network.from_adjacency(sparse.csr_array(M + np.diag(loops)), weights="given"))
    scaled = Network.from_adjacency(7 * (M + np.diag(loops)), weights="given")
    np.testing.assert_allclose(scaled.A, ours.A)


@given(networks(least=2), st.floats(0.01, 100))
def test_equal_weights_are_the_rule_by_degree(network: Network, weight: float) -> None:
    given_weights = Network.from_adjacency(network.adjacency * weight, weights="given")
    by_degree = Network.from_adjacency(network.adjacency)
    for name in ("a", "b", "w"):
        if getattr(by_degree, name) is not None:
            np.testing.assert_allclose(
                getattr(given_weights, name), getattr(by_degree, name), rtol=1e-12
            )
    same(by_degree, Network.from_adjacency(network.adjacency * weight, weights="degree"))


@given(networks(least=2), SEEDS)
def test_given_weights_gossip_symmetrically(network: Network, seed: int) -> None:
    both = network.adjacency | network.adjacency.T
    weights = both * np.random.default_rng(seed).uniform(0.1, 5, both.shape)
    W = Network.from_adjacency(weights, weights="given").W
    np.testing.assert_allclose(W, W.T, atol=1e-12)
    np.testing.assert_allclose(W.sum(1), 1, atol=1e-12)
    assert (np.diag(W) > 0).all()


def test_weights_of_one_mean_nothing() -> None:
    graph = nx.from_numpy_array(
        np.roll(np.eye(3), 1, 1), create_using=nx.DiGraph
    )  # every edge has weight 1
    same(Network.from_networkx(graph), Network.ring(3))


def test_a_file_with_weights_needs_to_be_told_what_they_are_for(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    path.write_text("a b 2\nb a 0.5\n# the end\n")
    table = {"kind": "file", "path": str(path)}
    with pytest.raises(spodgt.errors.InvalidInput, match=r"edge b → a has 0\.5"):
        Experiment.parse({"network": table}).draw_network(0)
    for rule in ("degree", "given"):
        experiment = Experiment.parse({"network": {**table, "weights": rule}})
        assert experiment.to_dict()["network"] == {**table, "weights": rule}
        assert experiment.draw_network(0)[0].names == ("a", "b")
    assert "weights" not in Experiment.parse({"network": table}).to_dict()["network"]

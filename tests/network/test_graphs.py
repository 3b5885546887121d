"""Recipes: strongly connected, pure in the seed, and what their names say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spodgt.network import graphs
from spodgt.network.graphs import RECIPES, Graph, GraphRecipe
from spodgt.types import Bools
from tests.strategies import SEEDS


def adjacency(graph: Graph) -> Bools:
    """[receiver, sender]: who hears whom."""
    matrix = np.zeros((graph.clients, graph.clients), bool)
    matrix[graph.receivers, graph.senders] = True
    return matrix


def make(name: str, clients: int) -> Any:
    """A recipe that can be drawn at every size."""
    wide: dict[str, dict[str, Any]] = {
        "random-geometric": {"radius": 0.8},
        "directed-geometric": {"low": 0.6, "high": 1.2},
        "erdos-renyi": {"probability": 0.7},
        "k-out": {"out": max(1, clients // 2)},
        "k-regular": {"degree": max(1, clients // 2)},
    }
    return RECIPES[name](clients, **wide.get(name, {}))


@given(st.sampled_from(list(RECIPES)), st.integers(1, 12), SEEDS)
def test_every_recipe_draws_a_strongly_connected_digraph(
    name: str, clients: int, seed: int
) -> None:
    recipe = make(name, clients)
    assert isinstance(recipe, GraphRecipe)
    graph, again = recipe.draw(seed), recipe.draw(seed)
    np.testing.assert_array_equal(graph.receivers, again.receivers)
    np.testing.assert_array_equal(graph.senders, again.senders)
    links = list(zip(graph.receivers.tolist(), graph.senders.tolist(), strict=True))
    assert links == sorted(set(links)), "sorted by receiver, then sender, no repeats"
    assert all(i != j and 0 <= i < clients and 0 <= j < clients for i, j in links)
    theirs = nx.DiGraph([(j, i) for i, j in links])
    theirs.add_nodes_from(range(clients))
    assert nx.is_strongly_connected(theirs)


@given(st.integers(2, 30), SEEDS)
def test_geometric_links_are_the_pairs_in_reach(clients: int, seed: int) -> None:
    graph = graphs.RandomGeometric(clients, 0.7).draw(seed)
    assert graph.positions is not None
    apart = np.linalg.norm(graph.positions[:, None] - graph.positions[None], axis=-1)
    expected = (apart <= 0.7) & ~np.eye(clients, dtype=bool)
    np.testing.assert_array_equal(adjacency(graph), expected)


@given(st.integers(2, 20), SEEDS)
def test_directed_geometric_has_one_radius_for_each_sender(clients: int, seed: int) -> None:
    graph = graphs.DirectedGeometric(clients, 0.5, 1.0).draw(seed)
    assert graph.positions is not None
    apart = np.linalg.norm(graph.positions[:, None] - graph.positions[None], axis=-1)
    heard = adjacency(graph)
    for j in range(clients):  # whoever hears j is nearer to it than whoever does not
        hears, deaf = heard[:, j], ~heard[:, j] & (np.arange(clients) != j)
        if hears.any() and deaf.any():
            assert apart[hears, j].max() < apart[deaf, j].min()
        assert not deaf.any() or apart[deaf, j].min() > 0.5
        assert not hears.any() or apart[hears, j].max() <= 1.0


def test_directed_geometric_is_really_one_way_somewhere() -> None:
    graph = graphs.DirectedGeometric(20).draw(0)
    matrix = adjacency(graph)
    assert (matrix != matrix.T).any()


def pairs(graph: Graph) -> set[tuple[int, int]]:
    """(sender, receiver)."""
    return set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


def test_fixed_shapes() -> None:
    assert pairs(graphs.Ring(4).draw(0)) == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert pairs(graphs.Star(4).draw(0)) == {(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)}
    assert pairs(graphs.Exponential(6).draw(0)) == {
        (i, (i + hop) % 6) for i in range(6) for hop in (1, 2, 4)
    }
    assert len(pairs(graphs.Complete(5).draw(0))) == 20
    for name in RECIPES:
        assert not pairs(make(name, 1).draw(0)), f"a lone client of {name} has no links"


@given(st.integers(2, 40), st.data())
def test_k_out_and_k_regular_have_their_degrees(clients: int, data: Any) -> None:
    k, seed = data.draw(st.integers(1, clients - 1)), data.draw(SEEDS)
    regular = graphs.KRegular(clients, k).draw(seed)
    assert (np.bincount(regular.senders, minlength=clients) == k).all()
    assert (np.bincount(regular.receivers, minlength=clients) == k).all()
    if k > clients // 3:  # a sparse k-out is seldom strongly connected
        assert (
            np.bincount(graphs.KOut(clients, k).draw(seed).senders, minlength=clients) == k
        ).all()


def test_erdos_renyi_has_its_probability() -> None:
    graph = graphs.ErdosRenyi(300, 0.1).draw(1)
    pairs_of = 300 * 299
    assert abs(len(graph.senders) / pairs_of - 0.1) < 5 * np.sqrt(0.09 / pairs_of)
    matrix = adjacency(graph)
    assert 0.05 < (matrix & matrix.T).sum() / matrix.sum() < 0.15, (
        "a link says nothing of its reverse"
    )
    assert len(graphs.ErdosRenyi(7, 1.0).draw(0).senders) == 42


def test_large_graphs_are_no_special_case() -> None:
    """Nothing here is quadratic in the clients."""
    for recipe in (
        graphs.Ring(100_000),
        graphs.KRegular(50_000, 3),
        graphs.ErdosRenyi(30_000, 5e-4),
        graphs.RandomGeometric(20_000, 0.02),
        graphs.KOut(20_000, 12),
    ):
        assert recipe.draw(0).components()[0] == 1


def test_seeds_differ_and_redraws_do_not_repeat() -> None:
    drawn = [graphs.RandomGeometric(10, 0.4).draw(seed).positions for seed in range(5)]
    for one, other in pairwise(drawn):
        assert one is not None
        assert other is not None
        assert not np.allclose(one, other)

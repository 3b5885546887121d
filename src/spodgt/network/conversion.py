"""Graphs that the user has: networkx graphs and adjacency matrices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spodgt._util.text import short_repr
from spodgt.errors import InvalidNetwork
from spodgt.network.graph import by_name, check_names
from spodgt.network.graphs import Graph
from spodgt.network.mixing_weights import HasArray, square
from spodgt.types import Floats

if TYPE_CHECKING:
    import networkx


def graph_of_networkx(graph: networkx.Graph, nodelist: Sequence[Hashable] | None = None) -> Graph:
    """Nodes 0 … m-1 are clients of these numbers, others are sorted by their names, which are kept.

    An edge (u, v) means that u sends to v. Its `weight` is kept as well; NaN where it is no number. Positions
    are the nodes' attributes x, y or Longitude, Latitude, where all have them, scaled to the unit square.
    """
    import networkx as nx

    if not isinstance(graph, nx.Graph):
        raise InvalidNetwork(
            f"graph must be a networkx Graph or DiGraph, got {type(graph).__name__}; "
            "use from_adjacency for a matrix."
        )
    if graph.is_multigraph():
        raise InvalidNetwork(
            "graph must be a Graph or DiGraph, got a multigraph; use networkx.DiGraph(graph)."
        )
    nodes = by_name(graph.nodes)
    if nodelist is not None:
        order = list(nodelist) if isinstance(nodelist, Iterable) else []
        if len(order) != len(nodes) or any(node not in order for node in nodes):
            raise InvalidNetwork(f"nodelist must hold every node once, got {short_repr(nodelist)}.")
        nodes = order
    index = {node: i for i, node in enumerate(nodes)}
    names = tuple(map(str, nodes))
    edges = [(index[u], index[v], weight) for u, v, weight in graph.edges(data="weight")]
    if not graph.is_directed():
        edges += [(v, u, weight) for u, v, weight in edges]
    return Graph.of(
        len(nodes),
        np.array([v for _, v, _ in edges], np.int64),
        np.array([u for u, _, _ in edges], np.int64),
        positions=_positions([graph.nodes[node] for node in nodes]),
        names=None if names == tuple(map(str, range(len(nodes)))) else names,
        weights=None
        if all(weight is None for *_, weight in edges)
        else np.array([_number(weight) for *_, weight in edges]),
    )


def _positions(nodes: Sequence[Mapping[str, object]]) -> Floats | None:
    for keys in (("x", "y"), ("Longitude", "Latitude")):
        found = np.array([[_number(node.get(key)) for key in keys] for node in nodes]).reshape(
            -1, 2
        )
        if len(found) and np.isfinite(found).all():
            found -= found.min(0)
            return found / (found.max() or 1.0)
    return None


def _number(weight: object) -> float:
    try:
        return float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")


def graph_of_matrix(adjacency: object, names: Sequence[str] | None = None) -> Graph:
    """Link j → i where [i, j] is not 0; other entries than 0 and 1 are weights of edges.

    adjacency: square, an array or a sparse matrix of scipy. names: of the clients.
    """
    if isinstance(adjacency, HasArray):
        from scipy.sparse import coo_array

        matrix = coo_array(adjacency)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        shape, (receivers, senders), values = matrix.shape, matrix.coords, matrix.data
        if values.dtype.kind not in "biuf":
            raise InvalidNetwork(f"adjacency must be a matrix of real numbers, got {values.dtype}.")
    else:
        array = square(adjacency, "adjacency")
        receivers, senders = np.nonzero(array)
        shape, values = array.shape, array[receivers, senders]
    if shape[0] != shape[1]:
        raise InvalidNetwork(
            f"adjacency must be a square (clients, clients) matrix, got shape {shape}."
        )
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        at = int(np.isfinite(numbers).argmin())
        raise InvalidNetwork(
            f"adjacency must be finite, but [{receivers[at]}, {senders[at]}] is {numbers[at]:.3g}; "
            "set it to 0 or 1."
        )
    return Graph.of(
        shape[0], receivers, senders, names=check_names(names, shape[0]), weights=numbers
    )

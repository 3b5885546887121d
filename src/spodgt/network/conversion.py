"""Graphs from networkx graphs and adjacency matrices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from spodgt._util.text import short_repr
from spodgt.errors import InvalidNetwork
from spodgt.network.graph import Graph
from spodgt.network.mixing_weights import SparseMatrix, as_square_matrix
from spodgt.network.names import check_names, sort_by_name
from spodgt.types import Floats

if TYPE_CHECKING:
    import networkx
    from scipy.sparse import coo_array

_POSITION_KEYS = (("x", "y"), ("Longitude", "Latitude"))  # node attributes, in this order


def graph_from_networkx(graph: networkx.Graph, nodelist: Sequence[Hashable] | None = None) -> Graph:
    """Convert a networkx graph; an edge (u, v) is the link from u to v.

    Nodes 0 … m-1 become the clients with these numbers; other nodes are sorted by name, and their
    names are kept.

    Args:
        graph: Edge attributes `weight` become edge weights. Node attributes x, y or Longitude,
            Latitude become positions, scaled to the unit square, if all nodes have them.
        nodelist: All nodes, in the order of the clients.
    """
    _check_graph(graph)
    if not len(graph):
        raise InvalidNetwork("the graph must have at least one client, got none; add nodes.")
    nodes = _ordered_nodes(graph, nodelist)
    client_of = {node: client for client, node in enumerate(nodes)}
    edges = list(graph.edges(data="weight"))
    senders = np.array([client_of[sender] for sender, _, _ in edges], np.int64)
    receivers = np.array([client_of[receiver] for _, receiver, _ in edges], np.int64)
    weights = _edge_weights([weight for _, _, weight in edges])
    if not graph.is_directed():  # an edge is a link in each direction
        one_way = senders
        senders = np.concatenate([senders, receivers])
        receivers = np.concatenate([receivers, one_way])
        weights = None if weights is None else np.tile(weights, 2)
    return Graph.of(
        len(nodes),
        receivers,
        senders,
        positions=_positions([graph.nodes[node] for node in nodes]),
        names=_client_names(nodes),
        weights=weights,
    )


def _check_graph(graph: networkx.Graph) -> None:
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


def _edge_weights(weights: Sequence[object]) -> Floats | None:
    """Weights of the edges, NaN where one is missing; None if no edge has one."""
    if all(weight is None for weight in weights):
        return None
    return np.array([_float_or_nan(weight) for weight in weights])


def _client_names(nodes: Sequence[Hashable]) -> tuple[str, ...] | None:
    """The nodes as text; None if they are the numbers of the clients."""
    names = tuple(str(node) for node in nodes)
    numbers = tuple(str(client) for client in range(len(nodes)))
    return None if names == numbers else names


def _ordered_nodes(
    graph: networkx.Graph, nodelist: Sequence[Hashable] | None
) -> Sequence[Hashable]:
    nodes = sort_by_name(graph.nodes)
    if nodelist is None:
        return nodes
    order = list(nodelist) if isinstance(nodelist, Iterable) else []
    if len(order) != len(nodes) or any(node not in order for node in nodes):
        raise InvalidNetwork(f"nodelist must hold every node once, got {short_repr(nodelist)}.")
    return order


def _positions(nodes: Sequence[Mapping[str, object]]) -> Floats | None:
    """(clients, 2) positions in the unit square; None if a node has none."""
    if not nodes:
        return None
    for x_key, y_key in _POSITION_KEYS:
        pairs = [(_float_or_nan(node.get(x_key)), _float_or_nan(node.get(y_key))) for node in nodes]
        positions = np.array(pairs)
        if np.isfinite(positions).all():
            positions -= positions.min(0)
            return positions / (positions.max() or 1.0)
    return None


def _float_or_nan(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")


def graph_from_matrix(
    adjacency: ArrayLike | SparseMatrix, names: Sequence[str] | None = None
) -> Graph:
    """Convert an adjacency matrix.

    Args:
        adjacency: (clients, clients), an array or a sparse matrix of scipy; link j → i where
            [i, j] is not 0. Entries other than 0 and 1 are edge weights.
        names: One name per client.
    """
    if isinstance(adjacency, SparseMatrix):
        matrix = _checked_sparse_matrix(adjacency)
        clients = matrix.shape[0]
        receivers, senders = matrix.coords
        entries = matrix.data
    else:
        array = as_square_matrix(adjacency, "adjacency")
        clients = array.shape[0]
        receivers, senders = np.nonzero(array)
        entries = array[receivers, senders]
    weights = entries.astype(np.float64)
    is_finite = np.isfinite(weights)
    if not is_finite.all():
        first = int(is_finite.argmin())
        raise InvalidNetwork(
            f"adjacency must be finite, but [{receivers[first]}, {senders[first]}] is "
            f"{weights[first]:.3g}; set it to 0 or 1."
        )
    return Graph.of(clients, receivers, senders, names=check_names(names, clients), weights=weights)


def _checked_sparse_matrix(adjacency: SparseMatrix) -> coo_array:
    """Entries other than zero, each once."""
    from scipy.sparse import coo_array

    matrix = coo_array(adjacency)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if matrix.data.dtype.kind not in "biuf":
        raise InvalidNetwork(
            f"adjacency must be a matrix of real numbers, got {matrix.data.dtype}."
        )
    if matrix.shape[0] != matrix.shape[1]:
        raise InvalidNetwork(
            f"adjacency must be a square (clients, clients) matrix, got shape {matrix.shape}."
        )
    return matrix

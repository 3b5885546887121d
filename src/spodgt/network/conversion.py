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
    nodes = _ordered_nodes(graph, nodelist)
    client_of = {node: client for client, node in enumerate(nodes)}
    senders = []
    receivers = []
    weights = []
    for sender, receiver, weight in graph.edges(data="weight"):
        senders.append(client_of[sender])
        receivers.append(client_of[receiver])
        weights.append(weight)
    has_weights = any(weight is not None for weight in weights)
    edge_weights = np.array([_float_or_nan(weight) for weight in weights])
    if not graph.is_directed():
        senders, receivers = senders + receivers, receivers + senders
        edge_weights = np.tile(edge_weights, 2)
    names = tuple(str(node) for node in nodes)
    are_numbers = names == tuple(str(client) for client in range(len(nodes)))
    return Graph.of(
        len(nodes),
        np.array(receivers, np.int64),
        np.array(senders, np.int64),
        positions=_positions([graph.nodes[node] for node in nodes]),
        names=None if are_numbers else names,
        weights=edge_weights if has_weights else None,
    )


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
        from scipy.sparse import coo_array

        matrix = coo_array(adjacency)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        if matrix.data.dtype.kind not in "biuf":
            raise InvalidNetwork(
                f"adjacency must be a matrix of real numbers, got {matrix.data.dtype}."
            )
        shape = matrix.shape
        receivers, senders = matrix.coords
        entries = matrix.data
    else:
        array = as_square_matrix(adjacency, "adjacency")
        shape = array.shape
        receivers, senders = np.nonzero(array)
        entries = array[receivers, senders]
    if shape[0] != shape[1]:
        raise InvalidNetwork(
            f"adjacency must be a square (clients, clients) matrix, got shape {shape}."
        )
    weights = entries.astype(np.float64)
    is_finite = np.isfinite(weights)
    if not is_finite.all():
        first = int(is_finite.argmin())
        raise InvalidNetwork(
            f"adjacency must be finite, but [{receivers[first]}, {senders[first]}] is "
            f"{weights[first]:.3g}; set it to 0 or 1."
        )
    clients = shape[0]
    return Graph.of(clients, receivers, senders, names=check_names(names, clients), weights=weights)

"""Mixing weights of a digraph: rules that compute them, and checks of matrices that are given.

Weights are (links,) arrays in the order of the graph's links; diagonals are not stored.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spodgt._util.text import short_repr
from spodgt.errors import InvalidNetwork
from spodgt.network.graph import Graph
from spodgt.rng import generator
from spodgt.types import Floats, Ints

WEIGHT_RULES = ("degree", "random", "given")
_TOLERANCE = 1e-9  # of row and column sums


# --- rules ---------------------------------------------------------------------------------------
def pull_and_push_weights(
    graph: Graph, rule: str | None, edge_weights: Floats | None, seed: int
) -> tuple[Floats, Floats]:
    """Row-stochastic weights A and column-stochastic weights B, (links,) each.

    Args:
        graph: The links.
        rule: One of `WEIGHT_RULES`; None: "given" if there are edge weights, else "degree".
        edge_weights: (links,) positive weights to normalize.
        seed: Of random weights.
    """
    if edge_weights is not None:
        return (
            _normalized(graph.receivers, graph, edge_weights),
            _normalized(graph.senders, graph, edge_weights),
        )
    if rule == "random":
        return (
            _random_weights(graph.receivers, graph.clients, seed, "A"),
            _random_weights(graph.senders, graph.clients, seed, "B"),
        )
    return (
        1.0 / (1 + graph.in_degree[graph.receivers]),
        1.0 / (1 + graph.out_degree[graph.senders]),
    )


def _random_weights(ends: Ints, clients: int, seed: int, matrix: str) -> Floats:
    """Weights proportional to uniform(0.5, 1.5) draws, including a draw for the self-weight."""
    draws = generator(seed, f"weights:{matrix}")
    link_draws = draws.uniform(0.5, 1.5, len(ends))
    self_draws = draws.uniform(0.5, 1.5, clients)
    total = self_draws + np.bincount(ends, link_draws, minlength=clients)
    return np.asarray(link_draws / total[ends])


def _normalized(ends: Ints, graph: Graph, edge_weights: Floats) -> Floats:
    """Edge weights divided by their sum over the links with the same end."""
    return np.asarray(edge_weights / _weight_sums(ends, graph, edge_weights)[ends])


def _weight_sums(ends: Ints, graph: Graph, edge_weights: Floats) -> Floats:
    """(clients,) sums of the edge weights at one end of the links, plus the client's self-weight.

    The self-weight is the weight of the self-loop, or else the mean weight of the client's links:
    equal edge weights give the same matrix as the rule "degree".
    """
    sums = np.bincount(ends, edge_weights, graph.clients)
    degree = np.bincount(ends, minlength=graph.clients)
    self_weights = sums / np.maximum(degree, 1)
    if graph.loops is not None:
        self_weights = np.where(np.isnan(graph.loops), self_weights, graph.loops)
    return np.asarray(sums + self_weights)


def metropolis_weights(graph: Graph, edge_weights: Floats | None = None) -> Floats | None:
    """Metropolis weights, 1/(1 + the larger degree of both ends); None if a link has no reverse.

    With edge weights: the mean weight of both directions, over the larger sum of both ends.
    """
    if graph.reverse is None:
        return None
    if edge_weights is None:
        degree = graph.in_degree
        larger_degree = np.maximum(degree[graph.receivers], degree[graph.senders])
        return np.asarray(1.0 / (1 + larger_degree))
    mean = (edge_weights + edge_weights[graph.reverse]) / 2
    sums = _weight_sums(graph.receivers, graph, mean)
    return np.asarray(mean / np.maximum(sums[graph.receivers], sums[graph.senders]))


# --- edge weights --------------------------------------------------------------------------------
def select_edge_weights(graph: Graph, rule: str | None) -> Floats | None:
    """The edge weights that the rule uses; None if it uses none.

    Raises:
        InvalidNetwork: The graph has edge weights and `rule` is None, or the weights are not
            positive, or the rule is "given" and there are none.
    """
    if rule in ("degree", "random"):
        return None
    if graph.weights is None:
        if rule == "given":
            raise InvalidNetwork(
                "weights='given' needs weights on the edges, got none; use weights='degree'."
            )
        return None
    if rule is None:
        is_one = graph.weights == 1
        if not is_one.all():
            raise InvalidNetwork(
                f"the graph has edge weights ({_describe_edge(graph, int(is_one.argmin()))}); "
                "use weights='given' to use them or weights='degree' to ignore them."
            )
        return None
    is_positive = (graph.weights > 0) & np.isfinite(graph.weights)
    if not is_positive.all():
        raise InvalidNetwork(
            "weights of edges must be finite and above 0, "
            f"but {_describe_edge(graph, int(is_positive.argmin()))}; correct it."
        )
    _check_loops(graph)
    return graph.weights


def _describe_edge(graph: Graph, link: int) -> str:
    assert graph.weights is not None
    weight = graph.weights[link]
    value = "no number" if np.isnan(weight) else f"{weight:.3g}"
    return f"edge {graph.link_label(link)} has {value}"


def _check_loops(graph: Graph) -> None:
    if graph.loops is None:
        return
    is_valid = np.isnan(graph.loops) | ((graph.loops > 0) & np.isfinite(graph.loops))
    if not is_valid.all():
        client = int(is_valid.argmin())
        raise InvalidNetwork(
            "weights of self-loops must be finite and above 0, but client "
            f"{graph.label(client)} has {graph.loops[client]:.3g}; correct it or leave it out."
        )


# --- matrices ------------------------------------------------------------------------------------
@runtime_checkable
class SparseMatrix(Protocol):
    """A sparse matrix of scipy."""

    def toarray(self) -> NDArray[np.generic]: ...


def as_square_matrix(matrix: ArrayLike | SparseMatrix, name: str) -> NDArray[np.generic]:
    """The matrix as a square array of real numbers; `name` is its name in errors."""
    try:
        array = np.asarray(matrix.toarray() if isinstance(matrix, SparseMatrix) else matrix)
        if array.dtype.kind not in "biufc":
            array = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidNetwork(
            f"{name} must be a matrix of real numbers, got {short_repr(matrix)}."
        ) from None
    if array.dtype.kind == "c":
        raise InvalidNetwork(
            f"{name} must be a matrix of real numbers, got complex ones; use its real part."
        )
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size:
        raise InvalidNetwork(
            f"{name} must be a square (clients, clients) matrix, got shape {array.shape}."
        )
    return array


def link_weights(matrix: ArrayLike | SparseMatrix, name: str, graph: Graph) -> Floats:
    """(links,) link weights of a mixing matrix.

    Args:
        matrix: (clients, clients), [receiver, sender].
        name: "A" (rows sum to one), "B" (columns sum to one) or "W" (symmetric, both).
        graph: Links on which the matrix must be positive; it must be zero elsewhere.

    Raises:
        InvalidNetwork: The matrix does not have these properties.
    """
    M = as_square_matrix(matrix, name).astype(np.float64)
    if len(M) != graph.clients:
        raise InvalidNetwork(
            f"{name} must be ({graph.clients}, {graph.clients}) like the adjacency, got {M.shape}."
        )
    _check_entries(M, name)
    if name in "AW":
        hint = "Row i weighs what client i receives; if columns sum to one, it is B."
        _check_sums(M.sum(1), name, "row", hint)
    if name in "BW":
        hint = "Column j weighs what client j sends; if rows sum to one, it is A."
        _check_sums(M.sum(0), name, "column", hint)
    if name == "W":
        _check_symmetric(M)
    _check_support(M, name, graph)
    return np.asarray(M[graph.receivers, graph.senders])


def _check_entries(M: Floats, name: str) -> None:
    """Entries must be finite and not negative, diagonal entries positive."""
    is_valid = np.isfinite(M) & (M >= 0)
    if not is_valid.all():
        i, j = np.argwhere(~is_valid)[0]
        raise InvalidNetwork(
            f"{name} must be finite and non-negative, but {name}[{i}, {j}] is {M[i, j]:.3g}; "
            f"set it to 0 or remove link {j} → {i}."
        )
    if (np.diag(M) <= 0).any():
        i = int(np.argmin(np.diag(M)))
        raise InvalidNetwork(
            f"{name} must have positive self-weights, but {name}[{i}, {i}] is {M[i, i]:.3g}; "
            f"leave client {i} some weight for itself."
        )


def _check_sums(sums: Floats, name: str, line: str, hint: str) -> None:
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > _TOLERANCE:
        raise InvalidNetwork(
            f"{name} must have {line}s that sum to one, but {line} {worst} sums to "
            f"{sums[worst]:.6g}. {hint}"
        )


def _check_symmetric(W: Floats) -> None:
    if np.allclose(W, W.T, rtol=0, atol=_TOLERANCE):
        return
    i, j = np.unravel_index(np.abs(W - W.T).argmax(), W.shape)
    raise InvalidNetwork(
        f"W must be symmetric, but W[{i}, {j}] is {W[i, j]:.3g} and W[{j}, {i}] is "
        f"{W[j, i]:.3g}; use (W + W.T) / 2."
    )


def _check_support(M: Floats, name: str, graph: Graph) -> None:
    """Entries off the diagonal must be positive on links and zero elsewhere."""
    weights = M[graph.receivers, graph.senders]
    if (weights == 0).any():
        link = graph.link_label(int(np.argmin(weights)))
        raise InvalidNetwork(
            f"{name} must weigh every link, but link {link} has weight 0; remove the link."
        )
    elsewhere = M.copy()
    np.fill_diagonal(elsewhere, 0)
    elsewhere[graph.receivers, graph.senders] = 0
    if elsewhere.any():
        i, j = np.argwhere(elsewhere)[0]
        raise InvalidNetwork(
            f"{name} must be zero where there is no link, but {name}[{i}, {j}] is {M[i, j]:.3g}; "
            f"add link {j} → {i} or set it to 0."
        )

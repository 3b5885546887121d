"""Mixing weights of a digraph: rules that make them, and checks of matrices that are given.

Weights are (links,) in the order of the graph's links; diagonals are not stored.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spodgt._util.text import short_repr
from spodgt.errors import InvalidNetwork
from spodgt.network.graphs import Graph
from spodgt.rng import generator
from spodgt.types import Floats, Ints

WEIGHTS = ("degree", "random", "given")
_TOLERANCE = 1e-9


def degree(end: Ints, graph: Graph) -> Floats:
    """1/(1 + degree) of the end that weighs: in-degree of receivers for A, out-degree of senders for B."""
    degree = np.bincount(end, minlength=graph.clients)
    return np.asarray(1.0 / (1 + degree[end]))


def random(end: Ints, graph: Graph, seed: int, which: str) -> Floats:
    """Weights proportional to uniform(0.5, 1.5) draws, the self-weight drawn with them."""
    draws = generator(seed, f"weights:{which}")
    link, own = draws.uniform(0.5, 1.5, len(end)), draws.uniform(0.5, 1.5, graph.clients)
    total = own + np.bincount(end, link, minlength=graph.clients)
    return np.asarray(link / total[end])


def given(end: Ints, graph: Graph, weights: Floats) -> Floats:
    """Edge weights divided by their sum over the end that weighs, itself included (see `_totals`)."""
    return np.asarray(weights / _totals(end, graph, weights)[end])


def _totals(end: Ints, graph: Graph, weights: Floats) -> Floats:
    """(clients,) sums of edge weights at one end and of the client's own.

    A client's own weight is that of its self-loop, or else the mean of its links: with equal weights this is
    the rule by degree.
    """
    sums, count = (
        np.bincount(end, weights, graph.clients),
        np.bincount(end, minlength=graph.clients),
    )
    mean = sums / np.maximum(count, 1)
    own = mean if graph.loops is None else np.where(np.isnan(graph.loops), mean, graph.loops)
    return np.asarray(sums + own)


def metropolis(graph: Graph, weights: Floats | None = None) -> Floats | None:
    """1/(1 + the larger degree of the two ends); None unless every link has its reverse.

    With edge weights: the mean of both directions, over the larger total of the two ends.
    """
    reverse = reverse_links(graph.clients, graph.receivers, graph.senders)
    if reverse is None:
        return None
    if weights is None:
        degree = np.bincount(graph.receivers, minlength=graph.clients)
        return np.asarray(1.0 / (1 + np.maximum(degree[graph.receivers], degree[graph.senders])))
    mean = (weights + weights[reverse]) / 2
    totals = _totals(graph.receivers, graph, mean)
    return np.asarray(mean / np.maximum(totals[graph.receivers], totals[graph.senders]))


def edge_weights(graph: Graph, rule: str | None) -> Floats | None:
    """The weights of the edges where the rule is "given"; weights are used or refused, never ignored."""
    if rule in ("degree", "random"):
        return None
    weights, loops = graph.weights, np.empty(0) if graph.loops is None else graph.loops
    if weights is None:
        if rule == "given":
            raise InvalidNetwork(
                "weights='given' needs weights on the edges, got none; use weights='degree'."
            )
        return None
    odd = weights != 1 if rule is None else ~((weights > 0) & np.isfinite(weights))
    if odd.any():
        link = int(odd.argmax())
        edge = f"edge {graph.label(graph.senders[link])} → {graph.label(graph.receivers[link])}"
        value = "no number" if np.isnan(weights[link]) else f"{weights[link]:.3g}"
        if rule is None:
            raise InvalidNetwork(
                f"weights must say what the weights of the edges are for ({edge} has {value}); "
                "use weights='given' to use them or weights='degree' to leave them out."
            )
        raise InvalidNetwork(
            f"weights of edges must be finite and above 0, but {edge} has {value}; correct it."
        )
    if rule == "given" and (bad := ~(np.isnan(loops) | ((loops > 0) & np.isfinite(loops)))).any():
        client = int(bad.argmax())
        raise InvalidNetwork(
            f"weights of self-loops must be finite and above 0, but client {graph.label(client)} has "
            f"{loops[client]:.3g}; correct it or leave it out."
        )
    return weights if rule == "given" else None


def reverse_links(clients: int, receivers: Ints, senders: Ints) -> Ints | None:
    """For every link the index of its reverse; None if some link has none."""
    code, mirrored = receivers * clients + senders, senders * clients + receivers
    where = np.searchsorted(code, mirrored)  # codes are sorted: links are by receiver, then sender
    found = where < len(code)
    if not found.all() or (code[where] != mirrored).any():
        return None
    return np.asarray(where, np.int64)


@runtime_checkable
class HasArray(Protocol):
    """A sparse matrix of scipy."""

    def toarray(self) -> NDArray[np.generic]: ...


def square(matrix: object, name: str) -> NDArray[np.generic]:
    """The matrix as an array of real numbers, or what is wrong with its shape."""
    try:
        array = np.asarray(matrix.toarray() if isinstance(matrix, HasArray) else matrix)
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


def checked(matrix: ArrayLike, name: str, graph: Graph) -> Floats:
    """Check a given mixing matrix against the graph and keep its link weights."""
    M = square(matrix, name).astype(np.float64)
    if len(M) != graph.clients:
        raise InvalidNetwork(
            f"{name} must be ({graph.clients}, {graph.clients}) like the adjacency, got {M.shape}."
        )
    if not np.isfinite(M).all() or (M < 0).any():
        i, j = np.argwhere(~(np.isfinite(M) & (M >= 0)))[0]
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
    if name in "AW":
        _check_sums(
            M.sum(1),
            name,
            "row",
            "Row i weighs what client i receives; if columns sum to one, it is B.",
        )
    if name in "BW":
        _check_sums(
            M.sum(0),
            name,
            "column",
            "Column j weighs what client j sends; if rows sum to one, it is A.",
        )
    if name == "W" and not np.allclose(M, M.T, rtol=0, atol=_TOLERANCE):
        i, j = np.unravel_index(np.abs(M - M.T).argmax(), M.shape)
        raise InvalidNetwork(
            f"W must be symmetric, but W[{i}, {j}] is {M[i, j]:.3g} and W[{j}, {i}] is {M[j, i]:.3g}; "
            "use (W + W.T) / 2."
        )
    off = M.copy()
    np.fill_diagonal(off, 0)
    weights = off[graph.receivers, graph.senders]
    if (weights == 0).any():
        link = int(np.argmin(weights))
        i, j = graph.label(graph.receivers[link]), graph.label(graph.senders[link])
        raise InvalidNetwork(
            f"{name} must weigh every link, but link {j} → {i} has weight 0; remove the link."
        )
    off[graph.receivers, graph.senders] = 0
    if off.any():
        i, j = np.argwhere(off)[0]
        raise InvalidNetwork(
            f"{name} must be zero where there is no link, but {name}[{i}, {j}] is {off[i, j]:.3g}; "
            f"add link {j} → {i} or set it to 0."
        )
    return weights


def _check_sums(sums: Floats, name: str, line: str, hint: str) -> None:
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > _TOLERANCE:
        raise InvalidNetwork(
            f"{name} must have {line}s that sum to one, but {line} {worst} sums to {sums[worst]:.6g}. {hint}"
        )

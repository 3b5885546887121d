"""A strongly connected digraph with the weights of its mixings.

`A` pulls (rows sum to one: receivers weigh), `B` pushes (columns sum to one: senders weigh) and,
where every link has its reverse, `W` gossips (symmetric, doubly stochastic). Only link weights are
stored; the diagonals are what is missing to one, also in rounds in which some links are down.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from spodgt.errors import InvalidNetwork
from spodgt.network import recipes as graphs
from spodgt.network.recipes import Floats, Graph, Ints, Recipe
from spodgt.rng import generator

DENSE_LIMIT = 2000  # above this many clients no (clients × clients) matrix is made
WEIGHTS = ("degree", "random")
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Network:
    """Who hears whom, and how much they listen. Build one with the class methods below."""

    clients: int
    receivers: Ints  # (links,) sorted by receiver, then sender
    senders: Ints  # (links,)
    a: Floats  # (links,) pull weights a_ij of link j → i
    b: Floats  # (links,) push weights b_ij
    w: Floats | None  # (links,) gossip weights, None unless every link has its reverse
    positions: Floats | None = None

    # --- from a recipe -----------------------------------------------------------------------
    @classmethod
    def draw(cls, recipe: Recipe, *, seed: int = 0, weights: str = "degree") -> Network:
        """Draw the recipe's graph and weigh it: "degree" (the paper's rule) or "random" rows and columns."""
        return cls.from_graph(recipe.draw(seed), weights=weights, seed=seed)

    @classmethod
    def random_geometric(
        cls, clients: int, radius: float = 0.4, *, seed: int = 0, weights: str = "degree"
    ) -> Network:
        return cls.draw(graphs.RandomGeometric(clients, radius), seed=seed, weights=weights)

    @classmethod
    def directed_geometric(
        cls, clients: int, low: float = 0.3, high: float = 0.6, *, seed: int = 0, weights: str = "degree"
    ) -> Network:
        return cls.draw(graphs.DirectedGeometric(clients, low, high), seed=seed, weights=weights)

    @classmethod
    def ring(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        return cls.draw(graphs.Ring(clients), seed=seed, weights=weights)

    @classmethod
    def exponential(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        return cls.draw(graphs.Exponential(clients), seed=seed, weights=weights)

    @classmethod
    def complete(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        return cls.draw(graphs.Complete(clients), seed=seed, weights=weights)

    @classmethod
    def star(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        return cls.draw(graphs.Star(clients), seed=seed, weights=weights)

    @classmethod
    def erdos_renyi(
        cls, clients: int, probability: float = 0.4, *, seed: int = 0, weights: str = "degree"
    ) -> Network:
        return cls.draw(graphs.ErdosRenyi(clients, probability), seed=seed, weights=weights)

    @classmethod
    def k_out(cls, clients: int, out: int = 3, *, seed: int = 0, weights: str = "degree") -> Network:
        return cls.draw(graphs.KOut(clients, out), seed=seed, weights=weights)

    @classmethod
    def k_regular(cls, clients: int, degree: int = 3, *, seed: int = 0, weights: str = "degree") -> Network:
        return cls.draw(graphs.KRegular(clients, degree), seed=seed, weights=weights)

    # --- from what the user has --------------------------------------------------------------
    @classmethod
    def from_networkx(cls, graph: Any, *, weights: str = "degree", seed: int = 0) -> Network:
        """Clients are the nodes in the graph's order; an edge (u, v) means u sends to v."""
        if not isinstance(graph, nx.Graph):
            raise InvalidNetwork(
                f"graph must be a networkx Graph or DiGraph, got {type(graph).__name__}; "
                "use from_adjacency for a matrix."
            )
        if graph.is_multigraph():
            raise InvalidNetwork(
                "graph must be a Graph or DiGraph, got a multigraph; use networkx.DiGraph(graph)."
            )
        index = {node: i for i, node in enumerate(graph.nodes)}
        edges = list(graph.to_directed().edges)
        receivers, senders = [index[v] for _, v in edges], [index[u] for u, _ in edges]
        return cls.from_graph(Graph.of(len(index), receivers, senders), weights=weights, seed=seed)

    @classmethod
    def from_adjacency(
        cls,
        adjacency: ArrayLike,
        A: ArrayLike | None = None,
        B: ArrayLike | None = None,
        W: ArrayLike | None = None,
        *,
        weights: str = "degree",
        seed: int = 0,
    ) -> Network:
        """`adjacency[i, j]` is true where i receives from j; the diagonal is ignored."""
        receivers, senders = np.nonzero(_square(adjacency, "adjacency"))
        graph = Graph.of(len(np.asarray(adjacency)), receivers, senders)
        return cls.from_graph(graph, A, B, W, weights=weights, seed=seed)

    @classmethod
    def from_graph(
        cls,
        graph: Graph,
        A: ArrayLike | None = None,
        B: ArrayLike | None = None,
        W: ArrayLike | None = None,
        *,
        weights: str = "degree",
        seed: int = 0,
    ) -> Network:
        """Check the graph, take the weights given and make the others by the rule `weights`."""
        if weights not in WEIGHTS:
            raise InvalidNetwork(f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}; use degree.")
        if graph.clients < 1:
            raise InvalidNetwork("the graph must have at least one client, got none; add nodes.")
        _check_connected(graph)
        by_degree = weights == "degree"
        a = _degree(graph.receivers, graph) if by_degree else _random(graph.receivers, graph, seed, "A")
        b = _degree(graph.senders, graph) if by_degree else _random(graph.senders, graph, seed, "B")
        return cls(
            graph.clients,
            graph.receivers,
            graph.senders,
            a if A is None else _given(A, "A", graph),
            b if B is None else _given(B, "B", graph),
            _metropolis(graph) if W is None else _given(W, "W", graph),
            graph.positions,
        )

    # --- views -------------------------------------------------------------------------------
    @property
    def links(self) -> int:
        return len(self.receivers)

    @cached_property
    def in_degree(self) -> Ints:
        return np.bincount(self.receivers, minlength=self.clients)

    @cached_property
    def out_degree(self) -> Ints:
        return np.bincount(self.senders, minlength=self.clients)

    @cached_property
    def reverse(self) -> Ints | None:
        """For every link the index of its reverse; None if some link is one-way."""
        return _reverse(self.clients, self.receivers, self.senders)

    @property
    def two_way(self) -> bool:
        return self.reverse is not None

    @property
    def graph(self) -> Any:
        """The `networkx.DiGraph`, edge (j, i) for link j → i, with its weights a and b."""
        graph = nx.DiGraph()
        graph.add_nodes_from(range(self.clients))
        graph.add_edges_from(
            (int(j), int(i), {"a": float(a), "b": float(b)})
            for i, j, a, b in zip(self.receivers, self.senders, self.a, self.b, strict=True)
        )
        return graph

    @property
    def adjacency(self) -> NDArray[np.bool_]:
        return self._dense(np.ones(self.links)).astype(bool)

    @property
    def A(self) -> Floats:
        """Row-stochastic (clients, clients)."""
        matrix = self._dense(self.a)
        return matrix + np.diag(1 - matrix.sum(1))

    @property
    def B(self) -> Floats:
        """Column-stochastic (clients, clients)."""
        matrix = self._dense(self.b)
        return matrix + np.diag(1 - matrix.sum(0))

    @property
    def W(self) -> Floats:
        """Symmetric and doubly stochastic (clients, clients); only where links are two-way."""
        if self.w is None:
            j, i = self.one_way_link()
            raise InvalidNetwork(
                f"W exists only where every link has its reverse, and link {j} → {i} has none; "
                f"add link {i} → {j} or use a method for directed graphs."
            )
        matrix = self._dense(self.w)
        return matrix + np.diag(1 - matrix.sum(1))

    def one_way_link(self) -> tuple[int, int]:
        """The first link without its reverse, as (sender, receiver); only where not all links are two-way."""
        pairs = set(zip(self.receivers.tolist(), self.senders.tolist(), strict=True))
        i, j = next((i, j) for i, j in sorted(pairs) if (j, i) not in pairs)
        return j, i

    def _dense(self, values: Floats) -> Floats:
        if self.clients > DENSE_LIMIT:
            raise InvalidNetwork(
                f"a dense matrix of {self.clients} clients is not made above {DENSE_LIMIT}; "
                "use network.receivers, network.senders and the link weights network.a, network.b."
            )
        matrix = np.zeros((self.clients, self.clients))
        matrix[self.receivers, self.senders] = values
        return matrix


def as_network(network: Network | Recipe, seed: int, weights: str = "degree") -> Network:
    """A fixed network is the same for every seed; a recipe is drawn anew."""
    if isinstance(network, Network):
        return network
    if isinstance(network, Recipe):
        return Network.draw(network, seed=seed, weights=weights)
    raise InvalidNetwork(
        f"network must be a spodgt.Network or a recipe of spodgt.graphs, got {type(network).__name__}; "
        "use spodgt.Network.from_networkx(graph) for a networkx graph."
    )


# --- weights -------------------------------------------------------------------------------------
def _degree(end: Ints, graph: Graph) -> Floats:
    """1/(1 + degree) of the end that weighs: in-degree of receivers for A, out-degree of senders for B."""
    degree = np.bincount(end, minlength=graph.clients)
    return np.asarray(1.0 / (1 + degree[end]))


def _random(end: Ints, graph: Graph, seed: int, which: str) -> Floats:
    """Weights proportional to uniform(0.5, 1.5) draws, the self-weight drawn with them."""
    draws = generator(seed, f"weights:{which}")
    link, own = draws.uniform(0.5, 1.5, len(end)), draws.uniform(0.5, 1.5, graph.clients)
    total = own + np.bincount(end, link, minlength=graph.clients)
    return np.asarray(link / total[end])


def _metropolis(graph: Graph) -> Floats | None:
    if _reverse(graph.clients, graph.receivers, graph.senders) is None:
        return None
    degree = np.bincount(graph.receivers, minlength=graph.clients)
    return np.asarray(1.0 / (1 + np.maximum(degree[graph.receivers], degree[graph.senders])))


def _reverse(clients: int, receivers: Ints, senders: Ints) -> Ints | None:
    code, mirrored = receivers * clients + senders, senders * clients + receivers
    where = np.searchsorted(code, mirrored)  # codes are sorted: links are by receiver, then sender
    found = where < len(code)
    if not found.all() or (code[where] != mirrored).any():
        return None
    return np.asarray(where, np.int64)


# --- checks: one sentence that names the client or the link ------------------------------------------
def _square(matrix: ArrayLike, name: str) -> NDArray[Any]:
    try:
        array = np.asarray(matrix)
        if array.dtype.kind not in "biuf":
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidNetwork(f"{name} must be a matrix of numbers, got {matrix!r:.60}.") from None
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size:
        raise InvalidNetwork(f"{name} must be a square (clients, clients) matrix, got shape {array.shape}.")
    return array


def _check_connected(graph: Graph) -> None:
    count, component = graph.components()
    if count == 1:
        return
    heard = np.bincount(graph.receivers, minlength=graph.clients)
    spoke = np.bincount(graph.senders, minlength=graph.clients)
    if not heard.all():
        why, fix = f"client {int(np.argmin(heard))} receives from nobody", "give it an in-link"
    elif not spoke.all():
        why, fix = f"client {int(np.argmin(spoke))} sends to nobody", "give it an out-link"
    else:
        one, other = 0, int(np.argmax(component != component[0]))
        why = f"clients {one} and {other} cannot reach each other both ways"
        fix = "add links between their groups"
    raise InvalidNetwork(f"the graph must be strongly connected, but {why}; {fix}.")


def _given(matrix: ArrayLike, name: str, graph: Graph) -> Floats:
    """Check a given mixing matrix against the graph and keep its link weights."""
    M = _square(matrix, name).astype(np.float64)
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
            M.sum(1), name, "row", "Row i weighs what client i receives; if columns sum to one, it is B."
        )
    if name in "BW":
        _check_sums(
            M.sum(0), name, "column", "Column j weighs what client j sends; if rows sum to one, it is A."
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
        i, j = graph.receivers[link], graph.senders[link]
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

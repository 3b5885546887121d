"""A strongly connected digraph with its mixing weights.

`A` pulls (rows sum to one: receivers weigh), `B` pushes (columns sum to one: senders weigh) and,
where every link has its reverse, `W` gossips (symmetric, doubly stochastic). Only link weights are
stored; each diagonal entry is one minus its row (A, W) or column (B) sum, recomputed when links fail.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from spodgt._util.text import short_repr
from spodgt.errors import InvalidNetwork
from spodgt.network import graphs
from spodgt.network.conversion import graph_of_matrix, graph_of_networkx
from spodgt.network.graph import Named, check_ends, check_names, order_of
from spodgt.network.graphs import Graph, Recipe
from spodgt.network.mixing_weights import (
    WEIGHTS,
    checked,
    degree,
    edge_weights,
    given,
    metropolis,
    random,
    reverse_links,
)
from spodgt.types import Bools, Floats, Ints

if TYPE_CHECKING:
    import networkx

DENSE_LIMIT = 2000  # above this many clients no (clients × clients) matrix is made


@dataclass(frozen=True, eq=False)
class Network(Named):
    """The links between clients and their weights. Build one with the class methods below.

    Args:
        clients: How many.
        receivers: (links,) the receiver of each link; links are kept sorted by receiver, then sender.
        senders: (links,) the sender of each link.
        a: (links,) pull weights a_ij of link j → i.
        b: (links,) push weights b_ij.
        w: (links,) gossip weights; None unless every link has its reverse.
        positions: (clients, 2) in the unit square, where the graph has them.
        names: The names of the clients; None where they are called by their numbers.
    """

    clients: int
    receivers: Ints
    senders: Ints
    a: Floats
    b: Floats
    w: Floats | None
    positions: Floats | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        ends = check_ends(self.clients, self.receivers, self.senders)
        order = order_of(self.clients, *ends)
        values: dict[str, Ints | Floats | None] = {"receivers": ends[0], "senders": ends[1]}
        values |= {
            name: _link_weights(vars(self)[name], name, len(ends[0])) for name in ("a", "b", "w")
        }
        for name, value in values.items():
            object.__setattr__(
                self, name, value if order is None or value is None else value[order]
            )
        object.__setattr__(self, "names", check_names(self.names, self.clients))
        if self.positions is not None and np.shape(self.positions) != (self.clients, 2):
            got = np.shape(self.positions)
            raise InvalidNetwork(
                f"positions must be ({self.clients}, 2), one row per client, got {got}."
            )

    # --- from a recipe -----------------------------------------------------------------------
    @classmethod
    def draw(cls, recipe: Recipe, *, seed: int = 0, weights: str | None = None) -> Network:
        """Draw a recipe's graph and weigh its links.

        Args:
            recipe: A graph of `spodgt.graphs`.
            seed: Of the graph, and of random weights.
            weights: "degree", "random" or "given", see `from_graph`.
        """
        check_network(recipe)
        try:
            return cls.from_graph(recipe.draw(seed), weights=weights, seed=seed)
        except MemoryError:
            raise InvalidNetwork(
                f"{recipe} does not fit into memory; use fewer clients or links."
            ) from None

    @classmethod
    def random_geometric(
        cls, clients: int, radius: float = 0.4, *, seed: int = 0, weights: str = "degree"
    ) -> Network:
        """Clients at random in the unit square, linked both ways within a radius.

        clients: how many. radius: the largest distance of a link. weights, seed: see `draw`.
        """
        return cls.draw(graphs.RandomGeometric(clients, radius), seed=seed, weights=weights)

    @classmethod
    def directed_geometric(
        cls,
        clients: int,
        low: float = 0.3,
        high: float = 0.6,
        *,
        seed: int = 0,
        weights: str = "degree",
    ) -> Network:
        """Clients at random in the unit square, each with its own transmit radius.

        clients: how many. low: the smallest radius. high: the largest radius. weights, seed: see `draw`.
        """
        return cls.draw(graphs.DirectedGeometric(clients, low, high), seed=seed, weights=weights)

    @classmethod
    def ring(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        """The directed ring: client i sends to i + 1. clients: how many. weights, seed: see `draw`."""
        return cls.draw(graphs.Ring(clients), seed=seed, weights=weights)

    @classmethod
    def exponential(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        """Client i sends to i + 1, i + 2, i + 4, …. clients: how many. weights, seed: see `draw`."""
        return cls.draw(graphs.Exponential(clients), seed=seed, weights=weights)

    @classmethod
    def complete(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        """Every client sends to every other. clients: how many. weights, seed: see `draw`."""
        return cls.draw(graphs.Complete(clients), seed=seed, weights=weights)

    @classmethod
    def star(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        """Client 0 in the middle, links both ways. clients: how many. weights, seed: see `draw`."""
        return cls.draw(graphs.Star(clients), seed=seed, weights=weights)

    @classmethod
    def erdos_renyi(
        cls, clients: int, probability: float = 0.4, *, seed: int = 0, weights: str = "degree"
    ) -> Network:
        """Every ordered pair of clients is a link with the same probability.

        clients: how many. probability: of each link. weights, seed: see `draw`.
        """
        return cls.draw(graphs.ErdosRenyi(clients, probability), seed=seed, weights=weights)

    @classmethod
    def k_out(
        cls, clients: int, out: int = 3, *, seed: int = 0, weights: str = "degree"
    ) -> Network:
        """Every client sends to the same number of others.

        clients: how many. out: to how many others each client sends. weights, seed: see `draw`.
        """
        return cls.draw(graphs.KOut(clients, out), seed=seed, weights=weights)

    @classmethod
    def k_regular(
        cls, clients: int, degree: int = 3, *, seed: int = 0, weights: str = "degree"
    ) -> Network:
        """Every client sends to and receives from the same number of others.

        clients: how many. degree: to and from how many. weights, seed: see `draw`.
        """
        return cls.draw(graphs.KRegular(clients, degree), seed=seed, weights=weights)

    # --- from what the user has --------------------------------------------------------------
    @classmethod
    def from_networkx(
        cls,
        graph: networkx.Graph,
        *,
        weights: str | None = None,
        seed: int = 0,
        nodelist: Sequence[Hashable] | None = None,
    ) -> Network:
        """Take a `networkx` graph, in which an edge (u, v) means that u sends to v.

        Nodes 0 … m-1 are the clients of these numbers. Nodes with other names are sorted by name (n2 before
        n10), and the network keeps the names. The order in which nodes and edges were added means nothing.

        Args:
            graph: A `networkx.Graph` (links both ways) or `networkx.DiGraph`.
            weights: "degree", "random" or "given", see `from_graph`. A graph with edge attributes `weight`
                other than 1 needs one of them.
            seed: Of random weights.
            nodelist: All nodes in the order of the clients, if it is to be another.
        """
        return cls.from_graph(graph_of_networkx(graph, nodelist), weights=weights, seed=seed)

    @classmethod
    def from_adjacency(
        cls,
        adjacency: ArrayLike,
        A: ArrayLike | None = None,
        B: ArrayLike | None = None,
        W: ArrayLike | None = None,
        *,
        weights: str | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> Network:
        """Take an adjacency matrix, an array or a sparse matrix of scipy.

        Args:
            adjacency: (clients, clients); [i, j] is not 0 where i receives from j. Entries other than 0 and 1
                are weights of edges; the diagonal is used with `weights="given"` only.
            A, B, W, weights, seed: See `from_graph`.
            names: The names of the clients.
        """
        if A is not None and B is not None and weights is None:
            weights = "degree"  # of W only, which no entry of the adjacency is for
        return cls.from_graph(
            graph_of_matrix(adjacency, names), A, B, W, weights=weights, seed=seed
        )

    @classmethod
    def from_graph(
        cls,
        graph: Graph,
        A: ArrayLike | None = None,
        B: ArrayLike | None = None,
        W: ArrayLike | None = None,
        *,
        weights: str | None = None,
        seed: int = 0,
    ) -> Network:
        """Check that the graph is strongly connected, take the weights given and make the others.

        Args:
            graph: The links.
            A: Row-stochastic (clients, clients) pull weights; made by the rule `weights` if None.
            B: Column-stochastic push weights, likewise.
            W: Symmetric doubly stochastic gossip weights; Metropolis weights if None.
            weights: "degree" (1/(1 + degree), the paper's rule), "random" rows and columns, or "given": the
                edges' own weights, divided by their sum over the in-links of a client for A and over its
                out-links for B. A client's own weight is that of its self-loop, or the mean of those links.
                None: by degree, but a graph with weights other than 1 is refused.
            seed: Of random weights.
        """
        if not isinstance(graph, Graph):
            raise InvalidNetwork(
                f"graph must be a Graph, got {type(graph).__name__}; use spodgt.graphs.Graph.of."
            )
        if weights is not None and not (isinstance(weights, str) and weights in WEIGHTS):
            raise InvalidNetwork(
                f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}; use degree."
            )
        if graph.clients < 1:
            raise InvalidNetwork("the graph must have at least one client, got none; add nodes.")
        check_connected(graph)
        edges = edge_weights(graph, weights)
        ends = {"A": graph.receivers, "B": graph.senders}
        if edges is not None:
            a, b = (given(end, graph, edges) for end in ends.values())
        elif weights == "random":
            a, b = (random(end, graph, seed, name) for name, end in ends.items())
        else:
            a, b = (degree(end, graph) for end in ends.values())
        return cls(
            graph.clients,
            graph.receivers,
            graph.senders,
            a if A is None else checked(A, "A", graph),
            b if B is None else checked(B, "B", graph),
            metropolis(graph, edges) if W is None else checked(W, "W", graph),
            graph.positions,
            graph.names,
        )

    def link_label(self, link: int) -> str:
        """What link number `link` is called."""
        return f"{self.label(self.senders[link])} → {self.label(self.receivers[link])}"

    # --- views -------------------------------------------------------------------------------
    def __repr__(self) -> str:
        kind = "not all two-way" if self.w is None else "all two-way"
        return f"<Network: {self.clients:,} clients, {self.links:,} links, {kind}>"

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
        return reverse_links(self.clients, self.receivers, self.senders)

    @property
    def two_way(self) -> bool:
        return self.reverse is not None

    @property
    def graph(self) -> networkx.DiGraph:
        """The `networkx.DiGraph` by names, edge (j, i) for link j → i, with its weights a and b."""
        import networkx as nx

        graph, nodes = nx.DiGraph(), range(self.clients) if self.names is None else self.names
        graph.add_nodes_from(nodes)
        graph.add_edges_from(
            (nodes[j], nodes[i], {"a": float(a), "b": float(b)})
            for i, j, a, b in zip(self.receivers, self.senders, self.a, self.b, strict=True)
        )
        return graph

    @property
    def adjacency(self) -> Bools:
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
            j, i = map(self.label, self.one_way_link())
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


def check_network(network: object) -> None:
    """Refuse what is neither a network nor a recipe; a class of recipes is none."""
    if isinstance(network, Network | Recipe) and not isinstance(network, type):
        return
    got, fix = (
        type(network).__name__,
        "use spodgt.Network.from_networkx(graph) for a networkx graph.",
    )
    if isinstance(network, type):
        got, fix = (
            f"the class {network.__name__}",
            f"use spodgt.graphs.{network.__name__}(…) with its arguments.",
        )
    raise InvalidNetwork(
        f"network must be a spodgt.Network or a recipe of spodgt.graphs, got {got}; {fix}"
    )


def as_network(network: Network | Recipe, seed: int, weights: str | None = None) -> Network:
    """A fixed network is the same for every seed; a recipe is drawn anew."""
    check_network(network)
    return (
        network
        if isinstance(network, Network)
        else Network.draw(network, seed=seed, weights=weights)
    )


def _link_weights(value: Floats | None, name: str, links: int) -> Floats | None:
    if value is None and name == "w":
        return None
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    if array.shape != (links,) or not ((array > 0) & np.isfinite(array)).all():
        raise InvalidNetwork(
            f"{name} must be {links} finite numbers above 0, one per link, got {short_repr(value)}."
        )
    return array


def check_connected(graph: Graph) -> None:
    """Refuse a graph in which some client cannot reach another."""
    count, component = graph.components()
    if count == 1:
        return
    received = np.bincount(graph.receivers, minlength=graph.clients)
    sent = np.bincount(graph.senders, minlength=graph.clients)
    if not received.all():
        why, fix = (
            f"client {graph.label(int(np.argmin(received)))} receives from nobody",
            "give it an in-link",
        )
    elif not sent.all():
        why, fix = (
            f"client {graph.label(int(np.argmin(sent)))} sends to nobody",
            "give it an out-link",
        )
    else:
        one, other = graph.label(0), graph.label(int(np.argmax(component != component[0])))
        why = f"clients {one} and {other} cannot reach each other both ways"
        fix = "add links between their groups"
    raise InvalidNetwork(f"the graph must be strongly connected, but {why}; {fix}.")

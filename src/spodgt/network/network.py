"""A strongly connected digraph with its mixing weights.

`A` pulls (rows sum to one: receivers weigh), `B` pushes (columns sum to one: senders weigh) and,
where every link has its reverse, `W` gossips (symmetric, doubly stochastic). Only link weights are
stored; each diagonal entry is one minus its row (A, W) or column (B) sum, recomputed when links fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from spodgt.errors import InvalidNetwork
from spodgt.network import recipes as graphs
from spodgt.network.recipes import Graph, Recipe
from spodgt.network.weights import WEIGHTS, checked, degree, metropolis, random, reverse_links, square
from spodgt.types import Bools, Floats, Ints

if TYPE_CHECKING:
    import networkx

DENSE_LIMIT = 2000  # above this many clients no (clients × clients) matrix is made


@dataclass(frozen=True, eq=False)
class Network:
    """The links between clients and their weights. Build one with the class methods below.

    Args:
        clients: How many.
        receivers: (links,) the receiver of each link, sorted by receiver, then sender.
        senders: (links,) the sender of each link.
        a: (links,) pull weights a_ij of link j → i.
        b: (links,) push weights b_ij.
        w: (links,) gossip weights; None unless every link has its reverse.
        positions: (clients, 2) in the unit square, where the graph has them.
    """

    clients: int
    receivers: Ints
    senders: Ints
    a: Floats
    b: Floats
    w: Floats | None
    positions: Floats | None = None

    # --- from a recipe -----------------------------------------------------------------------
    @classmethod
    def draw(cls, recipe: Recipe, *, seed: int = 0, weights: str = "degree") -> Network:
        """Draw a recipe's graph and weigh its links.

        Args:
            recipe: A graph of `spodgt.graphs`.
            seed: Of the graph, and of random weights.
            weights: "degree" or "random", see `from_graph`.
        """
        return cls.from_graph(recipe.draw(seed), weights=weights, seed=seed)

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
        cls, clients: int, low: float = 0.3, high: float = 0.6, *, seed: int = 0, weights: str = "degree"
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
    def k_out(cls, clients: int, out: int = 3, *, seed: int = 0, weights: str = "degree") -> Network:
        """Every client sends to the same number of others.

        clients: how many. out: to how many others each client sends. weights, seed: see `draw`.
        """
        return cls.draw(graphs.KOut(clients, out), seed=seed, weights=weights)

    @classmethod
    def k_regular(cls, clients: int, degree: int = 3, *, seed: int = 0, weights: str = "degree") -> Network:
        """Every client sends to and receives from the same number of others.

        clients: how many. degree: to and from how many. weights, seed: see `draw`.
        """
        return cls.draw(graphs.KRegular(clients, degree), seed=seed, weights=weights)

    # --- from what the user has --------------------------------------------------------------
    @classmethod
    def from_networkx(cls, graph: networkx.Graph, *, weights: str = "degree", seed: int = 0) -> Network:
        """Take a `networkx` graph: clients are its nodes in its order, an edge (u, v) means u sends to v.

        Args:
            graph: A `networkx.Graph` (links both ways) or `networkx.DiGraph`.
            weights: "degree" or "random", see `from_graph`.
            seed: Of random weights.
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
        """Take an adjacency matrix.

        Args:
            adjacency: (clients, clients); [i, j] is true where i receives from j. The diagonal is ignored.
            A, B, W, weights, seed: See `from_graph`.
        """
        receivers, senders = np.nonzero(square(adjacency, "adjacency"))
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
        """Check that the graph is strongly connected, take the weights given and make the others.

        Args:
            graph: The links.
            A: Row-stochastic (clients, clients) pull weights; made by the rule `weights` if None.
            B: Column-stochastic push weights, likewise.
            W: Symmetric doubly stochastic gossip weights; Metropolis weights if None.
            weights: "degree" (1/(1 + degree), the paper's rule) or "random" rows and columns.
            seed: Of random weights.
        """
        if weights not in WEIGHTS:
            raise InvalidNetwork(f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}; use degree.")
        if graph.clients < 1:
            raise InvalidNetwork("the graph must have at least one client, got none; add nodes.")
        _check_connected(graph)
        by_degree = weights == "degree"
        a = degree(graph.receivers, graph) if by_degree else random(graph.receivers, graph, seed, "A")
        b = degree(graph.senders, graph) if by_degree else random(graph.senders, graph, seed, "B")
        return cls(
            graph.clients,
            graph.receivers,
            graph.senders,
            a if A is None else checked(A, "A", graph),
            b if B is None else checked(B, "B", graph),
            metropolis(graph) if W is None else checked(W, "W", graph),
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
        return reverse_links(self.clients, self.receivers, self.senders)

    @property
    def two_way(self) -> bool:
        return self.reverse is not None

    @property
    def graph(self) -> networkx.DiGraph:
        """The `networkx.DiGraph`, edge (j, i) for link j → i, with its weights a and b."""
        import networkx as nx

        graph = nx.DiGraph()
        graph.add_nodes_from(range(self.clients))
        graph.add_edges_from(
            (int(j), int(i), {"a": float(a), "b": float(b)})
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


def _check_connected(graph: Graph) -> None:
    count, component = graph.components()
    if count == 1:
        return
    received = np.bincount(graph.receivers, minlength=graph.clients)
    sent = np.bincount(graph.senders, minlength=graph.clients)
    if not received.all():
        why, fix = f"client {int(np.argmin(received))} receives from nobody", "give it an in-link"
    elif not sent.all():
        why, fix = f"client {int(np.argmin(sent))} sends to nobody", "give it an out-link"
    else:
        one, other = 0, int(np.argmax(component != component[0]))
        why = f"clients {one} and {other} cannot reach each other both ways"
        fix = "add links between their groups"
    raise InvalidNetwork(f"the graph must be strongly connected, but {why}; {fix}.")

"""A strongly connected digraph with its mixing weights.

`A` is row-stochastic (pull: receivers weigh), `B` is column-stochastic (push: senders weigh) and,
if each link has its reverse, `W` is symmetric and doubly stochastic (gossip). Only link weights are
stored; a diagonal entry is one minus its row sum (A, W) or column sum (B), recomputed when links
fail.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from spodgt._util.deprecation import warn_renamed
from spodgt._util.text import html_table, short_repr
from spodgt.errors import InvalidNetwork
from spodgt.network import graphs
from spodgt.network.conversion import graph_from_matrix, graph_from_networkx
from spodgt.network.graph import Graph, check_connected, sort_links
from spodgt.network.graphs import GraphRecipe
from spodgt.network.mixing_weights import (
    WEIGHT_RULES,
    SparseMatrix,
    link_weights,
    metropolis_weights,
    pull_and_push_weights,
    select_edge_weights,
)
from spodgt.network.weighted_digraph import WeightedDigraph
from spodgt.types import Floats, Ints

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, eq=False, repr=False)
class Network(WeightedDigraph):
    """The links between clients and their mixing weights. Build one with the class methods below.

    Args:
        clients: Number of clients.
        receivers: (links,) receiver of each link, in any order; stored by receiver, then sender.
        senders: (links,) sender of each link.
        a: (links,) pull weights a_ij of link j → i.
        b: (links,) push weights b_ij.
        w: (links,) gossip weights; None unless each link has its reverse.
        positions: (clients, 2) in the unit square, if the graph has positions.
        names: One name per client; None: clients are labelled by their numbers.
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
        order = sort_links(self)
        for name in ("a", "b") if self.w is None else ("a", "b", "w"):
            weights = _check_link_weights(getattr(self, name), name, self.links)
            object.__setattr__(self, name, weights[order])
        if self.positions is not None and np.shape(self.positions) != (self.clients, 2):
            got = np.shape(self.positions)
            raise InvalidNetwork(
                f"positions must be ({self.clients}, 2), one row per client, got {got}."
            )

    # --- from a recipe -----------------------------------------------------------------------
    @classmethod
    def draw(cls, recipe: GraphRecipe, *, seed: int = 0, weights: str | None = None) -> Network:
        """Draw the graph of a recipe and compute its mixing weights.

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

        Args:
            clients: Number of clients.
            radius: Largest distance of a link.
            seed: See `draw`.
            weights: See `from_graph`.
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

        Args:
            clients: Number of clients.
            low: Smallest transmit radius.
            high: Largest transmit radius.
            seed: See `draw`.
            weights: See `from_graph`.
        """
        return cls.draw(graphs.DirectedGeometric(clients, low, high), seed=seed, weights=weights)

    @classmethod
    def ring(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        """The directed ring: client i sends to i + 1.

        Args:
            clients: Number of clients.
            weights: See `from_graph`.
            seed: Of random weights.
        """
        return cls.draw(graphs.Ring(clients), seed=seed, weights=weights)

    @classmethod
    def exponential(cls, clients: int, *, weights: str = "degree", seed: int = 0) -> Network:
        """The static exponential graph: client i sends to i + 1, i + 2, i + 4, ….

        Args:
            clients: Number of clients.
            weights: See `from_graph`.
            seed: Of random weights.
        """
        return cls.draw(graphs.Exponential(clients), seed=seed, weights=weights)

    # --- from a graph of the user ------------------------------------------------------------
    @classmethod
    def from_networkx(
        cls,
        graph: networkx.Graph,
        *,
        weights: str | None = None,
        seed: int = 0,
        nodelist: Sequence[Hashable] | None = None,
    ) -> Network:
        """Build a network from a `networkx` graph; an edge (u, v) means that u sends to v.

        Nodes 0 … m-1 are the clients with these numbers. Other nodes are sorted by name (n2 before
        n10), and the network keeps their names. The order in which nodes and edges were added does
        not matter.

        Args:
            graph: A `networkx.Graph` (links both ways) or `networkx.DiGraph`.
            weights: "degree", "random" or "given", see `from_graph`. Required if the edges have
                attributes `weight` other than 1.
            seed: Of random weights.
            nodelist: All nodes in the order of the clients; by name if None.
        """
        return cls.from_graph(graph_from_networkx(graph, nodelist), weights=weights, seed=seed)

    @classmethod
    def from_adjacency(
        cls,
        adjacency: ArrayLike | SparseMatrix,
        A: ArrayLike | SparseMatrix | None = None,
        B: ArrayLike | SparseMatrix | None = None,
        W: ArrayLike | SparseMatrix | None = None,
        *,
        weights: str | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> Network:
        """Build a network from an adjacency matrix.

        Args:
            adjacency: (clients, clients), an array or a sparse matrix of scipy; [i, j] is not 0
                where i receives from j. Entries other than 0 and 1 are edge weights; the diagonal
                is used with `weights="given"` only.
            A: Row-stochastic pull weights, see `from_graph`.
            B: Column-stochastic push weights, see `from_graph`.
            W: Doubly stochastic weights, see `from_graph`.
            weights: The rule for weights that are not given, see `from_graph`.
            seed: Of random weights.
            names: One name per client.
        """
        if A is not None and B is not None and weights is None:
            weights = "degree"  # for W only; A and B do not need the edge weights
        graph = graph_from_matrix(adjacency, names)
        return cls.from_graph(graph, A, B, W, weights=weights, seed=seed)

    @classmethod
    def from_graph(
        cls,
        graph: Graph,
        A: ArrayLike | SparseMatrix | None = None,
        B: ArrayLike | SparseMatrix | None = None,
        W: ArrayLike | SparseMatrix | None = None,
        *,
        weights: str | None = None,
        seed: int = 0,
    ) -> Network:
        """Build a network from a graph, and compute the mixing weights that are not given.

        Args:
            graph: The links.
            A: Row-stochastic (clients, clients) pull weights; by the rule `weights` if None.
            B: Column-stochastic push weights, likewise.
            W: Symmetric doubly stochastic gossip weights; Metropolis weights if None.
            weights: "degree" (1/(1 + degree), the paper's rule), "random", or "given": the edge
                weights, divided by their sum over a client's in-links for A and over its out-links
                for B. A client's self-weight is that of its self-loop, or the mean of those links.
                None: "degree"; edge weights other than 1 are an error.
            seed: Of random weights.

        Raises:
            InvalidNetwork: The graph is not strongly connected, or weights are not stochastic.
        """
        if not isinstance(graph, Graph):
            raise InvalidNetwork(
                f"graph must be a Graph, got {type(graph).__name__}; use spodgt.graphs.Graph.of."
            )
        if weights is not None and not (isinstance(weights, str) and weights in WEIGHT_RULES):
            raise InvalidNetwork(
                f"weights must be one of {', '.join(WEIGHT_RULES)}, got {weights!r}; use degree."
            )
        if graph.clients < 1:
            raise InvalidNetwork("the graph must have at least one client, got none; add nodes.")
        check_connected(graph)
        edge_weights = select_edge_weights(graph, weights)
        a, b = pull_and_push_weights(graph, weights, edge_weights, seed)
        return cls(
            graph.clients,
            graph.receivers,
            graph.senders,
            a if A is None else link_weights(A, "A", graph),
            b if B is None else link_weights(B, "B", graph),
            metropolis_weights(graph, edge_weights) if W is None else link_weights(W, "W", graph),
            graph.positions,
            graph.names,
        )

    def __repr__(self) -> str:
        kind = "not all two-way" if self.w is None else "all two-way"
        return f"<Network: {self.clients:,} clients, {self.links:,} links, {kind}>"

    def _repr_html_(self) -> str:
        """The links of each client in a notebook."""
        links_out = np.bincount(self.senders, minlength=self.clients)
        links_in = np.bincount(self.receivers, minlength=self.clients)
        rows = []
        for client in range(self.clients):
            rows.append((self.label(client), links_out[client], links_in[client]))
        return html_table(repr(self), ("client", "links out", "links in"), rows)


def check_network(network: object) -> None:
    """Raise `InvalidNetwork` if `network` is neither a network nor an instance of a recipe."""
    if isinstance(network, type):
        got = f"the class {network.__name__}"
        fix = f"use spodgt.graphs.{network.__name__}(…) with its arguments."
    elif isinstance(network, Network | GraphRecipe):
        return
    else:
        got = type(network).__name__
        fix = "use spodgt.Network.from_networkx(graph) for a networkx graph."
    raise InvalidNetwork(
        f"network must be a spodgt.Network or a recipe of spodgt.graphs, got {got}; {fix}"
    )


def as_network(network: Network | GraphRecipe, seed: int, weights: str | None = None) -> Network:
    """The network itself, which is the same for every seed, or the network drawn from a recipe."""
    check_network(network)
    if isinstance(network, Network):
        return network
    return Network.draw(network, seed=seed, weights=weights)


def _check_link_weights(values: Floats, name: str, links: int) -> Floats:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    if array.shape != (links,) or not ((array > 0) & np.isfinite(array)).all():
        raise InvalidNetwork(
            f"{name} must be {links} finite numbers above 0, one per link, "
            f"got {short_repr(values)}."
        )
    return array


# --- deprecated class methods --------------------------------------------------------------------
class _DeprecatedGraph:
    """A former class method such as `Network.complete(clients)`."""

    def __init__(self, name: str, recipe: type[GraphRecipe]) -> None:
        self.name = name
        self.recipe = recipe

    def __call__(
        self, *args: float, seed: int = 0, weights: str = "degree", **fields: float
    ) -> Network:
        new = f"spodgt.Network.draw(spodgt.graphs.{self.recipe.__name__}(…))"
        warn_renamed(f"Network.{self.name}", new)
        return Network.draw(self.recipe(*args, **fields), seed=seed, weights=weights)


_DEPRECATED_GRAPHS: dict[str, type[GraphRecipe]] = {
    "complete": graphs.Complete,
    "star": graphs.Star,
    "erdos_renyi": graphs.ErdosRenyi,
    "k_out": graphs.KOut,
    "k_regular": graphs.KRegular,
}
for _name, _recipe in _DEPRECATED_GRAPHS.items():
    setattr(Network, _name, _DeprecatedGraph(_name, _recipe))

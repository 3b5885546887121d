"""The mixing matrices of a network, and its networkx graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spodgt.errors import InvalidNetwork
from spodgt.network.graph import Digraph
from spodgt.types import Bools, Floats

if TYPE_CHECKING:
    import networkx

DENSE_LIMIT = 2000  # clients above which no (clients, clients) matrix is computed


class WeightedDigraph(Digraph):
    """Matrices of a digraph with mixing weights; base of `Network`."""

    a: Floats  # (links,) pull weights
    b: Floats  # (links,) push weights
    w: Floats | None  # (links,) gossip weights; None unless each link has its reverse

    @property
    def graph(self) -> networkx.DiGraph:
        """A `networkx.DiGraph` with an edge (j, i) for link j → i, with its weights a and b."""
        import networkx as nx

        nodes = range(self.clients) if self.names is None else self.names
        graph = nx.DiGraph()
        graph.add_nodes_from(nodes)
        for i, j, a, b in zip(self.receivers, self.senders, self.a, self.b, strict=True):
            graph.add_edge(nodes[j], nodes[i], a=float(a), b=float(b))
        return graph

    @property
    def adjacency(self) -> Bools:
        """(clients, clients), [receiver, sender]."""
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
        """Symmetric and doubly stochastic (clients, clients); only if links are two-way."""
        if self.w is None:
            sender, receiver = map(self.label, self.one_way_link())
            raise InvalidNetwork(
                f"W exists only where every link has its reverse, and link {sender} → {receiver} "
                f"has none; add link {receiver} → {sender} or use a method for directed graphs."
            )
        matrix = self._dense(self.w)
        return matrix + np.diag(1 - matrix.sum(1))

    def _dense(self, values: Floats) -> Floats:
        if self.clients > DENSE_LIMIT:
            raise InvalidNetwork(
                f"a dense matrix of {self.clients} clients is not made above {DENSE_LIMIT}; "
                "use network.receivers, network.senders and the link weights network.a, network.b."
            )
        matrix = np.zeros((self.clients, self.clients))
        matrix[self.receivers, self.senders] = values
        return matrix

"""Networks read from files: GraphML, GML, edge lists, adjacency matrices in CSV."""

from __future__ import annotations

import warnings
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from spodgt.errors import InvalidConfig, InvalidNetwork
from spodgt.network.network import Network
from spodgt.network.recipes import Graph
from spodgt.types import Floats
from spodgt.validation import Must, recipe

if TYPE_CHECKING:
    import networkx

_SUFFIXES = (".graphml", ".gml", ".txt", ".edgelist", ".csv")


@recipe(InvalidNetwork)
class GraphFile:
    """The graph in a file, the same for every seed; it is read when it is first needed.

    `.graphml` and `.gml` as networkx reads them, `.txt` and `.edgelist` with lines "u v" (u sends to v), or
    a 0/1 matrix [receiver, sender] in `.csv`.

    Args:
        path: The file.
    """

    name: ClassVar[str] = "file"
    path: Annotated[str, Must("text in quotes", "file.csv")]

    @property
    def clients(self) -> int:
        return self._graph.clients

    def draw(self, seed: int) -> Graph:
        """The graph; the seed changes nothing."""
        return self._graph

    @cached_property
    def _graph(self) -> Graph:
        found = self._read()
        try:
            if isinstance(found, np.ndarray):
                network = Network.from_adjacency(found)
            else:
                network = Network.from_networkx(_in_order(found))
        except InvalidNetwork as error:
            raise InvalidNetwork(f"network.path={self.path!r} is no network: {error}") from None
        return Graph(network.clients, network.receivers, network.senders)

    def _read(self) -> Floats | networkx.Graph:
        suffix = Path(self.path).suffix
        if suffix not in _SUFFIXES:
            raise InvalidConfig(f"network.path={self.path!r} must end in {', '.join(_SUFFIXES)}.")
        import networkx as nx

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an empty file; the network says what is wrong with it
                if suffix == ".csv":
                    return np.loadtxt(self.path, delimiter=",", ndmin=2)
                if suffix in (".graphml", ".gml"):
                    return nx.read_graphml(self.path) if suffix == ".graphml" else nx.read_gml(self.path)
                return nx.read_edgelist(self.path, create_using=nx.DiGraph)
        except FileNotFoundError:
            raise InvalidConfig(
                f"network.path={self.path!r} does not exist; give the path of a graph file."
            ) from None
        except Exception as error:  # readers of graph formats raise whatever their parsers raise
            reason = str(error).strip().split("\n")[0].split(";")[0].rstrip(".")
            raise InvalidConfig(
                f"network.path={self.path!r} cannot be read as {suffix}: {reason}; check the file."
            ) from None


def _in_order(graph: networkx.Graph) -> networkx.Graph:
    """Nodes that are numbers, by their numbers and not by the order of their first lines."""
    if not all(str(node).isdigit() for node in graph):
        return graph
    ordered = graph.__class__()
    ordered.add_nodes_from(sorted(graph, key=int))
    ordered.add_edges_from(graph.edges)
    return ordered

"""Networks read from files: GraphML, GML, edge lists, adjacency matrices in CSV."""

from __future__ import annotations

import csv
import warnings
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from spodgt._util.files import find_data_file
from spodgt._util.text import first_line
from spodgt.errors import InvalidConfig, InvalidNetwork
from spodgt.network.conversion import graph_from_matrix, graph_from_networkx
from spodgt.network.graph import Graph, check_connected
from spodgt.validation import FieldHint, recipe

_SUFFIXES = (".graphml", ".gml", ".txt", ".edgelist", ".csv")


@recipe(InvalidNetwork)
class GraphFile:
    """The graph in a file, the same for every seed; the file is read on first use.

    Formats: `.graphml` and `.gml` as networkx reads them; `.txt` and `.edgelist` with lines "u v"
    or "u v weight" (u sends to v); `.csv` with a matrix [receiver, sender], with or without names
    in the first row and column. Clients and names are those of `Network.from_networkx`.

    Args:
        path: The file. If it does not exist, it is searched below the data directory, such as
            "networks/geant.graphml".
    """

    name: ClassVar[str] = "file"
    path: Annotated[str, FieldHint("text in quotes", "file.csv")]

    @property
    def clients(self) -> int:
        return self._graph.clients

    def draw(self, seed: int) -> Graph:
        """The graph; it does not depend on the seed."""
        return self._graph

    @cached_property
    def _graph(self) -> Graph:
        suffix = Path(self.path).suffix
        if suffix not in _SUFFIXES:
            raise InvalidConfig(f"network.path={self.path!r} must end in {', '.join(_SUFFIXES)}.")
        try:
            graph = _read_graph(find_data_file(self.path), suffix)
            check_connected(graph)
        except InvalidNetwork as error:
            raise InvalidNetwork(f"network.path={self.path!r} is no network: {error}") from None
        except FileNotFoundError:
            raise InvalidConfig(
                f"network.path={self.path!r} does not exist; give the path of a graph file."
            ) from None
        except Exception as error:  # readers of graph formats raise errors of any type
            reason = first_line(error).split(";")[0].rstrip(".")
            raise InvalidConfig(
                f"network.path={self.path!r} cannot be read as {suffix}: {reason}; check the file."
            ) from None
        return graph


def _read_graph(path: Path, suffix: str) -> Graph:
    import networkx as nx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an empty file, which the network rejects
        if suffix == ".csv":
            return _read_matrix(path)
        if suffix == ".graphml":
            return graph_from_networkx(nx.read_graphml(str(path)))
        if suffix == ".gml":
            return graph_from_networkx(nx.read_gml(str(path)))
        return _read_edge_list(path)


def _read_edge_list(path: Path) -> Graph:
    """Lines "u v", "u v weight" or "u v {…}" with a dictionary; "#" starts a comment."""
    import networkx as nx

    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split("#")[0].split()
        if fields:
            rows.append(fields)
    has_weights = all(len(fields) == 3 for fields in rows)
    edges = nx.parse_edgelist(
        map(" ".join, rows),
        create_using=nx.DiGraph,
        data=(("weight", float),) if has_weights else True,
    )
    return graph_from_networkx(edges)


def _read_matrix(path: Path) -> Graph:
    """A matrix of numbers, or one with the names of the clients in its first row and column."""
    import networkx as nx

    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [row for row in csv.reader(lines) if row]
    if not rows or _is_number(rows[0][0]):
        return graph_from_matrix(np.loadtxt(path, delimiter=",", ndmin=2))
    names = [name.strip() for name in rows[0][1:]]
    if [row[0].strip() for row in rows[1:]] != names:
        raise ValueError("names in the first row and in the first column must be the same")
    matrix = np.array([list(map(float, row[1:])) for row in rows[1:]])
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    for i, j in np.argwhere(matrix):
        graph.add_edge(names[j], names[i], weight=matrix[i, j])
    return graph_from_networkx(graph)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

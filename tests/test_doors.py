"""One problem of the user's through every door: compare, sweep, torchrun and real peers.

From each door a model comes out that loads into a plain module and gives the accuracy reported there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.conftest import Cli

pytestmark = pytest.mark.network
SMALL = (
    "--set",
    "network.clients=3",
    "--set",
    "network.kind=ring",
    "--set",
    "run.rounds=40",
    "--set",
    "run.seeds=1",
)
ONE = ("--set", 'run.methods=["spod-gt-memory"]')


@pytest.fixture
def project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert cli("init", "project")[0] == 0
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def accuracy(project: Path, tensors: dict[str, Tensor], hidden: int = 32) -> float:
    """Of a plain module with these tensors, on the test points of the project."""
    spec = importlib.util.spec_from_file_location("own_problem", project / "problem.py")
    assert spec is not None
    assert spec.loader is not None
    problem: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(problem)
    model = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    model.load_state_dict(tensors)
    inputs, labels = problem.points(600, 0.05, seed=2)
    with torch.no_grad():
        return float((model(inputs).argmax(-1) == labels).float().mean())


def reported(folder: Path) -> float:
    """The accuracy of the average model in the record of a run."""
    frame = pd.read_parquet(folder / "metrics.parquet").query("method == 'spod-gt-memory'")
    return float(frame.sort_values("round")["accuracy_average"].iloc[-1])


def exported(cli: Cli, folder: Path) -> dict[str, Tensor]:
    code, _, err = cli("export", folder, "model.safetensors", "--method", "spod-gt-memory")
    assert (code, err) == (0, "")
    return load_file("model.safetensors")


def test_compare_and_torchrun(cli: Cli, project: Path) -> None:
    assert cli("run", "experiment.toml", *SMALL, *ONE, "--out", "one", "--json")[0] == 0
    one = exported(cli, Path("one"))
    assert accuracy(project, one) == pytest.approx(reported(Path("one")), abs=1e-6)
    words = ("-m", "spodgt", "run", "experiment.toml", *SMALL, *ONE, "--out", "two", "--json")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *words,
    ]
    done = subprocess.run(torchrun, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    two = exported(cli, Path("two"))
    assert accuracy(project, two) == pytest.approx(reported(Path("two")), abs=1e-6)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value)


def test_sweep(cli: Cli, project: Path) -> None:
    grid = '[run]\nmethods = ["spod-gt-memory"]\nrounds = 40\nseeds = 1\n'
    grid += '[network]\nkind = "ring"\nclients = 3\n'
    grid += '[problem]\nkind = "python"\nbuild = "problem.py:build"\n'
    grid += '[sweep]\n"problem.arguments.hidden" = [4, 8]\n'
    Path("small.toml").write_text(grid)
    code, _, err = cli("sweep", "small.toml", "--out", "swept", "--workers", "1", "--json")
    assert code == 0, err
    cells = json.loads(Path("swept/sweep.json").read_text())["cells"]
    assert len(cells) == 2
    for cell in cells:
        folder, hidden = Path("swept") / cell["folder"], cell["keys"]["problem.arguments.hidden"]
        assert accuracy(project, exported(cli, folder), hidden) == pytest.approx(
            reported(folder), abs=1e-6
        )


@pytest.mark.slow
def test_peers(cli: Cli, project: Path) -> None:
    where = ("--run", "peers")
    settings = (*SMALL[:4], "--set", "participation.kind=always", "--method", "spod-gt-memory")
    assert cli("peer", "init", *where, "--config", "experiment.toml", *settings)[0] == 0
    assert cli("peer", "issue", "all", *where)[0] == 0
    command = [sys.executable, "-m", "spodgt", "peer", "start"]
    more = (*where, "--quiet", "--durability", "process", "--rounds", "60")
    started = [
        subprocess.Popen(
            [*command, f"p{n}", *more], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        for n in range(3)
    ]
    for process in started:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    for n in range(3):
        folder = Path(f"peers/p{n}")
        assert cli("peer", "export", folder, f"p{n}.safetensors")[0] == 0
        status = json.loads((folder / "status.json").read_text())
        assert accuracy(project, load_file(f"p{n}.safetensors")) == pytest.approx(
            status["accuracy"], abs=1e-6
        )

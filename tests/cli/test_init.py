"""`spodgt init`: what it writes runs as its README says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spodgt.cli.init import STARTER
from tests.conftest import Cli

COMMANDS, SCRIPT = re.findall(r"```\w*\n(.*?)```", (STARTER / "README.md").read_text(), re.DOTALL)
ALONE = [line for line in COMMANDS.splitlines() if line.startswith("spodgt ")]


def test_every_command_is_tried() -> None:
    assert len(ALONE) == 4
    assert [line.split()[0] for line in COMMANDS.splitlines() if line not in ALONE] == ["torchrun"]


def test_what_is_written_runs_as_its_readme_says(cli: Cli) -> None:
    code, out, err = cli("init", "mine")
    assert (code, err) == (0, "")
    assert out.endswith("next: cd mine && spodgt run experiment.toml\n")
    cli.monkeypatch.chdir("mine")
    cli.monkeypatch.setattr(sys, "path", list(sys.path))
    for line in ALONE:
        short = ["--rounds", "20", "--seeds", "1"] if "network" not in line else []
        more = ["--workers", "1"] if "sweep" in line else []
        code, _, err = cli(*shlex.split(line)[1:], *short, *more)
        assert code == 0, err
    assert Path("runs/first/report.html").exists()
    assert json.loads(Path("runs/widths/sweep.json").read_text())["complete"]


@pytest.mark.slow
def test_it_learns(cli: Cli) -> None:
    assert cli("init", ".")[0] == 0
    code, out, err = cli("run", "experiment.toml", "--json")
    assert code == 0, err
    for row in json.loads(out)["methods"]:
        assert row["accuracy"] > 0.8, row


@pytest.mark.slow
@pytest.mark.network
def test_the_script_and_torchrun(cli: Cli, tmp_path: Path) -> None:
    assert cli("init", ".")[0] == 0
    launch = [sys.executable, "-m", "torch.distributed.run"]
    line = shlex.split(COMMANDS.splitlines()[-1])
    for command in ([sys.executable, "-c", SCRIPT], [*launch, *line[1:], "--rounds", "20"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    assert Path("accuracy.png").exists()


@pytest.mark.parametrize("what", ["full", "a file", "below a file"])
def test_nothing_is_overwritten(cli: Cli, what: str) -> None:
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    Path("file").write_text("mine")
    folder = {"full": "full", "a file": "file", "below a file": "file/inner"}[what]
    before = sorted(Path().rglob("*"))
    code, out, err = cli("init", folder)
    assert (code, out) == (2, "")
    sentences = {
        "full": "full is not empty; give a new folder.",
        "a file": "file cannot be written: File exists; give another folder.",
        "below a file": "file/inner cannot be written: Not a directory; give another folder.",
    }
    assert err == f"spodgt: error: {sentences[what]}\n"
    assert sorted(Path().rglob("*")) == before
    assert os.listdir("full") == ["mine.txt"]

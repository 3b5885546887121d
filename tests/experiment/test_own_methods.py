"""Methods and step sizes in files of the user, named "file.py:Class", and copies of this code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import spodgt
from spodgt.algorithms import describe
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.experiment import Experiment
from spodgt.experiment.checks import is_portable
from spodgt.experiment.user_code import code_checksums

METHOD = '''
from dataclasses import dataclass

from factor import FACTOR

from spodgt.algorithms.base import Algorithm, GradientState, Rate, Traits


@dataclass(frozen=True)
class Alone(Algorithm[GradientState]):
    """x⁺ = x - FACTOR η ∇L(x)"""

    name = "alone-here"
    traits = Traits(
        source="spodgt", mixing="none", sporadic_clients="yes", sporadic_links="yes"
    )
    step_size: Rate = 0.01

    def init(self, x, round):
        return GradientState(x, round.grad(x))

    def step(self, state, round):
        x = state.x - FACTOR * self.step_size * state.g
        return GradientState(x, round.grad(x))


not_a_method = 5
'''
PROBLEM = """
import torch
from torch import nn

import spodgt
from factor import FACTOR


def build(clients):
    generator = torch.Generator().manual_seed(3)
    data = []
    for _ in range(clients):
        x = torch.randn(20, 4, generator=generator)
        data.append((x, (x[:, 0] > 0).long()))
    return spodgt.Learning(nn.Linear(4, 2), nn.CrossEntropyLoss(), data, test=data[0])
"""
SCHEDULE = """
def decay(k):
    return 0.5 / k


def negative(k):
    return -0.1
"""
CONFIG = """
[run]
methods = ["mine.py:Alone", { name = "spod-gt", step_size = "steps.py:decay" }]
rounds = 30
seeds = 2

[network]
clients = 4
radius = 0.9

[problem]
kind = "python"
build = "problem.py:build"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> Iterator[Path]:
    """A folder with code, which is the current one."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mine.py").write_text(METHOD)
    (folder / "problem.py").write_text(PROBLEM)
    (folder / "steps.py").write_text(SCHEDULE)
    (folder / "factor.py").write_text("FACTOR = 2.0\n")
    (folder / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "factor", raising=False)
    yield folder
    sys.modules.pop("factor", None)


def test_a_method_of_a_file_runs_by_name(project: Path) -> None:
    network = spodgt.Network.ring(3)
    problem = spodgt.Quadratic.random(3, 2, seed=1)
    named = spodgt.train(
        {"name": "mine.py:Alone", "step_size": 0.1},  # type: ignore[arg-type]
        problem,
        network,
        rounds=20,
        keep_states=True,
    )
    assert named.methods == ["alone-here"]
    states = named.states[0]
    torch.testing.assert_close(states.x[1], states.x[0] - 2.0 * 0.1 * states.g[0])
    instance = spodgt.method("mine.py:Alone", step_size=0.1)
    again = spodgt.train(instance, problem, network, rounds=20)
    pd.testing.assert_frame_equal(again.frame, named.frame)
    assert spodgt.method(**describe(instance)) == instance


def test_the_command_line_takes_it(project: Path, cli: Any) -> None:
    code, out, err = cli(
        "run", "run.toml", "--methods", "mine.py:Alone,spod-gt", "--out", "runs/first", "--quiet"
    )
    assert code == 0, err
    assert "alone-here" in out


def test_a_saved_config_runs_from_anywhere(
    project: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the original files have changed: the run folder holds copies of all of them."""
    code, _, err = cli("run", "run.toml", "--out", "runs/first", "--quiet")
    assert code == 0, err
    out = project / "runs" / "first"
    assert {path.name for path in (out / "code").iterdir()} == {
        "factor.py",
        "mine.py",
        "problem.py",
        "steps.py",
    }
    saved = tomllib.loads((out / "config.toml").read_text())
    assert saved["problem"]["build"] == "code/problem.py:build"
    assert saved["run"]["methods"][0] == "code/mine.py:Alone"
    assert saved["run"]["methods"][1]["step_size"] == "code/steps.py:decay"
    first = pd.read_parquet(out / "metrics.parquet")
    for name in ("factor.py", "mine.py", "problem.py", "steps.py"):
        (project / name).unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "spodgt", "run", out / "config.toml", "--out", "again", "--quiet"],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    pd.testing.assert_frame_equal(pd.read_parquet(elsewhere / "again/metrics.parquet"), first)


def test_a_saved_config_resumes_its_own_run(project: Path, cli: Any) -> None:
    code, _, err = cli("run", "run.toml", "--out", "runs/first", "--quiet")
    assert code == 0, err
    arguments = ["--rounds", 40, "--out", "runs/first", "--resume", "--quiet"]
    code, _, err = cli("run", "runs/first/config.toml", *arguments)
    assert code == 0, err
    assert pd.read_parquet("runs/first/metrics.parquet")["round"].max() == 40
    (project / "steps.py").write_text(SCHEDULE.replace("0.5", "0.4"))
    code, _, err = cli("run", "run.toml", *arguments)
    assert code == 2
    assert "source of steps.py:decay" in err


def test_cells_of_a_sweep_run_it_in_worker_processes(project: Path) -> None:
    tables = Experiment.read("run.toml")
    assert is_portable(tables)
    (project / "sweep.toml").write_text(CONFIG + '\n[sweep]\n"network.radius" = [0.8, 0.9]\n')
    ended = subprocess.run(
        [sys.executable, "-m", "spodgt", "sweep", "sweep.toml", "--out", "cells", "--workers", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    results = pd.read_parquet("cells/results.parquet")
    assert set(results["method"]) == {"alone-here", "spod-gt+function"}


def test_a_run_folder_that_was_moved_runs_and_resumes(
    project: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = cli("run", "run.toml", "--out", "runs/first", "--quiet")
    assert code == 0, err
    first = pd.read_parquet("runs/first/metrics.parquet")
    moved = tmp_path / "archive" / "moved"
    moved.parent.mkdir()
    (project / "runs" / "first").rename(moved)
    shutil.rmtree(project / "runs")
    for name in ("factor.py", "mine.py", "problem.py", "steps.py"):
        (project / name).unlink()
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("factor", None)
    code, _, err = cli("run", moved / "config.toml", "--out", "again", "--quiet")
    assert code == 0, err
    pd.testing.assert_frame_equal(pd.read_parquet("again/metrics.parquet"), first)
    arguments = ["--rounds", 40, "--out", moved, "--resume", "--quiet"]
    code, _, err = cli("run", moved / "config.toml", *arguments)
    assert code == 0, err
    assert pd.read_parquet(moved / "metrics.parquet")["round"].max() == 40


def test_worker_processes_and_a_search_run_it(project: Path, cli: Any) -> None:
    frames = []
    for workers in (1, 2):
        out = project / f"workers-{workers}"
        code, _, err = cli("run", "run.toml", "--workers", workers, "--out", out, "--quiet")
        assert code == 0, err
        frames.append(pd.read_parquet(out / "metrics.parquet"))
    pd.testing.assert_frame_equal(frames[0], frames[1], check_exact=True)
    arguments = ["--methods", "mine.py:Alone", "--rounds", 20, "--seeds", 1, "--out", "search"]
    code, out, err = cli("tune", "--config", "run.toml", *arguments)
    assert code == 0, err
    assert "alone-here" in out
    best = tomllib.loads((project / "search" / "tuned.toml").read_text())
    assert best["run"]["methods"][0]["name"].endswith("mine.py:Alone")


@pytest.mark.network
@pytest.mark.slow
def test_processes_of_torchrun_run_it(project: Path, cli: Any) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, "-m", "spodgt", "run", "run.toml", "--set", "run.dtype=float64"]
    ended = subprocess.run(
        [*command, "--out", "two"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    code, _, err = cli("run", "run.toml", "--set", "run.dtype=float64", "--out", "one")
    assert code == 0, err
    one = pd.read_parquet("one/metrics.parquet")
    two = pd.read_parquet("two/metrics.parquet")
    pd.testing.assert_frame_equal(one, two, rtol=1e-12, atol=1e-12)
    assert (project / "two" / "code" / "mine.py").exists()


def test_a_config_in_another_folder_finds_its_code(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = Experiment.read(project / "run.toml")
    assert [method.name for method in experiment.methods] == ["alone-here", "spod-gt+function"]


# --- step sizes that are functions ---------------------------------------------------------------
@pytest.mark.parametrize("method", ["spod-gt", "dspodfl", "k-gt"])
def test_a_function_is_the_schedule_with_the_same_values(method: str) -> None:
    network = spodgt.Network.random_geometric(5, radius=0.8, seed=0)
    problem = spodgt.Quadratic.random(5, 3, seed=1, noise=0.1)
    frames = []
    for step_size in (
        lambda k: 0.1 / (1 + (k - 1) / 4) ** 0.5,
        {"schedule": "inverse-sqrt", "start": 0.1, "scale": 4.0},
    ):
        result = spodgt.train(
            spodgt.method(method, step_size=step_size),
            problem,
            network,
            spodgt.Bernoulli(0.7),
            rounds=60,
            dtype=torch.float64,
            seeds=[0, 1],
        )
        frames.append(result.frame.drop(columns="method"))
    pd.testing.assert_frame_equal(frames[0], frames[1], rtol=1e-9)


def test_a_sweep_takes_a_function(tmp_path: Path) -> None:
    problem = spodgt.Quadratic.random(3, 2)
    network = spodgt.Network.ring(3)
    swept = spodgt.sweep(
        "spod-gt",
        problem,
        network,
        step_size=lambda k: 0.3 / k**0.5,
        grid={"rounds": [10, 20]},
        out=tmp_path / "sweep",
    )
    method = spodgt.method("spod-gt", step_size={"schedule": "inverse-sqrt", "start": 0.3})
    losses = [
        spodgt.train(method, problem, network, rounds=rounds).frame["loss"].iloc[-1]
        for rounds in (10, 20)
    ]
    assert swept.results["loss"].tolist() == pytest.approx(losses, rel=1e-5)


def test_a_function_of_a_file_is_a_key_of_configs(project: Path) -> None:
    tables = {"run": {"methods": ["spod-gt"], "rounds": 3, "step_size": "steps.py:decay"}}
    experiment = Experiment.parse(tables)
    assert Experiment.parse(experiment.to_dict()).methods == experiment.methods
    (method,) = experiment.methods
    assert method.schedule.at(5) == pytest.approx(0.1)  # type: ignore[attr-defined]
    assert is_portable(experiment)
    assert "source of steps.py:decay" in code_checksums(experiment)


def test_another_function_is_another_run(tmp_path: Path) -> None:
    def train(step_size: Any, **options: Any) -> spodgt.Result:
        return spodgt.train(
            spodgt.method("spod-gt", step_size=step_size),
            spodgt.Quadratic.random(3, 2),
            spodgt.Network.ring(3),
            out=tmp_path / "run",
            **options,
        )

    train(lambda k: 0.1 / k, rounds=5)
    train(lambda k: 0.1 / k, rounds=9, resume=True)
    with pytest.raises(InvalidInput, match=r"holds another run: run\.methods"):
        train(lambda k: 0.2 / k, rounds=9, resume=True)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: spodgt.method("mine.py:Alon"), "did you mean 'Alone'"),
        (lambda: spodgt.method("nowhere.py:Alone"), "does not exist in .*; give the path"),
        (lambda: spodgt.method("mine.py:not_a_method"), "must name a class derived from"),
        (lambda: spodgt.method("mine.py"), "name the class in the file: mine.py:CLASS"),
        (lambda: spodgt.method("spod-gt", step_size="steps.py:deca"), "did you mean 'decay'"),
        (
            lambda: spodgt.method("spod-gt", step_size="steps.py:negative"),
            "step_size must be a number of at least 0 in every round, got -0.1 in round 1",
        ),
        (
            lambda: spodgt.method("spod-gt", step_size=lambda k: 1 / (k - 1)),
            "step_size failed in round 1: ZeroDivisionError: division by zero; it is called with",
        ),
        (
            lambda: spodgt.SpodGT(step_size=lambda k: 0.1),  # type: ignore[arg-type]
            r"use spodgt.method\('spod-gt', step_size=…\)",
        ),
    ],
)
def test_mistakes_are_one_sentence(project: Path, call: Any, sentence: str) -> None:
    with pytest.raises((InvalidConfig, InvalidInput), match=sentence):
        call()

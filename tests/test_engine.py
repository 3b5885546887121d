"""The engine: one switch for all compiled loops, the same numbers without them, a report of what is used."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import spodgt
from spodgt import engine, report
from spodgt.cli import app
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.record import Record


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(engine.VARIABLE, raising=False)


def toy() -> spodgt.Learning:
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, 12, 7, generator=draws, dtype=torch.float64)
    targets = torch.randint(0, 3, (5, 12), generator=draws)
    clients = list(zip(inputs, targets, strict=True))
    model = torch.nn.Linear(7, 3).double()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return spodgt.Learning(
        model, torch.nn.CrossEntropyLoss(), clients, test=clients[0], batch_size=4
    )


def train(name: str, choice: str, problem: spodgt.Learning | None = None) -> spodgt.Result:
    network = spodgt.Network.directed_geometric(5, seed=1)
    options: dict[str, Any] = {
        "rounds": 20,
        "seeds": range(2),
        "dtype": torch.float64,
        "keep_states": True,
    }
    return spodgt.train(
        name, problem or toy(), network, spodgt.Bernoulli(0.6, 0.6), engine=choice, **options
    )


# --- the switch ----------------------------------------------------------------------------------
def test_plain_wins_wherever_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.current_engine() == "auto"
    with engine.use_engine("plain"):
        assert engine.current_engine() == "plain"
        assert not engine.loops_enabled()
        with engine.use_engine("auto"):
            assert engine.current_engine() == "plain"
    assert engine.current_engine() == "auto"
    monkeypatch.setenv(engine.VARIABLE, "plain")
    with engine.use_engine("auto"):
        assert engine.current_engine() == "plain"
        assert engine.describe_engine() == "plain"


def test_loops_are_off_inside_a_block_and_in_threads_that_inherit_it_only() -> None:
    with engine.use_loops(False):
        assert not engine.loops_enabled()
        assert engine.current_engine() == "auto"
        assert not asyncio.run(asyncio.to_thread(engine.loops_enabled))
        with engine.use_loops(True):
            assert not engine.loops_enabled()
        with ThreadPoolExecutor() as others:
            assert others.submit(engine.loops_enabled).result()
    assert engine.loops_enabled()


def test_an_unknown_engine_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"engine='fast' is not known; choose auto or plain\."):
        train("spod-gt", "fast")
    with pytest.raises(InvalidInput, match="engine='c' is not known"):
        Experiment.parse({"run": {"engine": "c"}})
    found = CliRunner().invoke(app, ["compare", "--engine", "fast", "--rounds", "2"])
    assert isinstance(found.exception, InvalidInput)
    assert "engine" in str(found.exception)
    monkeypatch.setenv(engine.VARIABLE, "fast")
    with pytest.raises(InvalidInput, match=r"SPODGT_ENGINE must be auto or plain, got 'fast'"):
        engine.current_engine()


def test_a_config_names_the_engine_unless_it_is_auto() -> None:
    plain = Experiment.parse({"run": {"engine": "plain", "rounds": 3}})
    assert plain.run.engine == plain.to_dict()["run"]["engine"] == "plain"
    assert Experiment.parse(plain.to_dict()).run.engine == "plain"
    assert "engine" not in Experiment().to_dict()["run"]  # as in folders that can still be resumed


# --- the same numbers ----------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["spod-gt", "spod-gt-memory", "k-gt", "fedavg"])
def test_both_engines_give_the_same_run(name: str) -> None:
    fast, plain = train(name, "auto"), train(name, "plain")
    for seed in (0, 1):
        for ours, theirs in zip(fast.states[seed], plain.states[seed], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fast.frame["loss"], plain.frame["loss"], rtol=1e-6)
    assert fast.frame["accuracy"].tolist() == plain.frame["accuracy"].tolist()
    assert fast.participation.equals(plain.participation)


def test_the_plain_engine_calls_step_and_the_module_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = toy()
    calls = {"step": 0, "module": 0}
    step, losses = spodgt.SpodGT.step, LoopEngine.losses_and_gradients

    def counted_step(self, state, round):  # type: ignore[no-untyped-def]
        calls["step"] += isinstance(state.x, torch.Tensor)  # not when it is traced with symbols
        return step(self, state, round)

    def counted_losses(self, *args):  # type: ignore[no-untyped-def]
        calls["module"] += 1
        return losses(self, *args)

    monkeypatch.setattr(spodgt.SpodGT, "step", counted_step)
    monkeypatch.setattr(LoopEngine, "losses_and_gradients", counted_losses)
    train("spod-gt", "auto", problem)
    assert calls == {"step": 0, "module": 0}
    train("spod-gt", "plain", problem)
    assert calls["step"] == 20
    assert calls["module"] >= 20


SMALL = """
import sys
import spodgt
problem = spodgt.problems.fashion_mnist_svm(clients=4, labels_per_client=2)
network = spodgt.Network.ring(4)
result = spodgt.compare(["spod-gt", "fedavg"], problem, network, spodgt.Bernoulli(0.5, 0.5), rounds=5)
print(result.engine, "| numba" if "numba" in sys.modules else "| no numba")
"""


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SPODGT_ENGINE", "plain", "plain | no numba"),
        ("NUMBA_DISABLE_JIT", "1", "auto (PyTorch; compiled loops are switched off) | no numba"),
    ],
)
def test_without_loops_numba_is_not_loaded(variable: str, value: str, said: str) -> None:
    env = {**os.environ, variable: value}
    done = subprocess.run(
        [sys.executable, "-c", SMALL], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == said


# --- what was used -------------------------------------------------------------------------------
def test_record_and_report_name_the_engine_and_a_resumed_run_keeps_it(tmp_path: Path) -> None:
    problem, network = spodgt.Quadratic.random(3, 2), spodgt.Network.ring(3)
    spodgt.compare(["spod-gt"], problem, network, rounds=3, out=tmp_path, engine="plain")
    assert Record.read(tmp_path).engine == "plain"
    assert json.loads((tmp_path / "summary.json").read_text())["engine"] == "plain"
    report.write(tmp_path)
    assert "engine: plain" in (tmp_path / "report.html").read_text()
    with pytest.raises(InvalidInput, match="engine"):
        spodgt.compare(["spod-gt"], problem, network, rounds=6, out=tmp_path, resume=True)


def test_doctor_reports_what_a_run_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CliRunner().invoke(app, ["doctor", "--json"])
    assert found.exit_code == 0, found.output
    facts = json.loads(found.stdout)
    assert facts["engine"].startswith("auto (compiled loops of numba")
    assert torch.__version__.startswith(facts["torch"])  # without the suffix of the build
    assert {
        "python",
        "numba",
        "cpu",
        "threads",
        "cache of compiled loops",
        "data",
        "extras",
    } <= facts.keys()
    assert "fashion-mnist-small" in facts["data"]
    monkeypatch.setenv(engine.VARIABLE, "plain")
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 0
    assert "plain" in shown.stdout
    assert "SPODGT_ENGINE" in shown.stdout

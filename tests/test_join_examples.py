"""The scripts examples/join_*.py: alone, and with `--join` at several sites on loopback."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from spodgt.experiment import Experiment
from spodgt.sites.simulate import SiteProcesses, prepare
from spodgt.sites.simulation_report import SimulationResult

EXAMPLES = Path(__file__).parents[1] / "examples"
LIBRARIES = {
    "join_loop": (),
    "join_trainer": ("transformers", "peft", "accelerate"),
    "join_lightning": ("lightning",),
    "join_flower": ("flwr",),
}


def require(name: str) -> None:
    """Skip the test if a library of the example is not installed."""
    for library in LIBRARIES[name]:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")


def run_at_sites(folder: Path, name: str, clients: int, steps: int) -> SimulationResult:
    table = {"kind": "exponential", "clients": clients}
    run_table = {"methods": ["spod-gt-memory"], "seeds": [0]}
    participation = {"kind": "bernoulli", "p": 1.0, "p_hat": 0.9}
    experiment = Experiment.parse(
        {"network": table, "run": run_table, "participation": participation}
    )
    arguments = ["--shard", "{number}/{clients}", "--steps", str(steps), "--join", "{folder}"]
    run = prepare(EXAMPLES / f"{name}.py", arguments, folder / "run", experiment)
    with SiteProcesses(run) as processes:
        processes.wait(lambda: None, 540)
        codes = [process.poll() for process in processes.running.values()]
    assert codes == [0] * clients
    return SimulationResult.read(run)


@pytest.mark.parametrize("name", LIBRARIES)
def test_example_runs_alone(name: str) -> None:
    require(name)
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout


@pytest.mark.network
@pytest.mark.parametrize("name", LIBRARIES)
def test_example_runs_at_two_sites(name: str, tmp_path: Path) -> None:
    require(name)
    result = run_at_sites(tmp_path, name, clients=2, steps=40)
    assert result.audit_passed
    assert [site.progress.steps for site in result.sites] == [40, 40]
    assert all(site.progress.accuracy is not None for site in result.sites)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", LIBRARIES)
def test_four_sites_learn_classes_that_they_have_not(name: str, tmp_path: Path) -> None:
    """A site alone is right for its own classes at most; how far sites are apart depends on the load."""
    require(name)
    result = run_at_sites(tmp_path, name, clients=4, steps=400)
    assert result.audit_passed
    assert [site.progress.steps for site in result.sites] == [400] * 4
    shares = [0.25] * 4 if name == "join_trainer" else [0.3, 0.3, 0.2, 0.2]
    gains = []
    for share, scores in zip(shares, result.scores.values(), strict=True):
        reported = [score.accuracy for score in scores if score.accuracy is not None]
        gains.append(max(reported) - share)
    print(name, "gains", " ".join(f"{gain:.2f}" for gain in gains))
    assert max(gains) > 0.04, gains

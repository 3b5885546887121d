"""The scripts examples/alone_*.py as they are, and examples/join_*.py at several sites on loopback."""

from __future__ import annotations

import difflib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from spodgt.experiment import Experiment
from spodgt.sites.simulate import SiteProcesses, prepare
from spodgt.sites.simulation_report import SimulationResult

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "howto" / "join.md"
LIBRARIES = {
    "loop": (),
    "trainer": ("transformers", "peft", "accelerate"),
    "lightning": ("lightning",),
    "flower": ("flwr",),
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
    arguments = ["--shard", "{number}/{clients}", "--steps", str(steps)]
    run = prepare(EXAMPLES / f"join_{name}.py", arguments, folder / "run", experiment)
    with SiteProcesses(run) as processes:
        processes.wait(lambda: None, 540)
        codes = [process.poll() for process in processes.running.values()]
    assert codes == [0] * clients
    return SimulationResult.read(run)


def code_lines(path: Path) -> list[str]:
    """The lines of a script after its docstring, without indentation and empty lines."""
    text = path.read_text().split('"""', 2)[2]
    return [line.strip() for line in text.splitlines() if line.strip()]


def shown_lines(first_words: str) -> list[str]:
    """The lines of the code block of the page that follows a comment."""
    after = PAGE.read_text().split(f"<!-- not run: {first_words} -->")[1]
    block = after.split("```")[1]
    return [line for line in block.splitlines()[1:] if line.strip()]


def assert_in_order(lines: list[str], script: list[str]) -> None:
    """Check that the lines are in the script, in this order; "…" stands for any number of lines."""
    position = 0
    for line in lines:
        if line == "…":
            continue
        assert line in script[position:], line
        position = script.index(line, position) + 1


@pytest.mark.parametrize("name", ["loop", "trainer", "lightning"])
def test_difference_on_the_page_is_that_of_the_scripts(name: str) -> None:
    alone = code_lines(EXAMPLES / f"alone_{name}.py")
    joined = code_lines(EXAMPLES / f"join_{name}.py")
    changes = [line for line in difflib.ndiff(alone, joined) if line[0] in "+-"]
    shown = shown_lines(f"alone_{name}.py and join_{name}.py")
    assert [f"{line[0]} {line[1:].strip()}" for line in shown if line[0] in "+-"] == changes
    assert all(change.startswith("+") for change in changes)  # nothing is taken away
    assert_in_order([line[1:].strip() for line in shown], joined)


def test_flower_script_on_the_page_is_that_of_the_example() -> None:
    shown = [line.strip() for line in shown_lines("join_flower.py")]
    assert_in_order(shown, code_lines(EXAMPLES / "join_flower.py"))


@pytest.mark.parametrize(
    "name", ["loop", *(pytest.param(name, marks=pytest.mark.slow) for name in [*LIBRARIES][1:])]
)
def test_example_runs_alone(name: str) -> None:
    """All their lines are also those of the joined scripts, which run at two sites."""
    require(name)
    command = [sys.executable, str(EXAMPLES / f"alone_{name}.py"), "--steps", "5"]
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
    shares = [0.25] * 4 if name == "trainer" else [0.3, 0.3, 0.2, 0.2]
    gains = []
    for share, scores in zip(shares, result.scores.values(), strict=True):
        reported = [score.accuracy for score in scores if score.accuracy is not None]
        gains.append(max(reported) - share)
    print(name, "gains", " ".join(f"{gain:.2f}" for gain in gains))
    assert max(gains) > 0.1, gains

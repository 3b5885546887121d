"""`spodgt.sweep`: grids from Python, by the machinery of the command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import spodgt
import spodgt.report
from spodgt.algorithms.base import Algorithm, GradientState, Rate, Round, Tensor, Traits
from spodgt.errors import InvalidInput
from spodgt.problems import Quadratic
from spodgt.sweeps.cell import Event, Outcome
from tests.conftest import Cli

PROBLEM = """
import spodgt
def build(clients, size=2):
    return spodgt.Quadratic.random(clients, size)
"""
RING = spodgt.graphs.Ring(3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PROBLEM)
    return tmp_path


def sweep(
    grid: Any, *, problem: Any = None, network: Any = RING, methods: Any = "spod-gt", **more: Any
) -> Any:
    problem = problem or spodgt.problems.python("mine.py:build")
    options: dict[str, Any] = {"rounds": 3, "seeds": range(2), "workers": 1} | more
    return spodgt.sweep(methods, problem, network, grid=grid, **options)


# --- laws --------------------------------------------------------------------------------------------
def test_a_cell_is_the_comparison_it_stands_for(folder: Path) -> None:
    done = sweep(
        {"problem.arguments.size": [2, 4], "step_size": [0.01, 0.05]}, methods=["spod-gt", "sgp"]
    )
    assert done.complete
    assert len(done.results) == 4 * 2 * 2
    problem, method = (
        spodgt.problems.python("mine.py:build", size=4),
        spodgt.method("sgp", step_size=0.05),
    )
    alone = spodgt.compare([method], problem, RING, rounds=3, seeds=range(2)).final()
    rows = done.results[
        (done.results["run.step_size"] == 0.05) & (done.results["problem.arguments.size"] == 4)
    ]
    rows = rows[rows["method"] == "sgp"].reset_index(drop=True)
    pd.testing.assert_frame_equal(rows[list(alone)], alone)


def test_it_is_the_commands_sweep(folder: Path, cli: Cli) -> None:
    ours = sweep({"step_size": [0.01, 0.05]}, out="ours")
    code, _, err = cli("sweep", "ours/sweep.toml", "--out", "theirs", "--workers", "1", "--json")
    assert code == 0, err
    theirs = pd.read_parquet("theirs/results.parquet").drop(columns="cell")
    pd.testing.assert_frame_equal(ours.results.drop(columns="cell"), theirs)
    assert cli("report", "ours")[0] == 0


def test_the_same_call_finds_what_is_finished(folder: Path) -> None:
    heard: list[Event] = []
    first = sweep({"step_size": [0.01, 0.05]}, progress=heard.append)
    assert sum(isinstance(event, Outcome) for event in heard) == 2
    heard.clear()
    again = sweep({"step_size": [0.01, 0.05, 0.1]}, progress=heard.append)
    assert sum(isinstance(event, Outcome) for event in heard) == 1, "only the new cell is run"
    assert len(again.results) == len(first.results) * 3 // 2


@dataclass(frozen=True)
class Still(Algorithm[GradientState]):
    name = "still"
    traits = Traits(source="spodgt", mixing="none", sporadic_clients="yes", sporadic_links="yes")
    step_size: Rate = 0.01

    def init(self, x: Tensor, round: Round) -> GradientState:
        return GradientState(x, round.grad(x))

    def step(self, state: GradientState, round: Round) -> GradientState:
        return GradientState(state.x, round.grad(state.x))


def test_objects_of_the_script_run_in_this_process(folder: Path) -> None:
    objects = {
        "problem": Quadratic.random(3, 2),
        "network": spodgt.Network.ring(3),
        "workers": None,
    }
    done = sweep({"rounds": [2, 4]}, methods=[Still(), "spod-gt"], rounds=9, **objects)
    assert done.complete
    assert sorted(set(done.results["round"])) == [2, 4]
    assert not Path("runs/sweep/sweep.toml").exists(), "nothing that cannot be run again"


def test_recipes_are_swept(folder: Path) -> None:
    done = sweep(
        {
            "network": [RING, spodgt.graphs.Complete(3)],
            "participation": [spodgt.Always(), {"kind": "beta", "floor": 0.2}],
            "problem": [Quadratic_recipe(2), Quadratic_recipe(3)],
        }
    )
    assert done.complete
    assert len(done.cells) == 8
    assert set(done.results["participation"]) == {"always", "beta, 0.2"}


def Quadratic_recipe(size: int) -> Any:
    return spodgt.problems.python("mine.py:build", size=size)


def test_the_best_cell_and_the_picture(folder: Path) -> None:
    done = sweep({"step_size": [0.001, 0.05]}, rounds=30, methods=["spod-gt", "sgp"])
    best = done.best()
    assert list(best["method"]) == ["spod-gt", "sgp"] or list(best["method"]) == [
        "sgp",
        "spod-gt",
    ]
    assert set(best["run.step_size"]) == {0.05}
    assert done.plot("steps.png").stat().st_size > 1000
    for call in (done.best, lambda metric: done.plot("x.png", metric)):
        with pytest.raises(InvalidInput, match=r"metric='f1' is not a column of the results"):
            call("f1")


# --- bad input ---------------------------------------------------------------------------------------
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no grid": ({"grid": {}}, r"grid must name what is swept, got {}"),
    "a list": ({"grid": [1]}, r"grid must name what is swept, got \[1\]"),
    "no values": (
        {"grid": {"step_size": []}},
        r"grid\['step_size'\] must be a list of values, got \[\]",
    ),
    "a value": (
        {"grid": {"step_size": 0.1}},
        r"grid\['step_size'\] must be a list of values, got 0.1",
    ),
    "misspelt": (
        {"grid": {"stepsize": [0.1]}},
        r"grid key 'stepsize' is not known; did you mean 'step_size'",
    ),
    "misspelt key": ({"grid": {"network.clints": [3]}}, r"clints=3 is not a key of network"),
    "bad value": ({"grid": {"rounds": [0]}}, r"rounds must be (a whole number )?above 0, got 0"),
    "object": (
        {"grid": {"problem": [Quadratic.random(3, 2)]}},
        r"grid\['problem'\] must hold recipes, which a config can name, got Quadratic; use spodgt.problems",
    ),
    "own step": (
        {"grid": {"step_size": [0.1]}, "methods": [spodgt.method("sgp")]},
        r'step_size is swept, but sgp was given with one of its own; give it by name, "sgp"',
    ),
    "misspelt option": (
        {"grid": {"step_size": [0.1]}, "round": 3},
        r"round=3 is not an option of sweep",
    ),
    "bad argument": (
        {"grid": {"problem.arguments.siz": [1]}},
        r"problem.arguments.siz=1 is not a parameter of mine.py:build; did you mean 'size'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_sentence(folder: Path, case: str) -> None:
    options, sentence = BAD[case]
    with pytest.raises(InvalidInput, match=sentence):
        sweep(**options)
    assert not Path("runs").exists()


# --- which data choose -------------------------------------------------------------------------------
def swept_guesses(folder: Path, test_seed: int, **options: Any) -> Any:
    """Step sizes for labels that are coin tosses; only the test data depend on `test_seed`."""

    def tosses(count: int, seed: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(count, 4, generator=draw), torch.randint(0, 2, (count,), generator=draw)

    torch.manual_seed(0)
    clients = [tosses(20, seed) for seed in range(3)]
    test = tosses(10, test_seed)
    problem = spodgt.Learning(nn.Linear(4, 2), nn.CrossEntropyLoss(), clients, test, 5, **options)
    grid = {"step_size": [0.01, 0.1, 0.3, 1.0, 3.0]}
    return sweep(grid, problem=problem, rounds=10, seeds=[0], out=folder / f"runs-{test_seed}")


def test_the_best_cell_is_chosen_by_validation_data(folder: Path) -> None:
    done = [swept_guesses(folder, seed, validation=0.3) for seed in (100, 101, 102)]
    assert len({one.best()["run.step_size"].item() for one in done}) == 1
    best, results = done[0].best(), done[0].results
    row = results.loc[results["validation_accuracy"].idxmax()]
    assert best["run.step_size"].item() == row["run.step_size"]
    assert best["accuracy"].item() == row["accuracy"]
    page = spodgt.report.write(folder / "runs-100").read_text()
    assert "Chosen by validation accuracy, and not by the test accuracy shown." in page
    by_loss = done[0].best("loss")
    assert by_loss["validation_loss"].item() == results["validation_loss"].min()


def test_a_report_says_that_the_best_cell_was_chosen_by_test_data(folder: Path) -> None:
    done = swept_guesses(folder, 100)
    assert done.best()["accuracy"].item() == done.results["accuracy"].max()
    page = spodgt.report.write(folder / "runs-100").read_text()
    assert (
        "Chosen by the test accuracy shown, of the same runs, because the problem has no validation data."
        in page
    )

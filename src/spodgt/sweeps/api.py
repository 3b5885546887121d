"""`spodgt.sweep`: a grid of comparisons from Python, by the machinery of the command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from spodgt import figures
from spodgt.algorithms.base import Algorithm
from spodgt.errors import InvalidInput
from spodgt.experiment import PROBLEMS, Experiment, ExperimentOptions, ProblemRecipe, RunOptions
from spodgt.experiment.run_options import reject_unknown_options
from spodgt.experiment.toml import Table, describe_recipe, problem_table
from spodgt.network import NETWORKS, Network, Recipe
from spodgt.participation import PARTICIPATIONS, Always, Participation
from spodgt.record.sweep import SweepRecord
from spodgt.sweeps import sweep as machinery
from spodgt.sweeps.cell import Event
from spodgt.sweeps.grid import Spec, checked
from spodgt.types import Problem
from spodgt.validation import choices

_ALWAYS = Always()
_OPTIONS = [field.name for field in fields(RunOptions)]
_PARTS: dict[str, Mapping[str, type]] = {
    "network": NETWORKS,
    "participation": PARTICIPATIONS,
    "problem": PROBLEMS,
}
_EXAMPLES = {
    "network": "spodgt.graphs.Ring(10)",
    "participation": "spodgt.Beta(0.5, 0.5)",
    "problem": 'spodgt.problems.python("problem.py:build")',
}


@dataclass(eq=False)
class SweepResult(SweepRecord):
    """The record of a sweep, which can be drawn."""

    def plot(self, path: str | Path, metric: str | None = None) -> Path:
        """Draw the last value of a metric against the first key of the grid, a panel per value of the others.

        Args:
            path: the picture to write; its suffix picks the format: png, svg or pdf.
            metric: a column of `results`; the one the sweep is judged by unless given.
        """
        figures.check_suffix(path)
        if not len(self.results):
            raise InvalidInput(f"sweep {self.name} has no finished cell to draw; see its failures.")
        chosen = metric or self.judged
        if chosen not in self.results:
            raise InvalidInput(
                f"metric={chosen!r} is not a column of the results; {choices(chosen, map(str, self.results))}"
            )
        return figures.save(figures.bars(self.results, list(self.grid), chosen), Path(path))


class SweepOptions(ExperimentOptions, total=False):
    """Keyword arguments of `sweep`: those that describe an experiment, and two of all methods.

    Args:
        step_size: of methods that are given by name.
        layers: of methods that are given by name: momentum, adam, clip_tracker, … with their values.
    """

    step_size: object
    layers: dict[str, object] | None


def sweep(
    algorithms: Sequence[Algorithm | str],
    problem: Problem | ProblemRecipe,
    network: Network | Recipe,
    participation: Participation = _ALWAYS,
    *,
    grid: Mapping[str, Sequence[Any]],
    out: str | Path = "runs/sweep",
    workers: int | None = None,
    checkpoint_every: float = 60.0,
    progress: Callable[[Event], None] | None = None,
    **options: Unpack[SweepOptions],
) -> SweepResult:
    """Run `compare` for every combination of the values in `grid`; what is finished in `out` is kept.

    The same call goes on after an interruption. Cells run in worker processes, which make the experiment
    themselves; one that holds an object of this script (a `Learning`, a fixed network, a method that no
    package has) runs in this process, cell by cell. Give own problems as
    `spodgt.problems.python("problem.py:build")` to use all cores and to sweep over their arguments.

    Args:
        algorithms: methods or their names; `step_size` can be swept for methods that are given by name.
        problem: as for `compare`.
        network: as for `compare`.
        participation: as for `compare`.
        grid: keys and their values, such as {"step_size": [0.01, 0.1], "problem.arguments.hidden": [16, 32]}.
            A key is that of a config ("network.radius"), an option of the run ("rounds", "seeds", …), or
            "network", "participation" or "problem" with recipes as values.
        out: a folder for the sweep: a run folder for every cell, the tables, and later the report.
        workers: how many cells at a time, one per core unless given; of cells that run in this process, how
            many runs at a time, as for `compare`.
        checkpoint_every: seconds between two checkpoints of a cell.
        progress: called with a `CellProgress` or an `Outcome` of `spodgt.sweeps.cell`.
        options: see `SweepOptions`: those of `compare` that describe an experiment, `step_size` and `layers`.
    """
    named = [{"name": each} if isinstance(each, str) else each for each in _listed(algorithms)]
    if not isinstance(grid, Mapping) or not grid:
        raise InvalidInput(
            f"grid must name what is swept, got {grid!r}; use grid={{'step_size': [0.01, 0.1]}}."
        )
    whole = dict(_key(key, values) for key, values in grid.items())
    _refuse_fixed_steps(whole, named)
    ends = {
        key: whole[f"run.{key}"][0]
        for key in ("rounds", "delay", "seconds")
        if f"run.{key}" in whole
    }
    reject_unknown_options(options, SweepOptions.__annotations__, "sweep")
    experiment = Experiment.of(named, problem, network, participation, **{**ends, **options})
    spec = checked(Spec(Path(out).name, experiment, whole))
    record = machinery.run(
        spec, out, workers=workers, save_every=checkpoint_every, display=progress
    )
    return SweepResult(**vars(record))


def _listed(algorithms: object) -> list[Any]:
    if isinstance(algorithms, str | Algorithm):
        return [algorithms]
    return list(algorithms) if isinstance(algorithms, Iterable) else [algorithms]


def _key(key: str, values: object) -> tuple[str, list[Any]]:
    """A key of the grid as a config has it, with values that a config can hold."""
    if (
        isinstance(values, str | Mapping)
        or not isinstance(values, Iterable)
        or not (listed := list(values))
    ):
        raise InvalidInput(
            f"grid[{key!r}] must be a list of values, got {values!r}; use [0.01, 0.1]."
        )
    if key in _PARTS:
        return key, [_table(key, value) for value in listed]
    if key in _OPTIONS:
        return f"run.{key}", listed
    if "." not in str(key):
        raise InvalidInput(f"grid key {key!r} is not known; {choices(key, [*_PARTS, *_OPTIONS])}")
    return key, listed


def _table(key: str, value: object) -> Table:
    """A recipe as the table of a config."""
    if isinstance(value, Mapping):
        return dict(value)
    if type(value) not in _PARTS[key].values():
        raise InvalidInput(
            f"grid[{key!r}] must hold recipes, which a config can name, got {type(value).__name__}; "
            f"use {_EXAMPLES[key]}."
        )
    return (
        problem_table(value)
        if isinstance(value, ProblemRecipe)
        else describe_recipe(value, _PARTS[key])
    )


def _refuse_fixed_steps(grid: Mapping[str, object], methods: Iterable[object]) -> None:
    """A method that was given with its step size would be run at it in every cell."""
    fixed = next((each for each in methods if isinstance(each, Algorithm)), None)
    if fixed is not None and grid.keys() & {"run.step_size", "run.layers"}:
        raise InvalidInput(
            f"step_size is swept, but {fixed.name} was given with one of its own; give it by name, "
            f'"{fixed.name}".'
        )

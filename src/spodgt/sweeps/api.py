"""`spodgt.sweep`: the sweeps of the command line, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from spodgt import figures
from spodgt._util.deprecation import renamed_argument
from spodgt.algorithms.base import Algorithm
from spodgt.errors import InvalidInput
from spodgt.experiment import PROBLEMS, Experiment, ExperimentOptions, ProblemRecipe, RunOptions
from spodgt.experiment.run_options import LIMITS, reject_unknown_options
from spodgt.experiment.toml import Table, describe_recipe, problem_table
from spodgt.network import NETWORKS, GraphRecipe, Network
from spodgt.participation import PARTICIPATIONS, Always, Participation
from spodgt.record.sweep import SweepRecord
from spodgt.sweeps import sweep as sweeps
from spodgt.sweeps.cell import OnEvent
from spodgt.sweeps.grid import Spec, checked
from spodgt.types import Problem
from spodgt.validation import choices

_ALWAYS = Always()
_RUN_OPTIONS = [field.name for field in fields(RunOptions)]
_RECIPES: dict[str, Mapping[str, type]] = {
    "network": NETWORKS,
    "participation": PARTICIPATIONS,
    "problem": PROBLEMS,
}
_EXAMPLES = {
    "network": "spodgt.graphs.Ring(10)",
    "participation": "spodgt.Beta(0.5, 0.5)",
    "problem": 'spodgt.problems.python("problem.py:build")',
}


@dataclass(eq=False, repr=False)
class SweepResult(SweepRecord):
    """The record of a sweep, with a plot."""

    def plot(self, path: str | Path, metric: str | None = None) -> Path:
        """Plot the last value of a metric against the first key of the grid.

        There is one panel for each combination of values of the other keys.

        Args:
            path: The figure to write; its suffix selects the format: png, svg or pdf.
            metric: A column of `results`. Default: the primary metric.
        """
        figures.check_suffix(path)
        if not len(self.results):
            raise InvalidInput(f"sweep {self.name} has no finished cell to draw; see its failures.")
        chosen = metric or self.primary_metric
        if chosen not in self.results:
            known = choices(chosen, map(str, self.results))
            raise InvalidInput(f"metric={chosen!r} is not a column of the results; {known}")
        figure = figures.plot_sweep(
            self.results, list(self.grid), chosen, evaluated_on=self.evaluated_on
        )
        return figures.save(figure, Path(path))


class SweepOptions(ExperimentOptions, total=False):
    """Keyword arguments of `sweep`: those that describe an experiment, and two of all methods.

    Args:
        step_size: Of methods that are given by name.
        layers: Of methods that are given by name: momentum, adam, clip_tracker, … with their
            values.
    """

    step_size: object
    layers: dict[str, object] | None


@renamed_argument("algorithms", "methods")
def sweep(
    methods: Sequence[Algorithm | str],
    problem: Problem | ProblemRecipe,
    network: Network | GraphRecipe,
    participation: Participation = _ALWAYS,
    *,
    grid: Mapping[str, Sequence[Any]],
    out: str | Path = "runs/sweep",
    workers: int | None = None,
    checkpoint_every: float = 60.0,
    progress: OnEvent | None = None,
    **options: Unpack[SweepOptions],
) -> SweepResult:
    """Run `compare` for every combination of the values in `grid`.

    The same call continues after an interruption: finished cells in `out` are not run again. Cells
    run in worker processes, which build the experiment themselves. An experiment that holds an
    object of the calling script (a `Learning`, a fixed network, a method that is in no package)
    runs in this process, cell by cell. Give a problem of your own as
    `spodgt.problems.python("problem.py:build")` to use all cores and to sweep over its arguments.

    Args:
        methods: Methods or their names; give names to sweep over `step_size`.
        problem: As for `compare`.
        network: As for `compare`.
        participation: As for `compare`.
        grid: Keys and their values, such as {"step_size": [0.01, 0.1], "rounds": [100, 200]}. A
            key is a config key ("network.radius", "problem.arguments.hidden"), an option of the
            run ("rounds", "seeds", …), or "network", "participation" or "problem" with recipes
            as values.
        out: The sweep folder, with a run folder for every cell, the tables, and later the report.
        workers: Cells at a time, one per core by default. Of cells that run in this process:
            processes for each cell, as for `compare`.
        checkpoint_every: Seconds between two checkpoints of a cell.
        progress: Called with a `CellProgress` or an `Outcome` of `spodgt.sweeps.cell`.
        options: See `SweepOptions`: the options of `compare` that describe an experiment, and
            `step_size` and `layers`.

    Returns:
        The results of all finished cells; failed cells are in its `failures`.

    Raises:
        InvalidInput: for an invalid grid, option or cell.
    """
    if not isinstance(grid, Mapping) or not grid:
        raise InvalidInput(
            f"grid must name what is swept, got {grid!r}; use grid={{'step_size': [0.01, 0.1]}}."
        )
    config_grid = dict(_config_key(key, values) for key, values in grid.items())
    entries = _method_tables(methods)
    _refuse_fixed_steps(config_grid, entries)
    reject_unknown_options(options, SweepOptions.__annotations__, "sweep")
    experiment_options: dict[str, Any] = dict(options)
    # the experiment needs a stop condition, which every cell replaces
    for key in LIMITS:
        if f"run.{key}" in config_grid:
            experiment_options.setdefault(key, config_grid[f"run.{key}"][0])
    experiment = Experiment.of(entries, problem, network, participation, **experiment_options)
    spec = checked(Spec(Path(out).name, experiment, config_grid))
    record = sweeps.run(spec, out, workers=workers, save_every=checkpoint_every, on_event=progress)
    return SweepResult(**vars(record))


def _method_tables(methods: object) -> list[Any]:
    """Methods as a list; names become tables of a config."""
    if isinstance(methods, str | Algorithm) or not isinstance(methods, Iterable):
        methods = [methods]
    return [{"name": item} if isinstance(item, str) else item for item in methods]


def _config_key(key: str, values: object) -> tuple[str, list[Any]]:
    """A key of the grid as a config key, with values that a config can hold."""
    listed: list[Any] = []
    if isinstance(values, Iterable) and not isinstance(values, str | Mapping):
        listed = list(values)
    if not listed:
        raise InvalidInput(
            f"grid[{key!r}] must be a list of values, got {values!r}; use [0.01, 0.1]."
        )
    if key in _RECIPES:
        return key, [_table(key, value) for value in listed]
    if key in _RUN_OPTIONS:
        return f"run.{key}", listed
    if "." not in str(key):
        known = choices(key, [*_RECIPES, *_RUN_OPTIONS])
        raise InvalidInput(f"grid key {key!r} is not known; {known}")
    return key, listed


def _table(key: str, value: object) -> Table:
    """A recipe as the table of a config."""
    if isinstance(value, Mapping):
        return dict(value)
    if type(value) not in _RECIPES[key].values():
        raise InvalidInput(
            f"grid[{key!r}] must hold recipes, which a config can name, "
            f"got {type(value).__name__}; use {_EXAMPLES[key]}."
        )
    if isinstance(value, ProblemRecipe):
        return problem_table(value)
    return describe_recipe(value, _RECIPES[key])


def _refuse_fixed_steps(grid: Mapping[str, object], methods: Iterable[object]) -> None:
    """Reject methods with a step size of their own, which every cell would use, if it is swept."""
    if not grid.keys() & {"run.step_size", "run.layers"}:
        return
    for method in methods:
        if isinstance(method, Algorithm):
            raise InvalidInput(
                f"step_size is swept, but {method.name} was given with one of its own; "
                f'give it by name, "{method.name}".'
            )

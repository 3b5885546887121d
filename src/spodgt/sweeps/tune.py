"""`spodgt.tune`: each method at its own best step size, by successive halving.

Candidates are compared on validation data: those of the problem, or a part of each client's
training samples that the short runs do not train on. Test data have no influence on the choice.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w
from typing_extensions import Unpack

from spodgt import figures
from spodgt._util.deprecation import renamed_argument
from spodgt.algorithms.base import Algorithm
from spodgt.errors import Failed
from spodgt.experiment import Experiment, ExperimentOptions
from spodgt.experiment.checks import check_files, is_portable
from spodgt.experiment.run_options import reject_unknown_options
from spodgt.experiment.toml import Table
from spodgt.network import GraphRecipe, Network
from spodgt.participation import Always, Participation
from spodgt.problems import Quadratic
from spodgt.problems.protocols import HasValidation
from spodgt.record import Record, statistics
from spodgt.record.run_folder import SEARCH, plain, refuse_other_kind, write
from spodgt.runtimes.world import Run
from spodgt.sweeps.cell import CellProgress, Event, Outcome
from spodgt.sweeps.executors import JobExecutor, cores, executor
from spodgt.sweeps.executors.inline import Inline
from spodgt.sweeps.successive_halving import BUDGETS, FIRST_SEED, MethodSearch, Search
from spodgt.sweeps.sweep import Cell, exclusive, fingerprint, sigterm_as_interrupt, slug
from spodgt.theory.limits import stable_steps
from spodgt.training.api import Method, labels
from spodgt.types import Problem

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BUDGETS", "Search", "Tuned", "tune", "tune_experiment"]

TABLE = "tune.csv"
CHOICE = "tune.json"
TUNED = "tuned.toml"
PICTURE = "tune.png"
_ALWAYS = Always()

OnProgress = Callable[[str, float, str], None]  # method, fraction of its search (0 to 1), note


@dataclass(eq=False, repr=False)
class Tuned:
    """The result of a search.

    Args:
        frame: One row per method, candidate and budget: mean and σ of the metric over seeds, and
            whether a run diverged.
        best: Method → its table with the best values.
        steps: Method → its best step size.
        limits: Method → the largest stable step size by the theory; None if it has no limit.
        metric: The metric by which candidates were compared.
        chosen_on: The data on which the metric was evaluated, in words.
        failures: Method → reason why it could not be tuned.
        experiment: The experiment with every method at its best step size.
    """

    frame: pd.DataFrame
    best: dict[str, Table]
    steps: dict[str, float]
    limits: dict[str, float | None]
    metric: str
    chosen_on: str
    failures: dict[str, str]
    experiment: Experiment

    def __repr__(self) -> str:
        steps = ", ".join(f"{label} {step:g}" for label, step in self.steps.items())
        return f"Tuned(step sizes by {self.metric}: {steps})"

    def _repr_html_(self) -> str:
        """The best values of each method in a notebook."""
        import pandas as pd

        return str(pd.DataFrame(self.rows()).to_html(index=False))

    @property
    def methods(self) -> tuple[Algorithm, ...]:
        """The tuned methods, for `compare`."""
        return self.experiment.methods

    def rows(self) -> list[Table]:
        """One row per method: its best values, the limit of the theory, and the metric."""
        rows = []
        for label, table in self.best.items():
            trials = self.frame[self.frame["method"] == label]
            last = trials[trials["budget"] == trials["budget"].max()]
            best = last.loc[(statistics.better(self.metric) * last[self.metric]).idxmax()]
            varied = [key for key in table if key in trials and key != "step_size"]
            row: Table = {"method": label, "step_size": self.steps[label]}
            for key in varied:
                row[key] = table[key]
            row["stable_below"] = self.limits[label]
            row[self.metric] = float(best[self.metric])
            row["sigma"] = float(best["sigma"])
            row["tried"] = len(trials[["step_size", *varied]].drop_duplicates())
            rows.append(row)
        return rows

    def as_dict(self) -> Table:
        """The content of `tune.json`."""
        return {
            "metric": self.metric,
            "chosen_on": self.chosen_on,
            "methods": self.rows(),
            "failures": self.failures,
        }

    def plot(self, path: str | Path) -> Path:
        """Plot the metric against the step size, with a line for every method and budget.

        Args:
            path: The figure to write; its suffix selects the format: png, svg or pdf.
        """
        figures.check_suffix(path)
        return figures.save(
            figures.plot_step_sizes(self.frame, self.metric, self.steps), Path(path)
        )

    def write(self, folder: str | Path) -> None:
        """Write the table, the choice, the tuned experiment and the figure.

        Args:
            folder: An existing folder.
        """
        folder = Path(folder)
        write(folder / TABLE, self.frame.to_csv(index=False).encode())
        write(folder / CHOICE, json.dumps(plain(self.as_dict()), indent=2, default=str).encode())
        comment = f"# Step sizes chosen by {self.metric} on {self.chosen_on}.\n"
        text = tomli_w.dumps(plain(self.experiment.to_dict()))
        write(folder / TUNED, (comment + text).encode())
        if self.best:
            self.plot(folder / PICTURE)


@renamed_argument("algorithms", "methods")
def tune(
    methods: Sequence[Method],
    problem: Problem,
    network: Network | GraphRecipe,
    participation: Participation = _ALWAYS,
    *,
    search: Search = Search(),  # noqa: B008 (frozen)
    out: str | Path | None = None,
    progress: OnProgress | None = None,
    **options: Unpack[ExperimentOptions],
) -> Tuned:
    """Find the best step size of each method, in this process.

    `compare(tuned.methods, …)` compares the tuned methods.

    Args:
        methods: Methods or their names; their own step sizes are replaced.
        problem: A `Learning` or `Quadratic`.
        network: A fixed network, or a recipe of `spodgt.graphs`.
        participation: Availability of clients and links. Default: always available.
        search: Number of candidates and seeds, and one more field to vary.
        out: A folder for the short runs and the results, in which an interrupted search continues.
        progress: Called with a method, the fraction of its search, and a note.
        options: The options of `compare` that describe an experiment, see `ExperimentOptions`.
    """
    reject_unknown_options(options, ExperimentOptions.__annotations__, "tune")
    experiment = Experiment.of(methods, problem, network, participation, **options)
    if out is not None:
        return tune_experiment(experiment, out, search, workers=1, progress=progress)
    with tempfile.TemporaryDirectory() as folder:
        return tune_experiment(experiment, folder, search, workers=1, progress=progress)


def tune_experiment(
    experiment: Experiment,
    out: str | Path,
    search: Search = Search(),  # noqa: B008 (frozen)
    *,
    fresh: bool = False,
    workers: int | None = None,
    backend: str = "local",
    save_every: float = 60.0,
    progress: OnProgress | None = None,
) -> Tuned:
    """Find the best values of every method; finished short runs in `out` are not run again.

    Args:
        experiment: The experiment for which the methods are tuned.
        out: The folder for short runs and results.
        search: Candidates and seeds.
        fresh: Delete the short runs of earlier searches in the folder first.
        workers: Number of short runs in parallel. Default: one per core.
        backend: Where they run: "local" or "ray".
        save_every: Seconds between checkpoints of a short run.
        progress: Called with a method, the fraction of its search, and a note.

    Raises:
        InvalidInput: for an invalid experiment or candidate, before the first run.
        Failed: if no method could be tuned.
    """
    folder = Path(out)
    refuse_other_kind(folder, SEARCH)
    searches = _start_searches(experiment, search)
    with exclusive(folder), sigterm_as_interrupt():
        if fresh:
            shutil.rmtree(folder / "cells", ignore_errors=True)
        experiments: dict[str, Experiment] = {}
        pool: JobExecutor = Inline(experiments)
        if is_portable(experiment):
            pool = executor(backend, min(workers or cores(), len(searches)))
        try:
            runner = _SearchRunner(
                experiment, folder / "cells", pool, experiments, save_every, progress
            )
            runner.run(searches)
        finally:
            pool.close()
        tuned = _collect(experiment, searches)
        tuned.write(folder)
    return tuned


def _start_searches(experiment: Experiment, search: Search) -> list[MethodSearch]:
    """One search per method; raises InvalidInput if a run of its first candidates is invalid."""
    check_files(experiment)
    draw = experiment.draw(FIRST_SEED)
    problem = experiment.base_problem
    if isinstance(problem, HasValidation):
        problem.on_validation_data().draw(FIRST_SEED)  # raises if no samples can be held out
    methods = experiment.methods
    limits = stable_steps(draw, methods)
    searches = []
    for label, method, limit in zip(labels(methods), methods, limits, strict=True):
        searches.append(MethodSearch(label, method, limit, search))
    for method_search in searches:
        for candidate in method_search.next_experiment(experiment).methods:
            Run.of(draw, candidate)
    return searches


@dataclass(eq=False)
class _SearchRunner:
    """Runs the searches of several methods in parallel."""

    full: Experiment
    cells_folder: Path
    pool: JobExecutor
    experiments: dict[str, Experiment]  # by cell, for an inline pool
    save_every: float
    progress: OnProgress | None

    def run(self, searches: list[MethodSearch]) -> None:
        self.cells: dict[str, tuple[MethodSearch, Cell]] = {}
        for search in searches:
            self._continue(search)
        self.pool.wait(self._receive)

    def _continue(self, search: MethodSearch) -> None:
        """Use the runs that are finished already, and submit the first one that is not."""
        while not search.is_over:
            experiment = search.next_experiment(self.full)
            keys = {"method": search.label, "budget": search.budget}
            name = f"{slug(keys)}{fingerprint(experiment)}"
            cell = Cell(keys, experiment, self.cells_folder / name)
            if not cell.complete:
                self.cells[cell.name] = (search, cell)
                self.experiments[cell.name] = experiment
                self.pool.submit(cell.job(self.save_every))
                return
            search.add_results(Record.read(cell.folder), labels(experiment.methods))
        self._show(search, 0.0, search.error)

    def _receive(self, event: Event) -> None:
        search, cell = self.cells[event.name]
        if isinstance(event, CellProgress):
            self._show(search, event.fraction, f"{len(search.candidates)} step sizes")
        elif isinstance(event, Outcome) and event.error:
            search.error = event.error
            self._show(search, 0.0, event.error)
        elif event.complete:
            search.add_results(Record.read(cell.folder), labels(cell.experiment.methods))
            self._continue(search)

    def _show(self, search: MethodSearch, run_fraction: float, note: str) -> None:
        if self.progress:
            fraction = search.fraction + run_fraction / len(BUDGETS)
            self.progress(search.label, min(1.0, fraction), note)


def _collect(experiment: Experiment, searches: list[MethodSearch]) -> Tuned:
    """The results of finished searches.

    Raises:
        Failed: if no method has a best step size.
    """
    import pandas as pd

    rows: list[Table] = []
    best: dict[str, Table] = {}
    steps: dict[str, float] = {}
    failures: dict[str, str] = {}
    for search in searches:
        rows += search.rows()
        if search.best is not None:
            best[search.label] = search.best.table(search.method, search.vary)
            steps[search.label] = search.best.step
        if search.error:
            failures[search.label] = search.error
    if not best:
        raise Failed(f"no method could be tuned: {'; '.join(failures.values())}")
    return Tuned(
        frame=pd.DataFrame(rows),
        best=best,
        steps=steps,
        limits={search.label: search.limit for search in searches},
        metric=next(search.metric for search in searches if search.metric),
        chosen_on=_describe_evaluation(experiment.base_problem),
        failures=failures,
        experiment=replace(experiment, run=replace(experiment.run, methods=list(best.values()))),
    )


def _describe_evaluation(problem: Problem) -> str:
    """The data on which candidates are compared, in words."""
    if isinstance(problem, HasValidation):
        return problem.validation_source
    if isinstance(problem, Quadratic):
        return "the objective itself, which has no test data"
    return "the problem's own evaluation: it has no validation data"

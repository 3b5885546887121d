"""Each method at its own best: a search for the step size, and one more field, by successive halving.

Candidates of a method start at the step size up to which theory calls it stable and halve from there. All of
them run for an eighth of the experiment, the better half for a quarter, the better half of these for half of
it; the best one there is chosen. If the largest or smallest step is the best of the first round, more steps
are tried beyond it, because theory's limit is that of a model. The seeds are not those of the experiment, so
that its results are not chosen by their own luck.

Candidates are compared on validation data: those of the problem, or a part of each client's training samples
that the short runs do not train on. Test data have no influence on the choice.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from spodgt import figures
from spodgt.algorithms import describe
from spodgt.algorithms.base import Algorithm
from spodgt.errors import Failed, InvalidInput
from spodgt.experiment import Experiment
from spodgt.experiment.config import Table
from spodgt.network import Network, Recipe
from spodgt.participation import Always, Participation
from spodgt.problems import Quadratic
from spodgt.problems.protocols import HasValidation
from spodgt.record import Record, statistics
from spodgt.record.folder import SEARCH, plain, refuse_other_kind, write
from spodgt.runtimes.world import Run
from spodgt.sweeps.cell import CellProgress, Event, Outcome
from spodgt.sweeps.executors import Executor, cores, executor
from spodgt.sweeps.executors.inline import Inline
from spodgt.sweeps.sweep import Cell, alone, fingerprint, slug, terminable
from spodgt.theory.limits import stable_steps
from spodgt.training.api import Method, labels
from spodgt.types import Problem

if TYPE_CHECKING:
    import pandas as pd

TABLE, CHOICE, TUNED, PICTURE = "tune.csv", "tune.json", "tuned.toml", "tune.png"
BUDGETS = (1 / 8, 1 / 4, 1 / 2)  # of the experiment, in each round of halving
_FIRST_SEED = 1000  # seeds from here on, without those of the experiment
_GUESS = 1.0, 0.1  # the largest step where theory has no limit: of a plain method, of one with Adam
_BEYOND = 3  # times that steps beyond the first grid are tried
_ALWAYS = Always()


@dataclass(frozen=True)
class Search:
    """What is tried.

    Args:
        candidates: How many step sizes each method begins with, at least 2.
        seeds: On how many seeds each candidate runs.
        vary: One more field or layer, and the values that are tried of it: {"momentum": [0, 0.9]}.
    """

    candidates: int = 6
    seeds: int = 5
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, least in (("candidates", self.candidates, 2), ("seeds", self.seeds, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidInput(
                    f"{name} must be a whole number of at least {least}, got {value!r}; use {least}."
                )
        if len(self.vary) > 1:
            raise InvalidInput(
                f"vary must be one field, got {', '.join(self.vary)}; vary one after the other."
            )
        for name, values in self.vary.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise InvalidInput(
                    f"vary of {name} must be a list of values, got {values!r}; use [0.0, 0.9]."
                )


@dataclass(frozen=True)
class Candidate:
    """A step size and the value of another field."""

    step: float
    other: Any = None

    def table(self, method: Algorithm, vary: str, budget: float = 1.0) -> Table:
        """The method with these values, as a config has it.

        Args:
            method: The method whose step size is replaced.
            vary: The other field that is varied; "" for none.
            budget: The part of the experiment that is run. The rounds of a cosine schedule and of a warm-up
                are shortened to it, so that short runs see all of the schedule.
        """
        fields = dict(describe(method))
        if "step_size" not in fields:
            raise InvalidInput(f"{method.name} has no step size to tune; leave it out of methods.")
        fields["step_size"] = self._step_size(fields["step_size"], budget)
        if vary:
            fields[vary] = self.other
        return fields

    def _step_size(self, given: object, budget: float) -> object:
        """A step size of the form of `given`: a number, one per client, or a schedule."""
        if isinstance(
            given, list
        ):  # one per client: the largest is tuned, the others in proportion
            return [self.step * rate / max(given) for rate in given]
        if not isinstance(given, Mapping):
            return self.step
        schedule = {**given, "start": self.step}
        for key in ("rounds", "warmup"):
            if schedule.get(key):
                schedule[key] = max(1, round(schedule[key] * budget))
        return schedule


@dataclass(eq=False)
class _Race:
    """The search of one method: what was tried, and what comes next."""

    label: str
    method: Algorithm
    limit: float | None
    search: Search
    budget: int = 0  # the number in `BUDGETS` of what is tried now
    beyond: int = 0  # how often steps beyond those of the first grid were tried
    retreats: int = (
        0  # how often smaller steps were tried because all candidates of this budget diverged
    )
    trying: list[Candidate] = field(default_factory=list)
    rows: list[Table] = field(default_factory=list)
    metric: str = ""  # what candidates are judged by
    best: Candidate | None = None
    error: str = ""

    def __post_init__(self) -> None:
        self.vary = next(iter(self.search.vary), "")
        others = self.search.vary.get(self.vary, [None])
        guess = _GUESS["adam" in describe(self.method) or self.vary == "adam"]
        ratio = 2.0 if self.limit else 10**0.5
        steps = [_round((self.limit or guess) / ratio**n) for n in range(self.search.candidates)]
        self.ratio = ratio
        self.trying = [Candidate(step, other) for step, other in product(steps, others)]

    @property
    def fraction(self) -> float:
        """How much of the search is done, roughly."""
        return 1.0 if self.best or self.error else self.budget / len(BUDGETS)

    def experiment(self, whole: Experiment) -> Experiment:
        """What is to be run now."""
        run, part = whole.run, BUDGETS[self.budget]
        used = set(run.seed_list)
        seeds = [
            seed
            for seed in range(_FIRST_SEED, _FIRST_SEED + 2 * len(used) + 100)
            if seed not in used
        ]
        options = replace(
            run,
            methods=[each.table(self.method, self.vary, part) for each in self.trying],
            seeds=[*seeds[: self.search.seeds]],
            delay=None if run.delay is None else run.delay * part,
            rounds=None if run.rounds is None else max(1, round(run.rounds * part)),
            seconds=None if run.seconds is None else run.seconds * part,
            evaluations=2,
            every=None,
            gradient_norm=False,
            evaluate_on="validation",
        )
        return replace(whole, run=options)

    def take(self, record: Record, names: list[str]) -> None:
        """Read what came out, and decide what is tried next: nothing once `best` is there."""
        last, metric = record.final(), record.judged
        self.metric = metric
        for candidate, name in zip(self.trying, names, strict=True):
            own = last[last["algorithm"] == name]
            gone = len(own) < self.search.seeds or bool(own["diverged"].any())
            value = math.nan if gone else float(own[metric].mean())
            row = {
                "method": self.label,
                "step_size": candidate.step,
                "budget": BUDGETS[self.budget],
            }
            row |= {self.vary: candidate.other} if self.vary else {}
            spread = math.nan if gone else float(own[metric].std(ddof=0))
            self.rows.append(
                row | {metric: value, "sigma": spread, "diverged": gone, "candidate": candidate}
            )
        self._choose_next(metric)

    def _choose_next(self, metric: str) -> None:
        """Decide what is tried next, from the rows of this budget."""
        now = [row for row in self.rows if row["budget"] == BUDGETS[self.budget]]
        finite = [row for row in now if not math.isnan(row[metric])]
        if not finite:
            self._retreat(now, metric)
            return
        sign = statistics.better(metric)
        ranked = sorted(finite, key=lambda row: -sign * row[metric])
        more = self._beyond(ranked[0], now) if self.budget == 0 else []
        if more:
            self.beyond += 1
            self.trying = more
        elif self.budget + 1 < len(BUDGETS):
            better_half = ranked[: -(-len(now) // 2)]
            self.trying = [row["candidate"] for row in better_half]
            self.budget += 1
            self.retreats = 0
        else:
            self.best = ranked[0]["candidate"]

    def _retreat(self, now: list[Table], metric: str) -> None:
        """Try smaller steps, because no candidate of this budget has a value; a failure in the end."""
        smallest = min(row["step_size"] for row in now)
        part = f"{BUDGETS[self.budget]:.1%}".replace(".0%", "%")
        if not any(row["diverged"] for row in now):
            self.error = (
                f"{self.label} cannot be tuned: its {metric} is NaN although its models are finite; the "
                "problem must evaluate to a number."
            )
        elif self.retreats >= _BEYOND:
            self.error = (
                f"{self.label} diverged within {part} of the experiment with every step size tried there, "
                f"down to {smallest:g}."
            )
        else:
            self.retreats += 1
            others = self.search.vary.get(self.vary, [None])
            steps = [_round(smallest / self.ratio**n) for n in (1, 2)]
            self.trying = [Candidate(step, other) for step, other in product(steps, others)]

    def _beyond(self, best: Table, now: list[Table]) -> list[Candidate]:
        """Two steps more, if the best one is at an end of what was tried."""
        if self.beyond >= _BEYOND:
            return []
        other = best["candidate"].other
        steps = sorted(row["step_size"] for row in now if row["candidate"].other == other)
        step = best["step_size"]
        if step == steps[-1]:
            return [Candidate(_round(step * self.ratio**n), other) for n in (1, 2)]
        if step == steps[0]:
            return [Candidate(_round(step / self.ratio**n), other) for n in (1, 2)]
        return []


def _round(step: float) -> float:
    """Two digits."""
    return float(f"{step:.2g}")


# --- results -----------------------------------------------------------------------------------------
@dataclass(eq=False)
class Tuned:
    """What a search found.

    Args:
        frame: One row per method, candidate and budget: the metric, its mean over seeds, and what diverged.
        best: Method → its table with the best values.
        steps: Method → its best step size alone.
        limits: Method → theory's largest stable step; None where it has none.
        metric: What candidates were compared by.
        chosen_on: The data that this metric was measured on, in words.
        failures: Method → what went wrong.
        experiment: The experiment with every method at its best.
    """

    frame: pd.DataFrame
    best: dict[str, Table]
    steps: dict[str, float]
    limits: dict[str, float | None]
    metric: str
    chosen_on: str
    failures: dict[str, str]
    experiment: Experiment

    @property
    def methods(self) -> tuple[Algorithm, ...]:
        """The methods at their best, for `compare`."""
        return self.experiment.methods

    def rows(self) -> list[Table]:
        """One row per method: its best values, theory's limit, and the metric with them."""
        found = []
        for label, table in self.best.items():
            own = self.frame[self.frame["method"] == label]
            last = own[own["budget"] == own["budget"].max()]
            chosen = last.loc[(statistics.better(self.metric) * last[self.metric]).idxmax()]
            varied = [key for key in table if key in own and key != "step_size"]
            values = {"step_size": self.steps[label], **{key: table[key] for key in varied}}
            value, sigma = float(chosen[self.metric]), float(chosen["sigma"])
            tried = len(own[["step_size", *varied]].drop_duplicates())
            found.append(
                {"method": label, **values, "stable_below": self.limits[label]}
                | {self.metric: value, "sigma": sigma, "tried": tried}
            )
        return found

    def as_dict(self) -> Table:
        """The choice and the data it was made on, as `tune.json` holds them."""
        return {
            "metric": self.metric,
            "chosen_on": self.chosen_on,
            "methods": self.rows(),
            "failures": self.failures,
        }

    def plot(self, path: str | Path) -> Path:
        """Draw the metric against the step size, a line for every method and budget.

        Args:
            path: the picture to write; its suffix picks the format: png, svg or pdf.
        """
        figures.check_suffix(path)
        return figures.save(figures.steps(self.frame, self.metric, self.steps), Path(path))

    def write(self, folder: str | Path) -> None:
        """Write the table, the choice, the tuned experiment and the picture.

        Args:
            folder: where to; it exists.
        """
        folder = Path(folder)
        write(folder / TABLE, self.frame.to_csv(index=False).encode())
        write(folder / CHOICE, json.dumps(plain(self.as_dict()), indent=2, default=str).encode())
        comment = f"# Step sizes chosen by {self.metric} on {self.chosen_on}.\n"
        text = tomli_w.dumps(plain(self.experiment.to_dict()))
        write(folder / TUNED, (comment + text).encode())
        if self.best:
            self.plot(folder / PICTURE)


# --- running -----------------------------------------------------------------------------------------
Tell = Callable[[str, float, str], None]  # a method, how far its search is (0 to 1), a few words


def tune(
    algorithms: Sequence[Method],
    problem: Problem,
    network: Network | Recipe,
    participation: Participation = _ALWAYS,
    *,
    search: Search = Search(),  # noqa: B008 (frozen)
    out: str | Path | None = None,
    progress: Tell | None = None,
    **options: Any,
) -> Tuned:
    """Find each method's own best step size, in this process: `compare(tuned.methods, …)` uses what it found.

    Args:
        algorithms: methods or their names; their own step sizes do not matter.
        problem: a `Learning` or `Quadratic`.
        network: a fixed network, or a recipe of `spodgt.graphs`.
        participation: who takes part in which round. Always, unless given.
        search: how many candidates and seeds, and one more field to vary.
        out: a folder for the short runs and the results, in which a search that was stopped goes on.
        progress: called with a method, how far its search is, and a few words.
        options: those of `compare`: rounds or delay, seeds, x0, dtype, device, weights.
    """
    whole = Experiment.of(algorithms, problem, network, participation, **options)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if out is None else out
        return tune_experiment(whole, folder, search, workers=1, progress=progress)


def tune_experiment(
    experiment: Experiment,
    out: str | Path,
    search: Search = Search(),  # noqa: B008 (frozen)
    *,
    workers: int | None = None,
    backend: str = "local",
    save_every: float = 60.0,
    progress: Tell | None = None,
) -> Tuned:
    """Search for the best values of every method; short runs that are finished in `out` are not run again.

    Args:
        experiment: what the methods are to be best at.
        out: the folder for short runs and results.
        search: what is tried.
        workers: how many short runs at a time; one per core unless given.
        backend: where they run: "local" or "ray".
        save_every: seconds between checkpoints of a short run.
        progress: called with a method, how far its search is, and a few words.
    """
    refuse_other_kind(Path(out), SEARCH)
    experiment.check()
    names = labels(experiment.methods)
    draw = experiment.draw(_FIRST_SEED)
    problem = experiment.undivided
    if isinstance(problem, HasValidation):
        problem.on_validation_data().draw(
            _FIRST_SEED
        )  # refuses data of which nothing can be held out
    limits = stable_steps(draw, experiment.methods)
    races = [
        _Race(name, method, limit, search)
        for name, method, limit in zip(names, experiment.methods, limits, strict=True)
    ]
    for race in races:  # mistakes show before the work
        for method in race.experiment(experiment).methods:
            Run.of(draw, method)
    known: dict[str, Experiment] = {}
    folder = Path(out)
    with alone(folder), terminable():
        count = min(workers or cores(), len(races))
        pool: Executor = executor(backend, count) if experiment.portable else Inline(known)
        try:
            _Searching(experiment, folder / "cells", pool, known, save_every, progress).run(races)
        finally:
            pool.close()
        tuned = _tuned(experiment, races)
        tuned.write(folder)
    return tuned


@dataclass(eq=False)
class _Searching:
    """Runs the races side by side: whoever has a result goes on with its next short runs."""

    whole: Experiment
    home: Path
    pool: Executor
    known: dict[str, Experiment]  # experiments by the names of their cells
    save_every: float
    tell: Tell | None

    def run(self, races: list[_Race]) -> None:
        self.cells: dict[str, tuple[_Race, Cell]] = {}
        for race in races:
            self._go_on(race)
        self.pool.wait(self._receive)

    def _go_on(self, race: _Race) -> None:
        """Take in what is finished already, and submit the first that is not."""
        while race.best is None and not race.error:
            experiment = race.experiment(self.whole)
            keys = {"method": race.label, "budget": BUDGETS[race.budget]}
            cell = Cell(keys, experiment, self.home / f"{slug(keys)}{fingerprint(experiment)}")
            if not cell.complete:
                self.cells[cell.name], self.known[cell.name] = (race, cell), experiment
                self.pool.submit(cell.job(self.save_every))
                return
            race.take(Record.read(cell.folder), labels(experiment.methods))
        self._show(race, 0.0, race.error)

    def _receive(self, event: Event) -> None:
        race, cell = self.cells[event.name]
        if isinstance(event, CellProgress):
            self._show(race, event.fraction, f"{len(race.trying)} step sizes")
        elif isinstance(event, Outcome) and event.error:
            race.error = event.error
            self._show(race, 0.0, event.error)
        elif event.complete:
            race.take(Record.read(cell.folder), labels(cell.experiment.methods))
            self._go_on(race)

    def _show(self, race: _Race, part: float, note: str) -> None:
        if self.tell:
            self.tell(race.label, min(1.0, race.fraction + part / len(BUDGETS)), note)


def _tuned(experiment: Experiment, races: list[_Race]) -> Tuned:
    import pandas as pd

    chosen = [(race, race.best) for race in races if race.best is not None]
    best = {race.label: one.table(race.method, race.vary) for race, one in chosen}
    failures = {race.label: race.error for race in races if race.error}
    rows = [
        {k: v for k, v in row.items() if k != "candidate"} for race in races for row in race.rows
    ]
    if not best:
        raise Failed(f"no method could be tuned: {'; '.join(failures.values())}")
    metric = next(race.metric for race in races if race.metric)
    found = replace(experiment, run=replace(experiment.run, methods=list(best.values())))
    steps, limits = (
        {race.label: one.step for race, one in chosen},
        {race.label: race.limit for race in races},
    )
    chosen_on = _chosen_on(experiment.undivided)
    return Tuned(pd.DataFrame(rows), best, steps, limits, metric, chosen_on, failures, found)


def _chosen_on(problem: Problem) -> str:
    """The data that candidates are compared on, in words."""
    if isinstance(problem, HasValidation):
        return problem.validation_source
    if isinstance(problem, Quadratic):
        return "the objective itself, which has no test data"
    return "the problem's own evaluation: it has no validation data"

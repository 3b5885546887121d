"""Successive halving: the search for the best step size of one method, and of one more field.

Candidates start at the largest step size that is stable according to the theory, and halve from
there. All of them run for an eighth of the experiment, the better half for a quarter, and the
better half of these for half of it; the best candidate there is chosen. If the largest or smallest
step size is the best one in the first round, further step sizes are tried beyond it, because the
limit of the theory is that of a model. The seeds differ from those of the experiment, so that its
results are not selected by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from spodgt.algorithms import describe
from spodgt.algorithms.base import Algorithm
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.experiment.toml import Table
from spodgt.record import Record, statistics
from spodgt.validation import check_count

BUDGETS = (1 / 8, 1 / 4, 1 / 2)  # fraction of the experiment in each round of halving
FIRST_SEED = 1000  # seeds from here on, without those of the experiment
_DEFAULT_LARGEST_STEP = 1.0  # if the theory has no limit
_DEFAULT_LARGEST_STEP_ADAM = 0.1
_MAX_EXTENSIONS = 3  # of the candidates, to larger or to smaller steps


@dataclass(frozen=True)
class Search:
    """Candidates and seeds of a search for step sizes.

    Args:
        candidates: Number of step sizes that each method starts with, at least 2.
        seeds: Number of seeds for each candidate.
        vary: One more field or layer, and its values: {"momentum": [0, 0.9]}.
    """

    candidates: int = 6
    seeds: int = 5
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates, 2, least=2)
        check_count("seeds", self.seeds, 1)
        if len(self.vary) > 1:
            raise InvalidInput(
                f"vary must be one field, got {', '.join(self.vary)}; vary one after the other."
            )
        for name, values in self.vary.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise InvalidInput(
                    f"vary of {name} must be a list of values, got {values!r}; use [0.0, 0.9]."
                )

    @property
    def varied_field(self) -> str:
        """The field that is varied besides the step size; "" for none."""
        return next(iter(self.vary), "")

    @property
    def varied_values(self) -> Sequence[Any]:
        """The values of the varied field; a single None without one."""
        return self.vary.get(self.varied_field, [None])


@dataclass(frozen=True)
class Candidate:
    """A step size, and the value of the varied field."""

    step: float
    other: Any = None

    def table(self, method: Algorithm, vary: str, budget: float = 1.0) -> Table:
        """The method with the values of this candidate, as a table of a config.

        Args:
            method: The method; its step size is replaced.
            vary: The varied field; "" for none.
            budget: The fraction of the experiment that is run. The rounds of a cosine schedule and
                of a warm-up are shortened to it, so that short runs cover the whole schedule.
        """
        fields = dict(describe(method))
        if "step_size" not in fields:
            raise InvalidInput(f"{method.name} has no step size to tune; leave it out of methods.")
        fields["step_size"] = self._step_size(fields["step_size"], budget)
        if vary:
            fields[vary] = self.other
        return fields

    def _step_size(self, given: object, budget: float) -> object:
        """A step size in the form of `given`: a number, one per client, or a schedule."""
        if isinstance(given, list):  # one per client: scaled to this largest step size
            return [self.step * rate / max(given) for rate in given]
        if not isinstance(given, Mapping):
            return self.step
        schedule = {**given, "start": self.step}
        for key in ("rounds", "warmup"):
            if schedule.get(key):
                schedule[key] = max(1, round(schedule[key] * budget))
        return schedule


@dataclass(frozen=True)
class Trial:
    """The result of a candidate after a fraction of the experiment."""

    candidate: Candidate
    budget: float
    value: float  # of the metric, mean over seeds; NaN if diverged
    sigma: float  # over seeds
    diverged: bool


@dataclass(eq=False)
class MethodSearch:
    """The search for one method: results so far, and the candidates to run next.

    The search is over when `best` or `error` is set.
    """

    label: str
    method: Algorithm
    limit: float | None  # largest stable step size by the theory
    search: Search
    candidates: list[Candidate] = field(default_factory=list)  # to run next
    budget_index: int = 0  # of the candidates, in `BUDGETS`
    larger_grids: int = 0  # extensions beyond the first grid, in the first round of halving
    smaller_grids: int = 0  # extensions to smaller steps, because all candidates diverged
    trials: list[Trial] = field(default_factory=list)
    metric: str = ""
    best: Candidate | None = None
    error: str = ""

    def __post_init__(self) -> None:
        self.vary = self.search.varied_field
        self.ratio = 2.0 if self.limit else 10**0.5  # of neighbouring step sizes
        largest = self.limit or self._default_largest_step()
        steps = [largest / self.ratio**n for n in range(self.search.candidates)]
        self.candidates = self._with_varied_values(steps)

    def _default_largest_step(self) -> float:
        if self.vary == "adam" or "adam" in describe(self.method):
            return _DEFAULT_LARGEST_STEP_ADAM
        return _DEFAULT_LARGEST_STEP

    def _with_varied_values(self, steps: Sequence[float]) -> list[Candidate]:
        """Every step size, rounded to two digits, with every value of the varied field."""
        rounded = [_round(step) for step in steps]
        return [Candidate(*values) for values in product(rounded, self.search.varied_values)]

    @property
    def budget(self) -> float:
        """The fraction of the experiment that is run now."""
        return BUDGETS[self.budget_index]

    @property
    def is_over(self) -> bool:
        return self.best is not None or bool(self.error)

    @property
    def fraction(self) -> float:
        """Rough progress of the search, from 0 to 1."""
        return 1.0 if self.is_over else self.budget_index / len(BUDGETS)

    def next_experiment(self, full: Experiment) -> Experiment:
        """The short run of all current candidates.

        Args:
            full: The experiment for which the methods are tuned.
        """
        run = full.run
        budget = self.budget
        short_run = replace(
            run,
            methods=[each.table(self.method, self.vary, budget) for each in self.candidates],
            seeds=_unused_seeds(run.seed_list, self.search.seeds),
            delay=None if run.delay is None else run.delay * budget,
            rounds=None if run.rounds is None else max(1, round(run.rounds * budget)),
            epochs=None if run.epochs is None else run.epochs * budget,
            seconds=None if run.seconds is None else run.seconds * budget,
            evaluations=2,
            every=None,
            gradient_norm=False,
            evaluate_on="validation",
        )
        return replace(full, run=short_run)

    def add_results(self, record: Record, labels: list[str]) -> None:
        """Add the results of a short run, and choose the next candidates or the best one.

        Args:
            record: The record of the run of `next_experiment`.
            labels: The labels of the candidates in the record, in their order.
        """
        self.metric = record.primary_metric
        last = record.final()
        for candidate, label in zip(self.candidates, labels, strict=True):
            rows = last[last["method"] == label]
            diverged = len(rows) < self.search.seeds or bool(rows["diverged"].any())
            value = math.nan
            sigma = math.nan
            if not diverged:
                value = float(rows[self.metric].mean())
                sigma = float(rows[self.metric].std(ddof=0))
            self.trials.append(Trial(candidate, self.budget, value, sigma, diverged))
        self._choose_next()

    def _choose_next(self) -> None:
        trials = [trial for trial in self.trials if trial.budget == self.budget]
        finite = [trial for trial in trials if not math.isnan(trial.value)]
        if not finite:
            self._try_smaller_steps(trials)
            return
        sign = statistics.better(self.metric)
        ranked = sorted(finite, key=lambda trial: -sign * trial.value)
        beyond = self._steps_beyond(ranked[0].candidate, trials)
        if beyond:
            self.larger_grids += 1
            self.candidates = beyond
        elif self.budget_index + 1 < len(BUDGETS):
            half = math.ceil(len(trials) / 2)
            self.candidates = [trial.candidate for trial in ranked[:half]]
            self.budget_index += 1
            self.smaller_grids = 0
        else:
            self.best = ranked[0].candidate

    def _try_smaller_steps(self, trials: list[Trial]) -> None:
        """Extend the search to smaller steps, because no trial has a value; fail in the end."""
        smallest = min(trial.candidate.step for trial in trials)
        if not any(trial.diverged for trial in trials):
            self.error = (
                f"{self.label} cannot be tuned: its {self.metric} is NaN although its models are "
                "finite; the problem must evaluate to a number."
            )
        elif self.smaller_grids >= _MAX_EXTENSIONS:
            part = f"{self.budget:.1%}".replace(".0%", "%")
            self.error = (
                f"{self.label} diverged within {part} of the experiment with every step size tried "
                f"there, down to {smallest:g}."
            )
        else:
            self.smaller_grids += 1
            self.candidates = self._with_varied_values(
                [smallest / self.ratio, smallest / self.ratio**2]
            )

    def _steps_beyond(self, best: Candidate, trials: list[Trial]) -> list[Candidate]:
        """Two more candidates, if the best one is at an end of the first grid."""
        if self.budget_index > 0 or self.larger_grids >= _MAX_EXTENSIONS:
            return []
        tried = [trial.candidate for trial in trials]
        steps = [candidate.step for candidate in tried if candidate.other == best.other]
        if best.step == max(steps):
            further = (best.step * self.ratio, best.step * self.ratio**2)
        elif best.step == min(steps):
            further = (best.step / self.ratio, best.step / self.ratio**2)
        else:
            return []
        return [Candidate(_round(step), best.other) for step in further]

    def rows(self) -> list[Table]:
        """The trials as rows of a table."""
        rows = []
        for trial in self.trials:
            row: Table = {
                "method": self.label,
                "step_size": trial.candidate.step,
                "budget": trial.budget,
            }
            if self.vary:
                row[self.vary] = trial.candidate.other
            row[self.metric] = trial.value
            row["sigma"] = trial.sigma
            row["diverged"] = trial.diverged
            rows.append(row)
        return rows


def _unused_seeds(used: Sequence[int], count: int) -> list[object]:
    """The first seeds from FIRST_SEED on that the experiment does not use."""
    seeds: list[object] = []
    seed = FIRST_SEED
    while len(seeds) < count:
        if seed not in used:
            seeds.append(seed)
        seed += 1
    return seeds


def _round(step: float) -> float:
    """Round to two significant digits."""
    return float(f"{step:.2g}")

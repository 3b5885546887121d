"""Runs that stop before their limits, and the best models of a run.

A run stops early if its `EarlyStopping` is reached, or if a callback returns `STOP`. Both depend on
the evaluations of that run alone, so a resumed run stops in the same round as an uninterrupted one.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.experiment.early_stopping import EarlyStopping, StaleEvaluations
from spodgt.record.metrics import METRICS, declare, metrics_of_problem
from spodgt.training.checkpoint import BestModels, MethodLog
from spodgt.types import Better
from spodgt.validation import choices

Row = dict[str, Any]  # an evaluation, by columns of `result.frame`
Callback = Callable[[Row], object]  # of the user


class _Signal(enum.Enum):
    STOP = "stop"

    def __repr__(self) -> str:
        return "spodgt.STOP"


STOP: Final = _Signal.STOP
"""A callback that returns `STOP` stops the run (method and seed) of the evaluation it was given."""

BY_CALLBACK = "a callback returned STOP"


def call_callbacks(callbacks: Sequence[Callback], row: Row) -> bool:
    """Call all callbacks with an evaluation; returns whether one of them stops its run."""
    answers = [callback(row) for callback in callbacks]
    return any(answer is STOP for answer in answers)


@dataclass(frozen=True)
class StopRules:
    """Which evaluations stop a run, and whether its best models are kept.

    Args:
        metric: the metric of both.
        better: whether higher or lower values of the metric are better.
        early_stopping: None: no run stops by its metric.
        keep_best: whether the models of the best evaluation are kept.
        has_callbacks: whether there are callbacks that may return `STOP`.
    """

    metric: str = "loss"
    better: Better = "down"
    early_stopping: EarlyStopping | None = None
    keep_best: bool = False
    has_callbacks: bool = False

    @property
    def needs_values(self) -> bool:
        """Whether evaluations are needed in their round, and not some rounds later."""
        return self.early_stopping is not None or self.keep_best or self.has_callbacks

    def is_best(self, log: MethodLog, run: int, row: Row) -> bool:
        """Whether the models of an evaluation are the best ones of a run so far."""
        if not self.keep_best:
            return False
        value = self.value(row)
        best = log.best.get(run)
        if best is None or math.isnan(best.value):
            return True
        return value > best.value if self.better == "up" else value < best.value

    def best_models(self, row: Row, models: Tensor) -> BestModels:
        """The models of the evaluation `row`."""
        return BestModels(int(row["round"]), self.value(row), models)

    def value(self, row: Row) -> float:
        """The value of the metric in an evaluation."""
        if self.metric not in row:
            known = [name for name in METRICS if name in row]
            raise InvalidInput(
                f"stop_when.metric={self.metric!r} is not evaluated in this run; "
                f"{choices(self.metric, known)}"
            )
        value = float(row[self.metric])
        if math.isnan(value) and row["round"] == 0:
            raise InvalidInput(
                f"{self.metric} has no value, so runs cannot stop by it and no model is the best "
                "one: the problem has no test data; give test data or evaluate_on='validation'."
            )
        return value


class EarlyStops:
    """Applies early stopping to the runs of one method."""

    def __init__(self, rules: StopRules, log: MethodLog) -> None:
        self.rules = rules
        self.log = log
        self.counters: dict[int, StaleEvaluations] = {}  # by seed

    def reason(self, row: Row) -> str:
        """Why a run stops after the evaluation `row`, its last one; empty if it continues."""
        rule = self.rules.early_stopping
        if rule is None:
            return ""
        seed = int(row["seed"])
        if seed not in self.counters:
            self.counters[seed] = self._counter(rule, seed, int(row["round"]))
        if not self.counters[seed].add(self.rules.value(row)):
            return ""
        return f"no better {self.rules.metric} in {rule.patience} evaluations"

    def _counter(self, rule: EarlyStopping, seed: int, k: int) -> StaleEvaluations:
        """A counter of the evaluations of a resumed run before round k."""
        counter = rule.count(self.rules.better)
        rows = [row for (of, at), row in self.log.rows.items() if of == seed and at < k]
        for row in sorted(rows, key=lambda row: int(row["round"])):
            counter.add(self.rules.value(row))
        return counter


def stop_rules(
    early_stopping: EarlyStopping | None,
    keep: str | None,
    scores: Mapping[str, Better],
    *,
    has_callbacks: bool,
) -> StopRules:
    """The rules of all runs.

    Args:
        early_stopping: the option `stop_when`.
        keep: the option of that name.
        scores: the metrics of the problem.
        has_callbacks: whether there are callbacks that may return `STOP`.

    Raises:
        InvalidInput: if the metric is not one of the problem.
    """
    declare(scores)
    metric = "accuracy" if "accuracy" in scores else "loss"
    if early_stopping is not None and early_stopping.metric is not None:
        metric = early_stopping.metric
    known = metrics_of_problem(scores)
    if metric not in known:
        raise InvalidInput(
            f"stop_when.metric={metric!r} is not a metric of this problem; {choices(metric, known)}"
        )
    return StopRules(metric, METRICS[metric].better, early_stopping, keep == "best", has_callbacks)

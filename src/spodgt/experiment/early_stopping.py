"""Early stopping: `stop_when` of `[run]` and of `compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.types import Better
from spodgt.validation import Field, Number, Whole, from_table, recipe


@recipe(InvalidInput)
class EarlyStopping:
    """Stops a run when a metric has not become better in several evaluations.

    Every method and seed stops on its own; the other seeds of a batch continue.

    Args:
        metric: Column of `result.frame`, such as "loss" or "accuracy_average"; None: the accuracy
            if the problem has one, else the loss.
        patience: Evaluations in a row without a better value, after which the run stops.
        min_delta: A value counts as better if it differs from the best one by more than this.
    """

    name: ClassVar[str] = "early-stopping"
    metric: Annotated[str | None, Field(examples=["loss"])] = None
    patience: Annotated[Whole, Field(gt=0)] = 10
    min_delta: Annotated[Number, Field(ge=0, allow_inf_nan=False)] = 0.0

    def count(self, better: Better) -> StaleEvaluations:
        """A counter of the evaluations of one run; `better`: "up" or "down" is better."""
        return StaleEvaluations(self, better)


class StaleEvaluations:
    """Counts the evaluations of a run since its last better value."""

    def __init__(self, rule: EarlyStopping, better: Better) -> None:
        self.rule = rule
        self.sign = 1.0 if better == "up" else -1.0
        self.best = -math.inf
        self.count = 0

    def add(self, value: float) -> bool:
        """Add the value of the next evaluation; returns whether the run stops after it.

        NaN is never better.
        """
        if self.sign * value > self.best + self.rule.min_delta:
            self.best = self.sign * value
            self.count = 0
        else:
            self.count += 1
        return self.count >= self.rule.patience


def read_early_stopping(value: object) -> object:
    """The `EarlyStopping` of a table of a config; other values unchanged."""
    if not isinstance(value, Mapping):
        if value is None or isinstance(value, EarlyStopping):
            return value
        raise InvalidConfig(
            f"stop_when must be a table or a spodgt.EarlyStopping, got {value!r}; "
            "use stop_when = { patience = 10 }."
        )
    fields = dict(value)
    kind = fields.pop("kind", EarlyStopping.name)
    if kind != EarlyStopping.name:
        raise InvalidConfig(
            f"run.stop_when.kind={kind!r} is not known; use {EarlyStopping.name!r}."
        )
    return from_table(EarlyStopping, fields, "run.stop_when")

"""The table of metrics: how a run is evaluated, and how the values are shown.

A new metric is a row of `METRICS`; tables, figures and the report read everything from there. A
metric that the problem computes (accuracy, or one of the user) has several rows: of the clients, of
the average model, of the worst client, and of the running means if the method has them; `declare`
adds those of the user. A row sees no predictions: functions of these are in `problems/metrics.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.problems.protocols import HasOptimum
from spodgt.runtimes.world import RunState
from spodgt.tensors import imbalance, mean, spread
from spodgt.types import Better, Evaluation, Problem

# Columns of a frame that metrics are drawn against, and the labels of these axes.
AXES = {
    "delay": "total delay",
    "round": "round",
    "seconds": "virtual seconds",
    "bytes": "bytes sent by all clients",
}


@dataclass(frozen=True, eq=False)
class RunSnapshot:
    """One evaluation of one run: everything from which metrics are computed."""

    problem: Problem  # on the device of the tensors
    x: Tensor  # (clients, parameters): the clients' models
    y: Tensor | None  # their trackers; None if the method has no field `y`
    g: Tensor | None  # gradients that are tracked; None if the method has no field `g`
    statistics: Tensor  # (clients, columns): running statistics (BatchNorm), often no columns
    clients: Evaluation  # of the clients' models
    average: Evaluation  # of the average model
    gradient: bool  # whether the global gradient, a pass over all data, is evaluated
    means: Evaluation | None = None  # of the running means of the models, if there are any
    mass_in_flight: Tensor | None = None  # (parameters,): tracker mass in flight, in virtual time

    @classmethod
    def take(
        cls,
        problem: Problem,
        fields: Sequence[str],
        run_state: RunState,
        evaluations: Sequence[Evaluation],
        gradient: bool,
    ) -> RunSnapshot:
        """A snapshot from the state of a run and its evaluations.

        Args:
            fields: names of the tensors of the state.
            evaluations: of all models, and of their running means if there are any; the last entry
                of each is that of the average.
        """
        tensors = dict(zip(fields, run_state.state, strict=True))
        means: Evaluation | None = None
        if len(evaluations) > 1:
            means = evaluations[1].part(np.s_[:-1])
        return cls(
            problem=problem,
            x=tensors["x"],
            y=tensors.get("y"),
            g=tensors.get("g"),
            statistics=run_state.statistics,
            clients=evaluations[0].part(np.s_[:-1]),
            average=evaluations[0].part(np.s_[-1:]),
            gradient=gradient,
            means=means,
            mass_in_flight=run_state.mass_in_flight,
        )

    @cached_property
    def full(self) -> tuple[float, float]:
        """The global training loss F of the average model, and |∇F|."""
        average = torch.cat([mean(self.x), mean(self.statistics.to(self.x))])
        clients = np.arange(self.problem.clients)
        losses, gradients = self.problem.full(average.expand(len(clients), -1), clients)
        return float(losses.mean()), float(gradients.mean(0).norm())


Compute = Callable[[RunSnapshot], float | None]


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Args:
        name: The column of the frame.
        label: Its name in menus and on axes.
        description: What it is, in one line.
        compute: Its value in a snapshot; None if it does not apply.
        better: Whether higher ("up") or lower ("down") values are better.
        log: Whether it is drawn on a logarithmic axis.
        unit: "fraction" for values between 0 and 1, "" for plain numbers.
        column: Its heading in tables of final values; "": it is not in them.
        combine: How the values of several seeds are combined.
    """

    name: str
    label: str
    description: str
    compute: Compute
    better: Better = "down"
    log: bool = False
    unit: Literal["fraction", ""] = ""
    column: str = ""
    combine: Literal["mean", "min", "max"] = "mean"


def label_of(metric: str, evaluated_on: str = "test") -> str:
    """The label of a metric, which names the data: "test accuracy" or "validation accuracy".

    Args:
        metric: A column of a frame; a column that is no metric is its own label.
        evaluated_on: "test", "validation" or "", see `Record.evaluated_on`.
    """
    if metric not in METRICS:
        return metric
    label = METRICS[metric].label
    if label.startswith("test "):
        return f"{evaluated_on} {label.removeprefix('test ')}".lstrip()
    return label


def measure(snapshot: RunSnapshot) -> dict[str, float]:
    """The values of the metrics that apply, in the order of the table."""
    values = {}
    for name, metric in METRICS.items():
        value = metric.compute(snapshot)
        if value is not None:
            values[name] = value
    return values


def _distance(snapshot: RunSnapshot) -> float | None:
    """Root mean square distance of the models from the optimum."""
    if not isinstance(snapshot.problem, HasOptimum):
        return None
    try:
        optimum = snapshot.problem.optimum().to(snapshot.x)
    except InvalidInput:  # the optimum is not unique
        return math.nan
    return float((snapshot.x - optimum).square().sum(1).mean().sqrt())


def _tracking_error(snapshot: RunSnapshot) -> float | None:
    """|Σy - Σg|, with the mass in flight."""
    if snapshot.y is None or snapshot.g is None:
        return None
    trackers = snapshot.y
    if snapshot.mass_in_flight is not None:
        trackers = torch.cat([trackers, snapshot.mass_in_flight[None].to(trackers)])
    return imbalance(trackers, snapshot.g)


@dataclass(frozen=True)
class _ProblemMetric:
    """Computes a metric of the problem, for some of the models of a run."""

    name: str
    models: Literal["clients", "average", "means"]  # attribute of a `RunSnapshot`
    combine: Callable[[Tensor], Tensor] = torch.mean  # of the values of these models

    def __call__(self, snapshot: RunSnapshot) -> float | None:
        evaluation: Evaluation | None = getattr(snapshot, self.models)
        if evaluation is None or self.name not in evaluation.metrics:
            return None
        return float(self.combine(evaluation.metrics[self.name]))


def _problem_metrics(name: str, label: str, better: Better) -> list[Metric]:
    """The rows of a metric `name` that the problem computes."""
    worst = torch.amin if better == "up" else torch.amax
    of_clients = Metric(
        name,
        label,
        f"{label}, mean over clients",
        _ProblemMetric(name, "clients"),
        better,
        column=name,
    )
    rows = [of_clients]
    for suffix, subject, compute in (
        ("average", "average model", _ProblemMetric(name, "average")),
        ("worst", "worst client", _ProblemMetric(name, "clients", worst)),
        ("mean", "running means", _ProblemMetric(name, "means")),
    ):
        of_subject = f"of the {subject}"
        rows.append(
            Metric(
                f"{name}_{suffix}", f"{name} {of_subject}", f"{label} {of_subject}", compute, better
            )
        )
    return rows


def _accuracy_metrics() -> list[Metric]:
    """The rows of the accuracy; tables of final values have a column for each."""
    headings = ("accuracy", "average model", "worst client", "running mean")
    metrics = _problem_metrics("accuracy", "test accuracy", "up")
    rows = []
    for metric, heading in zip(metrics, headings, strict=True):
        rows.append(replace(metric, unit="fraction", column=heading))
    return rows


def declare(scores: Mapping[str, Better]) -> None:
    """Add metrics of a problem to the table; each maps to "up" (higher is better) or "down"."""
    for name, better in scores.items():
        if name in METRICS and METRICS[name].better == better:
            continue
        label = f"test {name}"
        if name.startswith("validation_"):
            label = name.replace("_", " ")
        for metric in _problem_metrics(name, label, better):
            METRICS[metric.name] = metric


def metrics_of_problem(scores: Mapping[str, Better]) -> list[str]:
    """The metrics that a problem with these metrics of its own may have."""
    names = []
    for name, metric in METRICS.items():
        if not isinstance(metric.compute, _ProblemMetric) or metric.compute.name in scores:
            names.append(name)
    return names


# --- the table -----------------------------------------------------------------------------------
# fmt: off
_TABLE = (
    Metric("loss", "test loss",
           "test loss, mean over clients (the objective itself where there is no test set)",
           lambda s: float(s.clients.loss.mean()), column="loss"),
    Metric("loss_mean", "test loss of the running means",
           "test loss of the running means, mean over clients",
           lambda s: None if s.means is None else float(s.means.loss.mean())),
    *_accuracy_metrics(),
    Metric("consensus_x", "distance of models from their average",
           "root mean square distance of models from their average",
           lambda s: spread(s.x), log=True),
    Metric("consensus_y", "distance of trackers from their average",
           "root mean square distance of trackers from their average",
           lambda s: None if s.y is None else spread(s.y), log=True),
    Metric("tracking", "tracking error |Σy − Σg|",
           "|Σy - Σg|, with messages in flight; zero up to rounding in a correct method",
           _tracking_error, log=True),
    Metric("train_loss", "training loss",
           "global training loss F of the average model, where affordable",
           lambda s: s.full[0] if s.gradient else None),
    Metric("gradient_norm", "gradient norm |∇F|", "|∇F| of the average model, where affordable",
           lambda s: s.full[1] if s.gradient else None, log=True),
    Metric("distance", "distance from the optimum",
           "root mean square distance of models from the optimum, where it is known",
           _distance, log=True, column="distance to optimum"),
)
# fmt: on
METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}

"""The one table of metrics: what is computed when a run is evaluated, and how it is shown.

A new metric is one row of `METRICS`; tables, figures and the report read everything from there. What a
problem computes itself (accuracy, a user's metrics) has several rows: of the clients, of the average model,
of the worst client, and of the running means where they are kept; `declare` adds those of a user.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

Evaluations = Sequence[Evaluation]
# What a metric may be drawn against: columns of a frame, and what axes call them.
AXES = {
    "delay": "total delay",
    "round": "round",
    "seconds": "virtual seconds",
    "bytes": "bytes sent by all clients",
}


@dataclass(frozen=True, eq=False)
class RunSnapshot:
    """One evaluation of one run: everything a metric may be computed from."""

    problem: Problem  # on the device of the tensors
    x: Tensor  # the clients' models, (clients, parameters)
    y: Tensor | None  # their trackers; None where the method declares no field `y`
    g: (
        Tensor | None
    )  # the gradients that the trackers sum; None where the method declares no field `g`
    statistics: Tensor  # running statistics (BatchNorm), (clients, columns); mostly no columns
    clients: Evaluation  # of the clients' models, one entry each
    average: Evaluation  # of the average model, one entry
    gradient: bool  # whether the global gradient, a pass over all data, is affordable
    means: Evaluation | None = (
        None  # of the running means of the clients' models, where they are kept
    )
    flight: Tensor | None = (
        None  # the mass of trackers on its way, (parameters,), where messages take time
    )

    @classmethod
    def take(
        cls,
        problem: Problem,
        fields: Sequence[str],
        whole: RunState,
        quality: Evaluations,
        gradient: bool,
    ) -> RunSnapshot:
        """`fields` names the tensors of the state; `quality` is of all models, their average last.

        Its second entry, where running means are kept, is of these.
        """
        named = dict(zip(fields, whole.state, strict=True))
        clients, average = quality[0].part(np.s_[:-1]), quality[0].part(np.s_[-1:])
        means = quality[1].part(np.s_[:-1]) if len(quality) > 1 else None
        y, g = named.get("y"), named.get("g")
        models = named["x"], y, g, whole.statistics
        return cls(problem, *models, clients, average, gradient, means, whole.mass_in_flight)

    @cached_property
    def full(self) -> tuple[float, float]:
        """The global training loss F of the average model, and |∇F|."""
        average = torch.cat([mean(self.x), mean(self.statistics.to(self.x))])
        everyone = np.arange(self.problem.clients)
        losses, grads = self.problem.full(average.expand(len(everyone), -1), everyone)
        return float(losses.mean()), float(grads.mean(0).norm())


Compute = Callable[[RunSnapshot], float | None]


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Args:
        name: The column of the frame.
        label: What menus and axes call it.
        description: What it is, in one line.
        compute: Its value in a snapshot; None where it does not apply.
        better: Whether higher ("up") or lower ("down") values are better.
        log: Whether it is drawn on a logarithmic axis.
        unit: "fraction" for values between 0 and 1, "" for plain numbers.
        column: Its heading in tables of final values; "" keeps it out of them.
        combine: How the values of several seeds become one.
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


def measure(snapshot: RunSnapshot) -> dict[str, float]:
    """The values of the metrics that apply, in the order of the table."""
    values = ((name, metric.compute(snapshot)) for name, metric in METRICS.items())
    return {name: value for name, value in values if value is not None}


def _distance(snapshot: RunSnapshot) -> float | None:
    if not isinstance(snapshot.problem, HasOptimum):
        return None
    try:
        optimum = snapshot.problem.optimum().to(snapshot.x)
    except InvalidInput:  # flat somewhere: no single optimum
        return math.nan
    return float((snapshot.x - optimum).square().sum(1).mean().sqrt())


def _tracking(snapshot: RunSnapshot) -> float | None:
    if snapshot.y is None or snapshot.g is None:
        return None
    flying = [] if snapshot.flight is None else [snapshot.flight[None].to(snapshot.y)]
    return imbalance(torch.cat([snapshot.y, *flying]) if flying else snapshot.y, snapshot.g)


def _scores(name: str, label: str, better: Better, *, accuracy: bool = False) -> Iterator[Metric]:
    """The rows of what a problem's `evaluate` gives under `name`; tables show those of accuracy."""

    def of(
        part: Callable[[RunSnapshot], Evaluation | None], judge: Callable[[Tensor], Tensor]
    ) -> Compute:
        def compute(snapshot: RunSnapshot) -> float | None:
            found = part(snapshot)
            values = None if found is None else found.metrics.get(name)
            return None if values is None else float(judge(values))

        return compute

    def row(suffix: str, who: str, compute: Compute, column: str) -> Metric:
        unit: Literal["fraction", ""] = "fraction" if accuracy else ""
        shown = column if accuracy or not suffix else ""
        text = f"{label}, mean over clients" if not suffix else f"{label} of the {who}"
        label_ = f"{name} of the {who}" if suffix else label
        return Metric(f"{name}{suffix}", label_, text, compute, better, unit=unit, column=shown)

    worst = torch.amin if better == "up" else torch.amax
    yield row("", "", of(lambda s: s.clients, torch.mean), name)
    yield row("_average", "average model", of(lambda s: s.average, torch.mean), "average model")
    yield row("_worst", "worst client", of(lambda s: s.clients, worst), "worst client")
    yield row("_mean", "running means", of(lambda s: s.means, torch.mean), "running mean")


def declare(scores: Mapping[str, Better]) -> None:
    """Add the metrics of a problem to the table, each with whether higher or lower is better."""
    for name, better in scores.items():
        if name not in METRICS or METRICS[name].better != better:
            is_validation = name.startswith("validation_")
            label = name.replace("_", " ") if is_validation else f"test {name}"
            METRICS.update({row.name: row for row in _scores(name, label, better)})


# --- the table --------------------------------------------------------------------------------------
# fmt: off
_TABLE = (
    Metric("loss", "test loss",
           "test loss, mean over clients (the objective itself where there is no test set)",
           lambda s: float(s.clients.loss.mean()), column="loss"),
    Metric("loss_mean", "test loss of the running means", "test loss of the running means, mean over clients",
           lambda s: None if s.means is None else float(s.means.loss.mean())),
    *_scores("accuracy", "test accuracy", "up", accuracy=True),
    Metric("consensus_x", "distance of models from their average",
           "root mean square distance of models from their average", lambda s: spread(s.x), log=True),
    Metric("consensus_y", "distance of trackers from their average",
           "root mean square distance of trackers from their average",
           lambda s: None if s.y is None else spread(s.y), log=True),
    Metric("tracking", "tracking error |Σy − Σg|",
           "|Σy - Σg|, what is on its way included: zero up to rounding, or something is broken",
           _tracking, log=True),
    Metric("train_loss", "training loss", "global training loss F of the average model, where affordable",
           lambda s: s.full[0] if s.gradient else None),
    Metric("gradient_norm", "gradient norm |∇F|", "|∇F| of the average model, where affordable",
           lambda s: s.full[1] if s.gradient else None, log=True),
    Metric("distance", "distance from the optimum",
           "root mean square distance of models from the optimum, where it is known",
           _distance, log=True, column="distance to optimum"),
)
# fmt: on
METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}

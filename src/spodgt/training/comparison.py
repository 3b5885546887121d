"""A comparison in progress: its runs, and what was recorded of them."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spodgt.engine import describe_engine
from spodgt.kernels.steps import State
from spodgt.record.metrics import declare
from spodgt.record.networks import networks_table
from spodgt.record.record import Best, Diverged, Stopped, versions
from spodgt.runtimes.loop import EvaluationSchedule
from spodgt.runtimes.world import Draw, Run
from spodgt.training.checkpoint import MethodLog, with_statistics
from spodgt.training.result import Result
from spodgt.training.stopping import Row
from spodgt.training.tables import (
    clients_table,
    method_traits,
    metrics_table,
    objective_of,
    participation_table,
)
from spodgt.types import Better

if TYPE_CHECKING:
    import pandas as pd


@dataclass(eq=False)
class Comparison:
    """The runs of all methods, and their logs.

    Args:
        batches: the runs of every method, by its label.
        draws: the draws they were made from, by seed.
        schedule: the rounds or delays of the evaluations.
        config: the experiment as plain tables.
        identity: what the config only names, such as checksums of data, for resuming.
        best_by: the metric of the best models, with `keep="best"`.
    """

    batches: dict[str, list[Run]]
    draws: dict[int, Draw]
    schedule: EvaluationSchedule
    config: dict[str, Any]
    identity: dict[str, Any] = field(default_factory=dict)
    best_by: str = ""

    def __post_init__(self) -> None:
        self.labels = list(self.batches)
        self.scores: dict[str, Better] = dict(next(iter(self.draws.values())).problem.metrics)
        declare(self.scores)
        self.logs = {label: MethodLog(label) for label in self.labels}
        self.states: dict[int, State] = {}  # of all rounds, with keep_states
        self.finished: list[str] = []  # labels
        self.started_at = time.monotonic()
        self.seconds_before_resume = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """Config and identity as plain JSON values; experiments with equal facts are the same."""
        facts: dict[str, Any] = json.loads(json.dumps(self.config | self.identity, default=str))
        return facts

    def notes(self) -> dict[str, Any]:
        """Facts that every checkpoint holds."""
        schedule = dataclasses.asdict(self.schedule)
        return {"config": self.facts, "schedule": schedule, "seconds": self.seconds}

    def pending_labels(self) -> list[str]:
        """The methods that are left to run, an interrupted one first.

        checkpoint.zip holds one method, so an interrupted method must finish before another method
        writes a checkpoint.
        """
        interrupted: list[str] = []
        others: list[str] = []
        for label in self.labels:
            if label in self.finished:
                continue
            log = self.logs[label]
            if any(log.is_interrupted(run) for run in log.checkpoints):
                interrupted.append(label)
            else:
                others.append(label)
        return interrupted + others

    @property
    def seconds(self) -> float:
        """Time of this call and of those that it continues."""
        return round(self.seconds_before_resume + time.monotonic() - self.started_at, 3)

    def result(self) -> Result:
        """The result so far; all tables are in the order of methods and seeds."""
        rows: list[Row] = []
        clients: list[pd.DataFrame] = []
        diverged: list[Diverged] = []
        stopped: list[Stopped] = []
        models = {}
        best: list[Best] = []
        best_models = {}
        for label, runs in self.batches.items():
            log = self.logs[label]
            rows += log.rows.values()
            for number, run in enumerate(runs):
                diverged += [each for each in log.diverged if each.seed == run.seed]
                if run.seed in log.clients:
                    clients.append(log.clients[run.seed])
                if number in log.checkpoints:
                    models[label, run.seed] = with_statistics(log.checkpoints[number])
                if number in log.best:
                    kept = log.best[number]
                    best_models[label, run.seed] = kept.models
                    best.append(Best(label, run.seed, kept.round, self.best_by, kept.value))
                if number in log.endings and log.endings[number].stopped:
                    k = log.checkpoints[number].k
                    stopped.append(Stopped(label, run.seed, k, log.endings[number].stopped))
        return Result(
            metrics_table(rows, self.labels),
            self._participation(),
            networks_table((d.seed, d.network, d.availability) for d in self.draws.values()),
            self.config,
            versions(),
            diverged,
            stopped=stopped,
            best=best,
            complete=len(self.finished) == len(self.batches),
            seconds=self.seconds,
            scores=self.scores,
            clients=clients_table(clients),
            traits=method_traits(self.batches),
            objective=objective_of(next(iter(self.draws.values())).problem),
            states=self.states,
            draws=self.draws,
            engine=describe_engine(),
            models=models,
            best_models=best_models,
        )

    def _participation(self) -> pd.DataFrame:
        """The table of participation of all finished methods."""
        counts = []
        for label in self.labels:
            if label in self.finished:
                for number, checkpoint in sorted(self.logs[label].checkpoints.items()):
                    counts.append((label, self.batches[label][number], checkpoint.counts))
        return participation_table(counts)

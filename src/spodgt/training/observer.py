"""The observer of one method: evaluates, records and saves its runs, and reports their progress.

It runs in every process that holds clients. All of them call it in the same rounds; collective
operations belong to the world. Only the process that records fills tables and writes files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spodgt._util.deprecation import RenamedKey
from spodgt.errors import Failed
from spodgt.kernels.steps import State, rebuild
from spodgt.runtimes.loop import STRIDE, SYNCHRONIZATION_STRIDE, Stop
from spodgt.runtimes.world import (
    Run,
    RunCheckpoint,
    RunState,
    Snapshot,
    with_average,
)
from spodgt.tensors import is_finite
from spodgt.training.capture import (
    CheckpointCapture,
    CheckpointSaver,
    at_exchange,
    gather_states,
)
from spodgt.training.checkpoint import MethodLog, reduced_models
from spodgt.training.evaluation import BackgroundEvaluations, RunEvaluator
from spodgt.training.progress import Progress
from spodgt.training.settings import ExecutionSettings
from spodgt.training.stopping import BY_CALLBACK, EarlyStops, call_callbacks
from spodgt.types import Bools, Floats

_REPORT_SECONDS = 0.1  # between two reports of progress


@dataclass(frozen=True)
class ObserverCallbacks:
    """What an observer calls: functions of the executor, or of a worker process.

    Args:
        stop_requested: whether the runs are to be saved and stopped.
        save: writes a checkpoint, given the checkpoints of the runs in progress; None: no
            checkpoints.
        labels: of all methods, in their order, for reports of progress.
    """

    stop_requested: Callable[[], bool]
    save: Callable[[Mapping[int, RunCheckpoint]], None] | None
    labels: Sequence[str]


class Observer:
    """Observes the runs of one method; `run_rounds` calls it."""

    def __init__(
        self,
        log: MethodLog,
        runs: Sequence[Run],
        settings: ExecutionSettings,
        callbacks: ObserverCallbacks,
        *,
        records: bool = True,
    ) -> None:
        self.log = log
        self.runs = runs
        self.settings = settings
        self.stop_requested = callbacks.stop_requested
        self.records = records  # whether this process fills the log
        self.evaluator = RunEvaluator(log, runs, settings, records=records)
        self.history: dict[int, list[State]] = {run: [] for run in range(len(runs))}
        self.early_stops = EarlyStops(settings.stopping, log)
        self.reasons: dict[int, str] = {}  # why runs stopped early
        self.saver = CheckpointSaver(
            CheckpointCapture(runs, with_messages=callbacks.save is not None),
            log,
            callbacks.save,
            settings.checkpoint_every,
            wait=self.evaluator.background.wait,
            records=records,
        )
        self.progress = ProgressReporter(
            settings.progress if records else None,
            log.label,
            callbacks.labels,
            settings.stop,
            self.evaluator.background,
        )

    def __call__(self, snapshot: Snapshot, evaluation_due: Bools, is_last: Bools) -> Bools:
        """Evaluate, record and checkpoint the runs of a batch after one round.

        Methods with local steps are evaluated with the models of the last exchange; checkpoints
        hold the models of this round.

        Args:
            evaluation_due: (runs,) runs to evaluate now.
            is_last: (runs,) runs that stop after this round.

        Returns:
            (runs,) runs that diverged (NaN or infinite models) or stop early.

        Raises:
            BaseException: of a callback of the user, after a checkpoint was written.
        """
        if not _is_synchronization_round(snapshot, evaluation_due, self.settings.keep_states):
            return np.zeros_like(evaluation_due)

        diverged = self._synchronize(snapshot, evaluation_due)
        is_evaluated = evaluation_due & ~diverged
        needs_state = is_last | diverged | self.settings.keep_states
        exchange = at_exchange(snapshot)
        has_local_steps = exchange is not snapshot
        if has_local_steps:
            evaluated_states = gather_states(exchange, is_evaluated)
        else:
            evaluated_states = gather_states(snapshot, is_evaluated | needs_state)
        self.evaluator.evaluate_runs(exchange, evaluated_states, is_evaluated, is_last)
        stopped = ~is_last & self._stop_early(snapshot, exchange, evaluated_states, is_evaluated)
        is_finished = is_last | diverged | stopped

        states = evaluated_states
        exchanged_states: Mapping[int, RunState] = {}
        if has_local_steps:
            states = gather_states(snapshot, needs_state | stopped)
            exchanged_states = evaluated_states
        if self.settings.keep_states:
            self._append_history(snapshot, states)
        self._record_divergence(snapshot, diverged)
        if is_finished.any():
            self._finish_runs(snapshot, states, exchanged_states, is_finished, diverged)
        self.progress.update(snapshot, self.evaluator.accuracy, is_over=bool(is_finished.all()))
        return diverged | stopped

    def close(self) -> dict[int, State]:
        """Wait for evaluations; returns the states of all rounds by seed, with `keep_states`."""
        self.evaluator.background.close()
        if self.records:
            self._call_callbacks()
        states: dict[int, State] = {}
        if self.settings.keep_states and self.records:
            for number, run in enumerate(self.runs):
                history = self.history[number]
                fields = [torch.stack(tensors) for tensors in zip(*history, strict=True)]
                states[run.seed] = rebuild(history[0], fields)
        return states

    # --- the end of a run -------------------------------------------------------------------------
    def _append_history(self, snapshot: Snapshot, states: Mapping[int, RunState]) -> None:
        """Keep copies of the states; the world reuses the memory of a state."""
        for index, state in states.items():
            copies = [tensor.clone() for tensor in state.state]
            run = int(snapshot.world.runs[index])
            self.history[run].append(rebuild(state.state, copies))

    def _record_divergence(self, snapshot: Snapshot, diverged: Bools) -> None:
        """Note the runs that diverged, with their costs but without metrics; collective."""
        for index in np.flatnonzero(diverged).tolist():
            run = int(snapshot.world.runs[index])
            self.log.add_divergence(self.runs[run], run, snapshot.k)
            self.evaluator.record_costs(snapshot, index)

    def _finish_runs(
        self,
        snapshot: Snapshot,
        states: Mapping[int, RunState],
        exchanged_states: Mapping[int, RunState],
        is_finished: Bools,
        diverged: Bools,
    ) -> None:
        """Keep the final checkpoints of the runs that have ended; collective.

        Args:
            states: by index; empty in processes that do not record.
            exchanged_states: the same with the models of the last exchange; empty without local
                steps.
        """
        counts = snapshot.world.tally()
        for index in np.flatnonzero(is_finished).tolist():
            if index not in states:
                continue
            run = int(snapshot.world.runs[index])
            checkpoint = self.saver.capture.capture_run(
                snapshot, index, states[index], exchanged_states.get(index), counts
            )
            self.log.finish_run(
                run,
                checkpoint,
                self.settings.stop,
                diverged=bool(diverged[index]),
                stopped=self.reasons.get(run, ""),
                max_bytes=self.settings.max_state_bytes,
                copy=not is_finished.all(),
            )

    # --- synchronization --------------------------------------------------------------------------
    def _synchronize(self, snapshot: Snapshot, evaluation_due: Bools) -> Bools:
        """Find diverged runs, write a checkpoint if one is due, and stop if that is requested.

        Raises:
            KeyboardInterrupt: in all processes, if a stop was requested in one of them.
        """
        world = snapshot.world
        is_checked = evaluation_due
        if snapshot.k % STRIDE == 0:
            is_checked = np.ones_like(evaluation_due)
        is_infinite = _find_infinite(snapshot, is_checked)
        flags = np.array([*is_infinite, self.saver.is_due(), self.stop_requested()])
        *diverged_flags, save_now, stop_now = world.communicator.any(flags)
        if stop_now:
            self.saver.save_interrupted(snapshot)
            raise KeyboardInterrupt
        if save_now:
            self.saver.save(snapshot)
        diverged = np.array(diverged_flags, bool)
        for run in world.runs[is_checked & ~diverged].tolist():
            self.log.finite_at[run] = snapshot.k
        return diverged

    # --- early stopping ---------------------------------------------------------------------------
    def _stop_early(
        self,
        snapshot: Snapshot,
        exchange: Snapshot,
        states: Mapping[int, RunState],
        is_evaluated: Bools,
    ) -> Bools:
        """Call the callbacks, keep best models, and find the runs that stop early; collective.

        Args:
            exchange: the snapshot with the models that were evaluated.
            states: that were evaluated, by index; empty in processes that do not record.
            is_evaluated: (runs,) runs with an evaluation in this round.

        Raises:
            BaseException: of a callback, after a checkpoint was written.
        """
        world = snapshot.world
        stops = np.zeros_like(is_evaluated)
        error: BaseException | None = None
        if self.records:
            try:
                stops = self._apply_stop_rules(snapshot, states, is_evaluated)
            except BaseException as raised:  # also KeyboardInterrupt, which a callback may raise
                error = raised
        if world.communicator.size > 1:
            *flags, failed = world.communicator.any(np.array([*stops, error is not None]))
            stops = np.array(flags, bool)
            if failed and error is None:
                error = Failed("a callback failed in the main process; see its output.")
        if error is not None:
            self.saver.save_interrupted(snapshot)
            raise error
        for index in np.flatnonzero(stops).tolist():  # with all that a last evaluation holds
            self.evaluator.evaluate(exchange, index, states.get(index), final=True)
            self.evaluator.background.wait()
            self.evaluator.pending_rows.clear()
        return stops

    def _apply_stop_rules(
        self, snapshot: Snapshot, states: Mapping[int, RunState], is_evaluated: Bools
    ) -> Bools:
        """Call the callbacks and keep best models; returns the (runs,) mask of runs that stop."""
        rules = self.settings.stopping
        seeds_to_stop = self._call_callbacks()
        stops = np.zeros_like(is_evaluated)
        if not rules.needs_values:
            return stops
        for index in np.flatnonzero(is_evaluated).tolist():
            run = int(snapshot.world.runs[index])
            seed = self.runs[run].seed
            row = self.log.rows[seed, snapshot.k]
            reason = self.early_stops.reason(row)
            if seed in seeds_to_stop:
                reason = BY_CALLBACK
            if reason:
                self.reasons[run] = reason
                stops[index] = True
            if rules.is_best(self.log, run, row):
                models = reduced_models(with_average(states[index])[:-1])
                self.log.best[run] = rules.best_models(row, models)
        return stops

    def _call_callbacks(self) -> set[int]:
        """Call the user's callbacks with new evaluations, on this thread and in order.

        Returns:
            The seeds of the runs that a callback stops.
        """
        seeds: set[int] = set()
        pending_rows = self.evaluator.pending_rows
        while pending_rows:
            row = pending_rows.popleft()
            if call_callbacks(self.settings.callbacks, RenamedKey(row, "algorithm", "method")):
                seeds.add(int(row["seed"]))
        return seeds


class ProgressReporter:
    """Calls a progress callback about ten times a second, and at the end of a method.

    Args:
        report: the callback; None: no reports.
        label: of the method.
        labels: of all methods, in their order.
        stop: the limits of the runs.
        background: evaluations that must be complete at the last report.
    """

    def __init__(
        self,
        report: Callable[[Progress], None] | None,
        label: str,
        labels: Sequence[str],
        stop: Stop,
        background: BackgroundEvaluations,
    ) -> None:
        self.report = report
        self.label = label
        self.labels = labels
        self.stop = stop
        self.background = background
        self.reported_at = time.monotonic()

    def update(self, snapshot: Snapshot, accuracy: Floats, *, is_over: bool) -> None:
        """Report the progress, if a report is due.

        Args:
            accuracy: (runs,) at their last evaluations; NaN before the first.
            is_over: whether all runs have ended.
        """
        now = time.monotonic()
        is_due = is_over or now - self.reported_at >= _REPORT_SECONDS
        if self.report is None or not is_due:
            return
        self.reported_at = now
        if is_over:
            self.background.wait()  # the last report has the final accuracy
        evaluated = accuracy[~np.isnan(accuracy)]
        self.report(
            Progress(
                method=self.label,
                number=self.labels.index(self.label) + 1,
                total=len(self.labels),
                k=snapshot.k,
                delay=float(snapshot.delay.min()),
                fraction=1.0 if is_over else self._fraction_done(snapshot),
                accuracy=float(evaluated.mean()) if len(evaluated) else float("nan"),
            )
        )

    def _fraction_done(self, snapshot: Snapshot) -> float:
        """The part of the work that is done: by the limit that will be reached first."""
        fraction = 0.0
        if self.stop.delay:
            fraction = float(snapshot.delay.min()) / self.stop.delay
        if self.stop.rounds:
            fraction = max(fraction, snapshot.k / self.stop.rounds)
        return min(1.0, fraction)


def _find_infinite(snapshot: Snapshot, is_checked: Bools) -> Bools:
    """(runs,) the checked runs with models that are not finite, among those of this process."""
    is_infinite = np.zeros_like(is_checked)
    models_by_run = torch.split(snapshot.state[0], list(snapshot.world.sizes))
    for index in np.flatnonzero(is_checked).tolist():
        is_infinite[index] = not is_finite(models_by_run[index])
    return is_infinite


def _is_synchronization_round(snapshot: Snapshot, evaluation_due: Bools, keep_states: bool) -> bool:
    """Whether processes communicate after this round; the same answer in every process."""
    if snapshot.world.communicator.size == 1 or snapshot.k % SYNCHRONIZATION_STRIDE == 0:
        return True
    return bool(evaluation_due.any()) or keep_states

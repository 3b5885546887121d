"""The observer of one method: evaluates, records and saves its runs, and reports their progress.

It runs in every process that holds clients. All of them call it in the same rounds; collective
operations belong to the world. Only the process that records fills tables and writes files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from spodgt._util.deprecation import RenamedKey
from spodgt.engine import fits_loops
from spodgt.errors import Failed
from spodgt.kernels.steps import State, rebuild
from spodgt.problems.protocols import CompiledGradient, HasWork
from spodgt.record import metrics
from spodgt.runtimes.loop import MEETING, STRIDE, Stop
from spodgt.runtimes.world import (
    Run,
    RunCheckpoint,
    RunState,
    Snapshot,
    Tally,
    World,
    with_average,
)
from spodgt.tensors import is_finite
from spodgt.training.capture import CheckpointCapture, at_exchange, gather_states
from spodgt.training.checkpoint import MethodLog, reduced_models, to_cpu
from spodgt.training.progress import Progress
from spodgt.training.settings import ExecutionSettings
from spodgt.training.stopping import BY_CALLBACK, EarlyStops, Row, call_callbacks
from spodgt.training.tables import client_rows
from spodgt.types import Bools, Evaluation, Floats, Problem

_REPORT_SECONDS = 0.1  # between two reports of progress
_MODEL_FIELDS = ("x", "mean")  # fields of a state that are evaluated, if the method has them
_MAX_COPIED = 2**22  # elements of a state that is copied and evaluated in the background
_MAX_PENDING = 4  # evaluations in the background
# Cost of a global gradient, in multiplications, up to which it is evaluated.
_MAX_GRADIENT_COST = 1e6  # at every evaluation
_MAX_FINAL_GRADIENT_COST = 1e9  # at the last evaluation of a run


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
        self.callbacks = callbacks
        self.records = records  # whether this process fills the log
        self.background = BackgroundEvaluations()
        self.history: dict[int, list[State]] = {run: [] for run in range(len(runs))}
        self.accuracy = np.full(len(runs), np.nan)
        self.pending_rows: deque[Row] = deque()  # not yet given to user callbacks
        self.early_stops = EarlyStops(settings.stopping, log)
        self.reasons: dict[int, str] = {}  # why runs stopped early
        self.saved_at = time.monotonic()
        self.capture = CheckpointCapture(runs, with_messages=callbacks.save is not None)
        self.progress = ProgressReporter(
            settings.progress if records else None,
            log.label,
            callbacks.labels,
            settings.stop,
            self.background,
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

        world = snapshot.world
        keep_states = self.settings.keep_states
        diverged = self._synchronize(snapshot, evaluation_due)
        is_evaluated = evaluation_due & ~diverged
        needs_state = is_last | diverged | keep_states
        exchange = at_exchange(snapshot)
        has_local_steps = exchange is not snapshot
        if has_local_steps:
            exchanged_states = gather_states(exchange, is_evaluated)
        else:
            exchanged_states = gather_states(snapshot, needs_state | is_evaluated)
        for index in np.flatnonzero(is_evaluated).tolist():
            self._evaluate(exchange, index, exchanged_states.get(index), final=bool(is_last[index]))
            self.background.wait(0 if self.settings.stopping.needs_values else _MAX_PENDING)
        stopped = ~is_last & self._stop_early(snapshot, exchange, exchanged_states, is_evaluated)
        is_finished = is_last | diverged | stopped
        states = exchanged_states
        if has_local_steps:
            states = gather_states(snapshot, needs_state | stopped)
        counts: Tally | None = None
        if is_finished.any():
            counts = world.tally()  # collective: every process must call it

        for index, run in enumerate(world.runs.tolist()):
            state = states.get(index)  # None on processes that do not record
            if state is not None and keep_states:  # copies: the world reuses the memory of a state
                copies = [tensor.clone() for tensor in state.state]
                self.history[run].append(rebuild(state.state, copies))
            if diverged[index]:
                self.log.add_divergence(self.runs[run], run, snapshot.k)
                row = _cost_row(snapshot, index)
                if self.records:
                    self._record(run, row)
            if state is not None and is_finished[index]:
                assert counts is not None
                exchanged = exchanged_states.get(index) if has_local_steps else None
                checkpoint = self.capture.run(snapshot, index, state, exchanged, counts)
                self.log.finish_run(
                    run,
                    checkpoint,
                    self.settings.stop,
                    diverged=bool(diverged[index]),
                    stopped=self.reasons.get(run, ""),
                    max_bytes=self.settings.max_state_bytes,
                    copy=not is_finished.all(),
                )
        self.progress.update(snapshot, self.accuracy, is_over=bool(is_finished.all()))
        return diverged | stopped

    def close(self) -> dict[int, State]:
        """Wait for evaluations; returns the states of all rounds by seed, with `keep_states`."""
        self.background.close()
        if self.records:
            self._call_callbacks()
        states: dict[int, State] = {}
        if self.settings.keep_states and self.records:
            for number, run in enumerate(self.runs):
                history = self.history[number]
                fields = [torch.stack(tensors) for tensors in zip(*history, strict=True)]
                states[run.seed] = rebuild(history[0], fields)
        return states

    def _synchronize(self, snapshot: Snapshot, evaluation_due: Bools) -> Bools:
        """Find diverged runs, write a checkpoint if one is due, and stop if that is requested.

        Raises:
            KeyboardInterrupt: in all processes, if a stop was requested in one of them.
        """
        world = snapshot.world
        save = self.callbacks.save
        is_checked = evaluation_due
        if snapshot.k % STRIDE == 0:
            is_checked = np.ones_like(evaluation_due)
        has_diverged = np.zeros_like(evaluation_due)
        for index, x in enumerate(torch.split(snapshot.state[0], list(world.sizes))):
            has_diverged[index] = bool(is_checked[index]) and not is_finite(x)
        seconds = time.monotonic() - self.saved_at
        save_due = save is not None and self.records and seconds >= self.settings.checkpoint_every
        stop_requested = self.callbacks.stop_requested()
        *diverged_flags, save_now, stop_now = world.communicator.any(
            np.array([*has_diverged, save_due, stop_requested])
        )
        if save is not None and save_now and not stop_now:
            self._save(snapshot, save)
        if stop_now:
            self._close_interrupted(snapshot)
            raise KeyboardInterrupt
        diverged = np.array(diverged_flags, bool)
        for run in world.runs[is_checked & ~diverged].tolist():
            self.log.finite_at[run] = snapshot.k
        return diverged

    def _save(
        self, snapshot: Snapshot, save: Callable[[Mapping[int, RunCheckpoint]], None]
    ) -> None:
        """Write the checkpoints of all runs of the batch; collective."""
        self.background.wait()
        checkpoints = self.capture.all_runs(snapshot)
        if self.records:
            save(checkpoints)
        self.saved_at = time.monotonic()

    def _close_interrupted(self, snapshot: Snapshot) -> None:
        """Write and keep the checkpoints of all runs, and close the world; collective."""
        save = self.callbacks.save
        if save is not None:
            self.background.wait()
            for run, checkpoint in self.capture.all_runs(snapshot).items():
                self.log.checkpoints[run] = to_cpu(checkpoint, copy=False)
            if self.records:
                save({})
        snapshot.world.close()

    # --- evaluation ------------------------------------------------------------------------------
    def _evaluate(
        self, snapshot: Snapshot, index: int, state: RunState | None, *, final: bool
    ) -> None:
        """Evaluate one run, in the background if possible; collective."""
        world = snapshot.world
        run = int(world.runs[index])
        problem = self.runs[run].problem.to(self.settings.device, self.settings.dtype)
        row = _cost_row(snapshot, index)
        task = EvaluationTask(
            world=world,
            state=snapshot.state,
            index=index,
            run_state=state,
            fields=self.runs[run].algorithm.traits.state,
            problem=problem,
            gradient=_evaluates_gradient(problem, final, self.settings.gradient_norm),
        )
        if (
            state is None
            or world.communicator.size > 1
            or not _fits_background(problem, state.state)
        ):
            self._record_evaluation(run, row, task, final)
            return
        task = replace(task, run_state=_copy_state(state))
        self.background.add(partial(self._record_evaluation, run, row, task, final))

    def _record_evaluation(
        self, run: int, row: dict[str, float], task: EvaluationTask, final: bool
    ) -> None:
        evaluated = task.evaluate()
        if evaluated is None:
            return
        self._record(run, {**row, **metrics.measure(evaluated)})
        if final:
            seed = self.runs[run].seed
            self.log.clients[seed] = client_rows(self.log.label, self.runs[run], evaluated)

    def _record(self, run: int, values: dict[str, float]) -> None:
        """Add one evaluation to the log; an extended run has one of its last round already."""
        seed = self.runs[run].seed
        key = (seed, int(values["round"]))
        self.accuracy[run] = values.get("accuracy", np.nan)
        row = {**self.log.rows.get(key, {}), "method": self.log.label, "seed": seed, **values}
        self.log.rows[key] = row
        self.pending_rows.append(row)

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
            self._close_interrupted(snapshot)
            raise error
        for index in np.flatnonzero(stops).tolist():  # with all that a last evaluation holds
            self._evaluate(exchange, index, states.get(index), final=True)
            self.background.wait()
            self.pending_rows.clear()
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
        while self.pending_rows:
            row = self.pending_rows.popleft()
            if call_callbacks(self.settings.callbacks, RenamedKey(row, "algorithm", "method")):
                seeds.add(int(row["seed"]))
        return seeds


@dataclass(frozen=True, eq=False)
class EvaluationTask:
    """The evaluation of one run after one round."""

    world: World
    state: State  # of the clients that this process holds
    index: int  # of the run in the world
    run_state: RunState | None  # None on processes that do not record
    fields: Sequence[str]  # of the state
    problem: Problem
    gradient: bool  # whether the global gradient is evaluated

    def evaluate(self) -> metrics.RunSnapshot | None:
        """Evaluate the models, and their running means if there are any; collective.

        Returns:
            None on processes that do not record.
        """
        evaluations: list[Evaluation] = []
        for name in _MODEL_FIELDS:
            if name not in self.fields:
                continue
            run_state = self.run_state
            if run_state is not None:
                run_state = run_state._replace(state=self._with_models(run_state.state, name))
            state = self._with_models(self.state, name)
            evaluation = self.world.evaluate(state, self.index, run_state)
            if evaluation is not None:
                evaluations.append(evaluation)
        if self.run_state is None or not evaluations:
            return None
        return metrics.RunSnapshot.take(
            self.problem, self.fields, self.run_state, evaluations, self.gradient
        )

    def _with_models(self, state: State, name: str) -> State:
        """The state with the field `name` as its models."""
        return rebuild(state, (state[self.fields.index(name)], *state[1:]))


class BackgroundEvaluations:
    """Evaluates models on threads of their own while training continues.

    Every evaluation uses one thread: with several, it would wait for threads that training uses.
    """

    def __init__(self) -> None:
        use_one_thread = partial(torch.set_num_threads, 1)  # of the calling thread
        self.threads = ThreadPoolExecutor(torch.get_num_threads(), "evaluation", use_one_thread)
        self.pending: deque[Future[None]] = deque()

    def add(self, evaluate: Callable[[], None]) -> None:
        self.pending.append(self.threads.submit(evaluate))

    def wait(self, most: int = 0) -> None:
        """Wait until at most `most` evaluations are pending; raises their errors."""
        while len(self.pending) > most:
            self.pending.popleft().result()

    def close(self) -> None:
        self.wait()
        self.threads.shutdown()


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


def _is_synchronization_round(snapshot: Snapshot, evaluation_due: Bools, keep_states: bool) -> bool:
    """Whether processes communicate after this round; the same answer in every process."""
    if snapshot.world.communicator.size == 1 or snapshot.k % MEETING == 0:
        return True
    return bool(evaluation_due.any()) or keep_states


def _evaluates_gradient(problem: Problem, final: bool, requested: bool | None) -> bool:
    """Whether the global gradient is evaluated, too; by its cost if `requested` is None."""
    if requested is not None:
        return requested
    if not isinstance(problem, HasWork):
        return False
    if final:
        return problem.work <= _MAX_FINAL_GRADIENT_COST
    return problem.work <= _MAX_GRADIENT_COST


def _cost_row(snapshot: Snapshot, index: int) -> dict[str, float]:
    """Round, delay and counters of one run, without metrics; collective."""
    counters = snapshot.world.counters(index)
    return {"round": snapshot.k, "delay": float(snapshot.delay[index]), **counters}


def _fits_background(problem: Problem, state: State) -> bool:
    """Whether models may be evaluated while training continues.

    Modules may draw random numbers, or share memory with those that are trained; linear models do
    neither.
    """
    if not isinstance(problem, CompiledGradient) or problem.linear_data(state[0].dtype) is None:
        return False
    return fits_loops(*state) and state[0].numel() * len(state) <= _MAX_COPIED


def _copy_state(run_state: RunState) -> RunState:
    """A copy, made by NumPy: torch would wait for threads that are busy."""
    copies = [torch.from_numpy(tensor.numpy().copy()) for tensor in run_state.state]
    statistics = torch.from_numpy(run_state.statistics.numpy().copy())
    return run_state._replace(state=rebuild(run_state.state, copies), statistics=statistics)

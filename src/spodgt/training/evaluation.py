"""Evaluates runs and records the values, on the training thread or in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from spodgt.engine import fits_loops
from spodgt.kernels.steps import State, rebuild
from spodgt.problems.protocols import CompiledGradient, HasWork
from spodgt.record import metrics
from spodgt.runtimes.world import Run, RunState, Snapshot, World
from spodgt.training.checkpoint import MethodLog
from spodgt.training.settings import ExecutionSettings
from spodgt.training.stopping import Row
from spodgt.training.tables import client_rows
from spodgt.types import Bools, Evaluation, Problem

_MODEL_FIELDS = ("x", "mean")  # fields of a state that are evaluated, if the method has them
_MAX_PENDING = 4  # evaluations in the background
_MAX_COPIED = 2**22  # elements of a state that is copied and evaluated in the background
# Cost of a global gradient, in multiplications, up to which it is evaluated.
_MAX_GRADIENT_COST = 1e6  # at every evaluation
_MAX_FINAL_GRADIENT_COST = 1e9  # at the last evaluation of a run


class RunEvaluator:
    """Evaluates the runs of one method, and records the values in its log.

    Args:
        log: of the method.
        runs: all runs of the method.
        settings: how to run.
        records: whether this process fills the log.
    """

    def __init__(
        self, log: MethodLog, runs: Sequence[Run], settings: ExecutionSettings, *, records: bool
    ) -> None:
        self.log = log
        self.runs = runs
        self.settings = settings
        self.records = records
        self.background = BackgroundEvaluations()
        self.accuracy = np.full(len(runs), np.nan)  # at the last evaluations
        self.pending_rows: deque[Row] = deque()  # not yet given to user callbacks

    def evaluate_runs(
        self,
        snapshot: Snapshot,
        states: Mapping[int, RunState],
        is_evaluated: Bools,
        is_last: Bools,
    ) -> None:
        """Evaluate some runs of a batch; collective.

        Args:
            states: by index in the batch; empty in processes that do not record.
            is_evaluated: (runs,) runs to evaluate.
            is_last: (runs,) runs for which this is the last evaluation.
        """
        max_pending = 0 if self.settings.stopping.needs_values else _MAX_PENDING
        for index in np.flatnonzero(is_evaluated).tolist():
            self.evaluate(snapshot, index, states.get(index), final=bool(is_last[index]))
            self.background.wait(max_pending)

    def evaluate(
        self, snapshot: Snapshot, index: int, state: RunState | None, *, final: bool
    ) -> None:
        """Evaluate one run, in the background if possible; collective."""
        world = snapshot.world
        run = int(world.runs[index])
        problem = self.runs[run].problem.to(self.settings.device, self.settings.dtype)
        costs = _round_and_counters(snapshot, index)
        task = EvaluationTask(
            world=world,
            state=snapshot.state,
            index=index,
            run_state=state,
            fields=self.runs[run].algorithm.traits.state,
            problem=problem,
            gradient=_evaluates_gradient(problem, final, self.settings.gradient_norm),
        )
        if world.communicator.size == 1 and state and _fits_background(problem, state.state):
            task = replace(task, run_state=_copy_state(state))
            self.background.add(partial(self._record_evaluation, run, costs, task, final))
        else:
            self._record_evaluation(run, costs, task, final)

    def record_costs(self, snapshot: Snapshot, index: int) -> None:
        """Record the round and costs of a run without metrics; collective."""
        costs = _round_and_counters(snapshot, index)
        if self.records:
            self._record(int(snapshot.world.runs[index]), costs)

    def _record_evaluation(
        self, run: int, costs: dict[str, float], task: EvaluationTask, final: bool
    ) -> None:
        evaluated = task.evaluate()
        if evaluated is None:
            return
        self._record(run, {**costs, **metrics.measure(evaluated)})
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


def _evaluates_gradient(problem: Problem, final: bool, requested: bool | None) -> bool:
    """Whether the global gradient is evaluated, too; by its cost if `requested` is None."""
    if requested is not None:
        return requested
    if not isinstance(problem, HasWork):
        return False
    if final:
        return problem.work <= _MAX_FINAL_GRADIENT_COST
    return problem.work <= _MAX_GRADIENT_COST


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


def _round_and_counters(snapshot: Snapshot, index: int) -> dict[str, float]:
    """Round, delay and counters of one run; collective."""
    counters = snapshot.world.counters(index)
    return {"round": snapshot.k, "delay": float(snapshot.delay[index]), **counters}

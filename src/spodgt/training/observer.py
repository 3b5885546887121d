"""The observer of one method's batch: evaluates, records, checks for NaN, saves and reports progress.

It runs in every process that holds clients. All of them call it at the same rounds; where it needs others,
it asks the world. Only the process that records fills tables and writes files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms import describe
from spodgt.engine import fits_loops
from spodgt.kernels.steps import State, rebuild
from spodgt.problems.protocols import CompiledGradient
from spodgt.record import metrics
from spodgt.record.record import Diverged
from spodgt.runtimes.loop import MEETING, STRIDE
from spodgt.runtimes.world import (
    EXCHANGED_STATISTICS,
    EXCHANGED_X,
    Run,
    RunState,
    Runtime,
    Saved,
    Snapshot,
    Tally,
)
from spodgt.tensors import is_finite
from spodgt.training.log import Ended, MethodLog
from spodgt.training.tables import client_rows
from spodgt.types import Bools, Problem

if TYPE_CHECKING:
    from spodgt.training.executor import Interrupt, Settings

_REPORTED = (
    "x",
    "mean",
)  # fields of a state that are models to report; the second where it is kept
_SHOW_EVERY = 0.1  # seconds between two reports of progress
_SMALL = 2**22  # numbers of a state that is copied, so that it is evaluated while rounds go on
_AHEAD = 4  # evaluations that may be under way
_CHEAP, _AFFORDABLE = (
    1e6,
    1e9,
)  # multiplications for a global gradient: at every evaluation, at the last only


@dataclass(frozen=True)
class Progress:
    """How far a comparison is; what a progress callback is given.

    Args:
        algorithm: the method that is running.
        number: its number among `total` methods, from 1.
        total: how many methods there are.
        k: the round.
        delay: of the run that is furthest behind.
        fraction: of this method's work that is done, 0 to 1.
        accuracy: mean over runs at their last evaluation, NaN before the first.
    """

    algorithm: str
    number: int
    total: int
    k: int
    delay: float
    fraction: float
    accuracy: float


class Recorder(Protocol):
    """Takes what observers record: the executor of a comparison, or a worker process of one run."""

    @property
    def settings(self) -> Settings: ...
    @property
    def runtime(self) -> Runtime: ...
    @property
    def interrupt(self) -> Interrupt: ...
    @property
    def labels(self) -> list[str]: ...
    @property
    def kept(self) -> bool: ...  # whether checkpoints are written
    @property
    def state_bytes(self) -> int: ...  # bytes of the last state of one run that may be kept
    def save(self, log: MethodLog | None, where: Saved | None = None) -> None: ...
    def finish(self, log: MethodLog, runs: Sequence[Run], states: dict[int, State]) -> None: ...


class Observer:
    """Watches the runs of one method; `run_rounds` calls it."""

    def __init__(self, executor: Recorder, log: MethodLog, runs: Sequence[Run]) -> None:
        self.executor, self.log, self.runs, self.label = executor, log, runs, log.label
        self.settings, self.records = executor.settings, executor.runtime.records
        self.background = Background()
        self.history: dict[int, list[State]] = {n: [] for n in range(len(runs))}
        self.accuracy = np.full(len(runs), np.nan)
        self.told: deque[dict[str, Any]] = deque()  # evaluations that the callbacks have not seen
        self.saved = self.shown = time.monotonic()

    def __call__(self, snapshot: Snapshot, due: Bools, last: Bools) -> Bools:
        """Evaluate, record and save the runs of a batch after a round.

        Evaluated are the models of the last exchange, kept are those of this round: they differ for methods
        with local steps.

        Args:
            snapshot: where the batch stands.
            due: (runs,) to evaluate now.
            last: (runs,) that end with this round.

        Returns:
            (runs,) that have left the finite numbers and must be stopped.
        """
        world = snapshot.world
        keep = self.settings.keep_states
        if world.processes > 1 and snapshot.k % MEETING and not due.any() and not keep:
            return np.zeros_like(due)  # processes meet only where all of them do
        broken = self._meet(snapshot, due)
        evaluated = due & ~broken
        exchange = self._at_exchange(snapshot)
        if exchange is snapshot:
            states = _gather(snapshot, evaluated | last | broken | keep)
            exchanged = states
        else:
            states = _gather(snapshot, last | broken | keep)
            exchanged = _gather(exchange, evaluated)
        for at, run in enumerate(world.runs.tolist()):
            whole = states.get(at)  # None where nothing is recorded
            if evaluated[at]:
                self._evaluate(exchange, at, exchanged.get(at), final=bool(last[at]))
                self.background.wait(_AHEAD)
            if whole and keep:  # copies: a world uses the memory of a state again
                self.history[run].append(rebuild(whole.state, [t.clone() for t in whole.state]))
            meters = world.meters(at) if broken[at] else None  # all processes count together
            if whole and (last[at] or broken[at]):
                shown = None if exchange is snapshot else exchanged.get(at)
                self._end(snapshot, at, whole, shown, meters, copy=not (last | broken).all())
        self._report(snapshot, over=bool(last.all()))
        self._tell()
        return broken

    def _at_exchange(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the models of the last exchange; itself where no run is between local steps."""
        world, state = snapshot.world.at_exchange(snapshot.state)
        if world is snapshot.world:
            return snapshot
        return replace(snapshot, world=world, state=state)

    def close(self, tally: Tally | None) -> None:
        """Fold a finished method into the tables; `tally` is None where nothing was left to run."""
        self.background.wait()
        self.background.threads.shutdown()
        self._tell()
        states = {}
        self.log.tally = tally or self.log.tally
        for n, run in enumerate(self.runs if self.settings.keep_states and self.records else ()):
            columns = zip(*self.history[n], strict=True)
            states[run.seed] = rebuild(
                self.history[n][0], [torch.stack(column) for column in columns]
            )
        self.executor.finish(self.log, self.runs, states)

    def _end(
        self,
        snapshot: Snapshot,
        at: int,
        whole: RunState,
        exchanged: RunState | None,
        broken: dict[str, float] | None,
        *,
        copy: bool,
    ) -> None:
        """Keep what a run is at its end: a copy, where the memory of the batch would be held for it.

        Args:
            snapshot: where the batch stands.
            at: the run's number in it.
            whole: the run's state.
            exchanged: the same with the models of its last exchange, where these may be others.
            broken: the meters of a run that has left the finite numbers.
            copy: whether to copy.
        """
        run, delay = int(snapshot.world.runs[at]), float(snapshot.delay[at])
        most = self.executor.state_bytes
        fields = self.runs[run].algorithm.traits.state
        self.log.ended[run] = Ended.of(
            fields,
            whole,
            most,
            exchanged,
            copy=copy,
            under_way=snapshot.world.under_way(at) if most else {},
            k=snapshot.k,
            delay=delay,
            stop=self.settings.stop,
            diverged=broken is not None,
        )
        if (
            broken is not None
        ):  # a row without numbers: the last finite model is not what the run came to
            self._record(run, {"round": snapshot.k, "delay": delay, **broken})

    # --- what all processes do together ----------------------------------------------------------
    def _meet(self, snapshot: Snapshot, due: Bools) -> Bools:
        """Save and stop where it is time to; returns the runs that have left the finite numbers."""
        world, executor = snapshot.world, self.executor
        suspects = due if snapshot.k % STRIDE else np.ones_like(due)
        models = zip(suspects, world.split(snapshot.state[0]), strict=True)
        odd = [bool(suspect) and not is_finite(x) for suspect, x in models]
        wait = time.monotonic() - self.saved < self.settings.checkpoint_every
        save = executor.kept and self.records and not wait
        flags = world.agree(np.array([*odd, save, executor.interrupt.requested]))
        broken, stop = flags[:-2], bool(flags[-1])
        if flags[-2] or (stop and executor.kept):
            self._save(snapshot)
        if stop:
            world.close()
            raise KeyboardInterrupt
        for run in world.runs[broken].tolist():
            step = str(describe(self.runs[run].algorithm).get("step_size"))
            finite_at = self.log.finite_at.get(run, 0)
            found = Diverged(self.label, self.runs[run].seed, snapshot.k, finite_at, step)
            self.log.diverged.append(found)
        for run in world.runs[suspects & ~broken].tolist():
            self.log.finite_at[run] = snapshot.k
        return broken

    def _save(self, snapshot: Snapshot) -> None:
        self.background.wait()
        world, names = snapshot.world, self.runs[0].algorithm.traits.state
        everything = np.ones(len(world.runs), bool)
        parts = world.gather(snapshot.state, everything)
        exchange = self._at_exchange(snapshot)
        exchanged = None
        if exchange is not snapshot:
            exchanged = exchange.world.gather(exchange.state, everything)
        tally = world.tally()
        if parts:
            fields = [
                _joined(tensors) for tensors in zip(*(part.state for part in parts), strict=True)
            ]
            statistics = _joined([part.statistics for part in parts])
            state = dict(zip(names, fields, strict=True))
            if exchanged:
                state[EXCHANGED_X] = _joined([part.state[0] for part in exchanged])
                state[EXCHANGED_STATISTICS] = _joined([part.statistics for part in exchanged])
            under_way = [world.under_way(at) for at in range(len(world.runs))]
            where = Saved(
                snapshot.k, snapshot.delay, world.runs, state, statistics, tally, under_way
            )
            self.executor.save(self.log, where)
        self.saved = time.monotonic()

    # --- evaluation ------------------------------------------------------------------------------
    def _evaluate(
        self, snapshot: Snapshot, at: int, whole: RunState | None, *, final: bool
    ) -> None:
        world, k, delay = snapshot.world, snapshot.k, float(snapshot.delay[at])
        number, meters = int(world.runs[at]), snapshot.world.meters(at)
        problem = self.runs[number].problem.to(self.settings.device, self.settings.dtype)
        wish = self.settings.gradient_norm
        gradient = (problem.work <= (_AFFORDABLE if final else _CHEAP)) if wish is None else wish

        fields = self.runs[number].algorithm.traits.state
        reported = [name for name in fields if name in _REPORTED]

        def evaluate(whole: RunState | None) -> None:
            quality = []
            for name in reported:  # the models, and their running means where the method keeps them
                there = whole and whole._replace(state=_first(whole.state, fields, name))
                found = world.evaluate(_first(snapshot.state, fields, name), at, there)
                quality += [] if found is None else [found]
            if quality and whole is not None:
                taken = metrics.RunSnapshot.take(problem, fields, whole, quality, gradient)
                self._record(
                    number, {"round": k, "delay": delay, **meters, **metrics.measure(taken)}
                )
                if final:
                    self.log.clients[self.runs[number].seed] = client_rows(
                        self.label, self.runs[number], taken
                    )

        if whole and world.processes == 1 and _beside(problem, whole.state):
            # Rounds go on with the original. numpy copies on this thread; torch would wait for a busy one.
            copies = [
                torch.from_numpy(tensor.numpy().copy())
                for tensor in (*whole.state, whole.statistics)
            ]
            copy = whole._replace(state=rebuild(whole.state, copies[:-1]), statistics=copies[-1])
            self.background.add(partial(evaluate, copy))
        else:
            evaluate(whole)

    def _record(self, number: int, values: dict[str, float]) -> None:
        """Put one evaluation on the log, in place of one of the same round (a run that was extended)."""
        seed = self.runs[number].seed
        self.accuracy[number] = values.get("accuracy", np.nan)
        before = self.log.rows.get((seed, int(values["round"])), {})
        row = {**before, "algorithm": self.label, "seed": seed, **values}
        self.log.rows[seed, int(values["round"])] = row
        self.told.append(row)

    def _tell(self) -> None:
        """Give the callbacks what was recorded, on this thread and in order."""
        while self.told:
            row = self.told.popleft()
            for callback in self.settings.callbacks if self.records else ():
                callback(dict(row))

    # --- progress --------------------------------------------------------------------------------
    def _report(self, snapshot: Snapshot, *, over: bool) -> None:
        now, tell = time.monotonic(), self.settings.progress
        if tell is None or not self.records or (now - self.shown < _SHOW_EVERY and not over):
            return
        self.shown = now
        self.background.wait(0 if over else _AHEAD)  # what is shown last is what came out
        stop, labels, behind = self.settings.stop, self.executor.labels, float(snapshot.delay.min())
        parts = [behind / stop.delay] if stop.delay else []
        parts += [snapshot.k / stop.rounds] if stop.rounds else []
        known = self.accuracy[~np.isnan(self.accuracy)]
        tell(
            Progress(
                self.label,
                labels.index(self.label) + 1,
                len(labels),
                snapshot.k,
                behind,
                1.0 if over else min(1.0, max(parts, default=0.0)),
                float(known.mean()) if len(known) else float("nan"),
            )
        )


class Background:
    """Evaluates models on background threads while training goes on.

    Each evaluation has one thread, so that none waits for the other half of an operation (OpenMP barriers).
    """

    def __init__(self) -> None:
        alone = partial(torch.set_num_threads, 1)  # of the thread that says it
        self.threads = ThreadPoolExecutor(torch.get_num_threads(), "evaluation", alone)
        self.waiting: deque[Future[None]] = deque()

    def add(self, evaluate: Callable[[], None]) -> None:
        self.waiting.append(self.threads.submit(evaluate))

    def wait(self, most: int = 0) -> None:
        """Until at most so many are under way; what failed there fails here."""
        while len(self.waiting) > most:
            self.waiting.popleft().result()


def _beside(problem: Problem, state: State) -> bool:
    """Whether evaluation may go on beside the rounds.

    Modules may draw random numbers or share memory with those that train; linear models do neither.
    """
    linear = (
        isinstance(problem, CompiledGradient) and problem.linear_data(state[0].dtype) is not None
    )
    return linear and fits_loops(*state) and state[0].numel() * len(state) <= _SMALL


def _gather(snapshot: Snapshot, wanted: Bools) -> dict[int, RunState]:
    """The whole states of some runs, by their number in the batch; empty where nothing is recorded."""
    if not wanted.any():
        return {}
    found = snapshot.world.gather(snapshot.state, wanted)
    if found is None:
        return {}
    return dict(zip(np.flatnonzero(wanted).tolist(), found, strict=True))


def _first(state: State, fields: Sequence[str], name: str) -> State:
    """The state with the field `name` in the place of the models."""
    return rebuild(state, (state[fields.index(name)], *state[1:]))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))

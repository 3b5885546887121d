"""The training loop: advances a batch of runs until each reaches its stop condition.

Methods do not depend on the loop, the clock, counters or files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spodgt.errors import InvalidInput
from spodgt.runtimes.world import Snapshot, World
from spodgt.types import Bools, Floats, Ints


@dataclass(frozen=True)
class Stop:
    """The stop condition of runs: `rounds` rounds, or the last model before `delay`."""

    rounds: int | None = None
    delay: float | None = None

    def reached(self, k: int | Ints, next_delay: Floats) -> Bools:
        """Whether runs end with x[k].

        Args:
            k: the round, or (rounds, 1).
            next_delay: (runs,) or (rounds, runs), the delay at which x[k+1] would be available.
        """
        is_reached = np.zeros(next_delay.shape, bool)
        if self.rounds is not None:
            is_reached |= k >= self.rounds
        if self.delay is not None:
            is_reached |= next_delay > self.delay
        return is_reached


@dataclass(frozen=True)
class EvaluationSchedule:
    """Evaluate every `rounds` rounds, or the last model before every multiple of `delay`."""

    rounds: int | None = None
    delay: float | None = None

    def due(self, k: int | Ints, delay: Floats, next_delay: Floats) -> Bools:
        """Whether runs are evaluated at x[k].

        Args:
            k: the round, or (rounds, 1).
            delay: (runs,) or (rounds, runs), the delay at which x[k] is available.
            next_delay: the same of x[k+1].
        """
        is_due = np.zeros(delay.shape, bool)
        if self.rounds is not None:
            is_due |= k % self.rounds == 0
        if self.delay is not None:
            is_due |= np.ceil(delay / self.delay) * self.delay < next_delay
        return is_due


Observe = Callable[[Snapshot, Bools, Bools], Bools]
"""observe(snapshot, evaluation_due, is_last) returns the (runs,) mask of diverged runs, which are
stopped."""

STRIDE = 64  # rounds between two NaN checks, the same in every runtime
SYNCHRONIZATION_STRIDE = 16  # rounds between two synchronizations of processes, at most
_FREE_ROUNDS = 10_000  # rounds without a delay after which a stop by delay is an error
_OBSERVATION_SECONDS = 0.1  # between two observations, about: interrupts are handled there


def begin(world: World) -> Snapshot:
    """The snapshot after round 0."""
    return Snapshot(0, np.zeros(len(world.runs)), world, world.init())


def run_rounds(
    snapshot: Snapshot,
    stop: Stop,
    schedule: EvaluationSchedule,
    observe: Observe,
    stride: int = STRIDE,
) -> Snapshot:
    """Advance runs from `snapshot` until all of them have stopped; returns the last snapshot.

    Snapshots with an evaluation or an end are observed, and one every `stride` rounds; between
    these, one about every 0.1 seconds.

    Raises:
        InvalidInput: the runs stop by delay, but their rounds have none.
    """
    pace = 1  # rounds between two observations
    while True:
        world = snapshot.world
        state = snapshot.state
        k = snapshot.k
        costs = world.costs(k + 1)[: stride + 1]
        delays = np.add.accumulate(np.vstack([snapshot.delay, costs]))  # of x[k], x[k+1], …
        if k >= _FREE_ROUNDS and stop.rounds is None and not delays[1].all():
            raise InvalidInput(
                f"delay={stop.delay:g} is never reached: {k:,} rounds had no delay; use rounds=100."
            )
        is_last = stop.reached(k, delays[1])
        evaluation_due = schedule.due(k, delays[0], delays[1]) | is_last
        is_last = is_last | observe(snapshot, evaluation_due, is_last)
        if is_last.all():
            return snapshot
        if is_last.any():
            world, state = world.select_runs(~is_last, state)
            delays = delays[:, ~is_last]
        limit = min(len(delays) - 1, pace, stride - k % stride)
        count = _rounds_to_next_event(k, delays[: limit + 1], stop, schedule)
        started = time.monotonic()
        state = world.advance(state, range(k + 1, k + count + 1))
        seconds = max(time.monotonic() - started, 1e-9)
        pace = max(1, min(2 * pace, int(_OBSERVATION_SECONDS * count / seconds)))
        snapshot = Snapshot(k + count, delays[count].copy(), world, state)


def _rounds_to_next_event(k: int, delays: Floats, stop: Stop, schedule: EvaluationSchedule) -> int:
    """Rounds after x[k] until an evaluation or an end of a run, at most len(delays) - 1.

    Args:
        k: the current round.
        delays: (rounds, runs) when x[k], x[k+1], … are available.
        stop: the stop condition.
        schedule: of evaluations.
    """
    limit = len(delays) - 1
    rounds = k + np.arange(1, limit)[:, None]
    delay = delays[1:limit]
    next_delay = delays[2 : limit + 1]
    is_event = schedule.due(rounds, delay, next_delay) | stop.reached(rounds, next_delay)
    has_event = is_event.any(1)
    if not has_event.any():
        return limit
    return int(has_event.argmax()) + 1

"""The loop. It knows no algorithm; the algorithm knows no loop, clock, counter or file."""

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
    """When a run is over: after `rounds` rounds, or before its delay would pass `delay`."""

    rounds: int | None = None
    delay: float | None = None

    def reached(self, k: int | Ints, then: Floats) -> Bools:
        """Which runs end with x[k], given the delay at which x[k+1] would be available; `k` may be (k, 1)."""
        done = np.zeros(then.shape, bool)
        if self.rounds is not None:
            done |= k >= self.rounds
        if self.delay is not None:
            done |= then > self.delay
        return done


@dataclass(frozen=True)
class EvaluationSchedule:
    """Evaluate every `rounds` rounds, or the last model before every multiple of `delay`."""

    rounds: int | None = None
    delay: float | None = None

    def due(self, k: int | Ints, now: Floats, then: Floats) -> Bools:
        """Which runs are evaluated at x[k], available from `now` until `then`; `k` may be (k, 1)."""
        due = np.zeros(now.shape, bool)
        if self.rounds is not None:
            due |= k % self.rounds == 0
        if self.delay is not None:
            due |= np.ceil(now / self.delay) * self.delay < then
        return due


Observe = Callable[[Snapshot, Bools, Bools], Bools]
"""Told of snapshots, with the runs due for evaluation and those ending; returns the runs to give up."""

STRIDE = 64  # rounds between two looks whether all numbers are finite: alike in every runtime
MEETING = 16  # rounds at most between two meetings of processes: each goes at a pace of its own
_FREE = 10_000  # rounds that may cost nothing before that is an error
_PAUSE = 0.1  # seconds at most between two observations, where rounds are shorter: Ctrl-C is heard in time


def begin(world: World) -> Snapshot:
    """Round 0."""
    return Snapshot(0, np.zeros(len(world.runs)), world, world.init())


def run_rounds(
    snapshot: Snapshot,
    stop: Stop,
    schedule: EvaluationSchedule,
    observe: Observe,
    stride: int = STRIDE,
) -> Snapshot:
    """Go on from `snapshot` until every run is over; returns the last snapshot.

    All snapshots with an evaluation or an end are observed, and one every `stride` rounds; between these,
    as many as keep an observer from waiting long.
    """
    pace = 1
    while True:
        k, world, state = snapshot.k, snapshot.world, snapshot.state
        costs = world.costs(k + 1)[: stride + 1]
        delay = np.add.accumulate(np.vstack([snapshot.delay, costs]))  # of x[k], x[k+1], …
        if k >= _FREE and stop.rounds is None and not delay[1].all():
            raise InvalidInput(
                f"delay={stop.delay:g} is never reached: {k:,} rounds have cost nothing; use rounds=100."
            )
        last = stop.reached(k, delay[1])
        last = last | observe(snapshot, schedule.due(k, delay[0], delay[1]) | last, last)
        if last.all():
            return snapshot
        if last.any():
            world, state = world.keep(~last, state)
            delay = delay[:, ~last]
        ahead = min(len(delay) - 1, pace, stride - k % stride)
        after = k + np.arange(1, ahead)[:, None]
        now, then = delay[1:ahead], delay[2 : ahead + 1]
        seen = (schedule.due(after, now, then) | stop.reached(after, then)).any(1)
        count = int(seen.argmax()) + 1 if seen.any() else ahead
        began = time.monotonic()
        state = world.advance(state, range(k + 1, k + count + 1))
        spent = max(time.monotonic() - began, 1e-9)
        pace = max(1, min(2 * pace, int(_PAUSE * count / spent)))
        snapshot = Snapshot(k + count, delay[count].copy(), world, state)

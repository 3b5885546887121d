"""The loop. It knows no algorithm; the algorithm knows no loop, clock, counter or file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.errors import InvalidInput
from spodgt.types import Bools, Floats, Ints, Round


class World(Protocol):
    """A batch of runs on some runtime: it makes rounds and can drop the runs that are done."""

    @property
    def algorithm(self) -> Algorithm: ...  # fitted to the runs still going
    @property
    def runs(self) -> Ints: ...  # which runs are still going
    @property
    def statistics(self) -> Tensor: ...  # (clients, columns): running statistics, mostly no columns
    def start(self) -> Any: ...  # the initial models x
    def round(self, k: int) -> Round: ...
    def costs(
        self, k: int
    ) -> Floats: ...  # (at least one, runs): delay between x[k-1] and x[k], and of rounds after k
    def advance(self, state: Any, rounds: range) -> Any: ...  # the state after these rounds, one by one
    def keep(self, still: Bools, state: Any) -> tuple[World, Any]: ...


@dataclass(frozen=True)
class Stop:
    """When a run is over: after `rounds` rounds, or before its delay would pass `delay`."""

    rounds: int | None = None
    delay: float | None = None

    def reached(self, k: Any, then: Floats) -> Bools:
        """Which runs end with x[k], given the delay at which x[k+1] would be available; `k` may be (k, 1)."""
        done = np.zeros(then.shape, bool)
        if self.rounds is not None:
            done |= k >= self.rounds
        if self.delay is not None:
            done |= then > self.delay
        return done


@dataclass(frozen=True)
class Marks:
    """When to look: every `rounds` rounds, or with the last model before every multiple of `delay`."""

    rounds: int | None = None
    delay: float | None = None

    def due(self, k: Any, now: Floats, then: Floats) -> Bools:
        due = np.zeros(now.shape, bool)
        if self.rounds is not None:
            due |= k % self.rounds == 0
        if self.delay is not None:
            due |= np.ceil(now / self.delay) * self.delay < then
        return due


@dataclass(frozen=True)
class Moment:
    """Where a batch of runs stands: enough to go on from, so a checkpoint is a moment on disk."""

    k: int
    delay: Floats  # (runs still going,): when x[k] is available
    world: World
    state: Any


Observer = Callable[[Moment, Bools, Bools], Bools]
"""Told of moments, with the runs due for a look and those ending; returns the runs to give up."""

STRIDE = 16  # rounds at most between two moments that are observed
_FREE = 10_000  # rounds that may go by before the clock begins to tick
_PAUSE = 0.1  # seconds at most between them, if rounds are shorter: a user who waits or interrupts is heard


def begin(world: World) -> Moment:
    state = world.algorithm.init(world.start(), world.round(0))
    return Moment(0, np.zeros(len(world.runs)), world, state)


def run_rounds(moment: Moment, stop: Stop, marks: Marks, observe: Observer, stride: int = STRIDE) -> None:
    """Go on from `moment` until every run is over.

    Observed are all moments with a look or an end, and whatever happens every `stride` rounds; between
    these, as many as keep an observer from waiting long.
    """
    pace = 1
    while True:
        k, world, state = moment.k, moment.world, moment.state
        costs = world.costs(k + 1)[: stride + 1]
        delay = np.add.accumulate(np.vstack([moment.delay, costs]))  # of x[k], x[k+1], …
        if k >= _FREE and stop.rounds is None and not delay[1].all():
            raise InvalidInput(
                f"delay={stop.delay:g} is never reached: {k:,} rounds have cost nothing; use rounds=100."
            )
        last = stop.reached(k, delay[1])
        last = last | observe(moment, marks.due(k, delay[0], delay[1]) | last, last)
        if last.all():
            return
        if last.any():
            world, state = world.keep(~last, state)
            delay = delay[:, ~last]
        ahead = min(len(delay) - 1, pace, stride - k % stride)
        after = k + np.arange(1, ahead)[:, None]
        now, then = delay[1:ahead], delay[2 : ahead + 1]
        seen = (marks.due(after, now, then) | stop.reached(after, then)).any(1)
        count = int(seen.argmax()) + 1 if seen.any() else ahead
        began = time.monotonic()
        state = world.advance(state, range(k + 1, k + count + 1))
        spent = max(time.monotonic() - began, 1e-9)
        pace = max(1, min(2 * pace, int(_PAUSE * count / spent)))
        moment = Moment(k + count, delay[count].copy(), world, state)

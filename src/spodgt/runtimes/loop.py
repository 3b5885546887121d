"""The loop. It knows no algorithm; the algorithm knows no loop, clock, counter or file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from spodgt.types import Algorithm, Bools, Floats, Ints, Round


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
    def cost(self, k: int) -> Floats: ...  # (runs,): delay between x[k-1] and x[k]
    def keep(self, still: Bools, state: Any) -> tuple[World, Any]: ...


@dataclass(frozen=True)
class Stop:
    """When a run is over: after `rounds` rounds, or before its delay would pass `delay`."""

    rounds: int | None = None
    delay: float | None = None

    def reached(self, k: int, then: Floats) -> Bools:
        """Which runs end with x[k], given the delay at which x[k+1] would be available."""
        done = np.zeros(len(then), bool)
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

    def due(self, k: int, now: Floats, then: Floats) -> Bools:
        due = np.zeros(len(now), bool)
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
"""Told of every moment, with the runs due for a look and those ending; returns the runs to give up."""


def begin(world: World) -> Moment:
    state = world.algorithm.init(world.start(), world.round(0))
    return Moment(0, np.zeros(len(world.runs)), world, state)


def run_rounds(moment: Moment, stop: Stop, marks: Marks, observe: Observer) -> None:
    """Go on from `moment` until every run is over."""
    while True:
        then = moment.delay + moment.world.cost(moment.k + 1)
        last = stop.reached(moment.k, then)
        last = last | observe(moment, marks.due(moment.k, moment.delay, then) | last, last)
        if last.all():
            return
        if last.any():
            world, state = moment.world.keep(~last, moment.state)
            moment, then = replace(moment, world=world, state=state), then[~last]
        world, k = moment.world, moment.k + 1
        moment = Moment(k, then, world, world.algorithm.step(moment.state, world.round(k)))

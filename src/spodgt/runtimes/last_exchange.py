"""The models of runs after their last exchange, for methods with local steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from spodgt.kernels.steps import State, rebuild
from spodgt.runtimes.held_clients import ClientStatistics, HeldClients
from spodgt.runtimes.world import Exchanged
from spodgt.types import Bools, Ints

Compute = Callable[[State, range], State]  # the state after some rounds


class Segment(NamedTuple):
    """Consecutive rounds, and the runs to copy after the last of them."""

    rounds: range  # may be empty
    copied_runs: Bools  # (runs,) runs that have just exchanged models and go on with local steps


class LastExchanges:
    """Copies of the models of the last exchange, of runs that are between local steps.

    Args:
        held: the clients of this process.
    """

    def __init__(self, held: HeldClients) -> None:
        self.held = held
        self.runs: list[int] = held.batch.runs.tolist()
        self.periods = np.array([run.algorithm.period for run in held.batch.live], np.int64)
        self.has_local_steps = bool((self.periods > 1).any())
        self.models: dict[int, Exchanged] = {}  # by number of the run

    def advance(
        self,
        state: State,
        rounds: range,
        compute: Callable[[State, range], State],
        statistics: ClientStatistics,
    ) -> State:
        """Compute rounds, and copy the models of the last exchange of runs with local steps."""
        for segment in self._segments(rounds):
            state = compute(state, segment.rounds)
            self.copy(segment.copied_runs, state[0], statistics)
        self._drop_after(rounds.stop - 1)
        return state

    def _segments(self, rounds: range) -> list[Segment]:
        """Rounds in parts that end with the last exchange of a run."""
        last = rounds.stop - 1
        exchanges: Ints = last - last % self.periods  # the last exchange of each run
        first = rounds.start
        segments = []
        for k in sorted(set(exchanges.tolist()) - {last}):
            if k >= rounds.start - 1:  # earlier ones have been copied already
                segments.append(Segment(range(first, k + 1), exchanges == k))
                first = k + 1
        segments.append(Segment(range(first, last + 1), np.zeros(len(exchanges), bool)))
        return segments

    def copy(self, which: Bools, x: Tensor, statistics: ClientStatistics) -> None:
        """Copy the models of some runs."""
        if not which.any():
            return
        models = self.held.split(x)
        values = self.held.split(statistics.values)
        for index in np.flatnonzero(which).tolist():
            copied = Exchanged(models[index].clone(), values[index].clone())
            self.models[self.runs[index]] = copied

    def _drop_after(self, k: int) -> None:
        """Drop the copies of runs that exchange models in round k."""
        for run, period in zip(self.runs, self.periods.tolist(), strict=True):
            if k % period == 0:
                self.models.pop(run, None)

    def substitute(self, state: State, statistics: Tensor) -> tuple[State, Tensor]:
        """`state` and `statistics` with the copies in place of later models."""
        x = state[0].clone()
        statistics = statistics.clone()
        models = self.held.split(x)
        values = self.held.split(statistics)
        for index, run in enumerate(self.runs):
            if run in self.models:
                models[index].copy_(self.models[run].x)
                values[index].copy_(self.models[run].statistics)
        return rebuild(state, (x, *tuple(state)[1:])), statistics

    def restore(self, k: int, x: Tensor, statistics: Tensor) -> None:
        """Continue after round k with the models of the last exchange; rows as in the state."""
        between_exchanges = k % self.periods != 0
        self.copy(between_exchanges, x, ClientStatistics(statistics, private=0))

    def select(self, held: HeldClients) -> LastExchanges:
        """The copies of the runs of `held`, which are some of these."""
        selected = LastExchanges(held)
        for run in selected.runs:
            if run in self.models:
                selected.models[run] = self.models[run]
        return selected

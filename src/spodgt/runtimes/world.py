"""What a runtime works on and what it offers: `Draw`, `Run`, `World`, `Runtime`.

A *draw* is one seed of an experiment. A *run* is a method on a draw. A *world* is a batch of runs on some
runtime; the loop and the observer know nothing else. Where several processes hold a part of the clients
each, all of them call the same functions in the same order, and one of them records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.checks import check
from spodgt.algorithms.registry import with_step_sizes_of
from spodgt.kernels.steps import State
from spodgt.network import Network
from spodgt.tensors import mean
from spodgt.types import Availability, Bools, Evaluation, Floats, Ints, Problem

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Draw:
    """One seed of an experiment; made by `Experiment.draw` only."""

    seed: int
    network: Network
    availability: Availability
    problem: Problem  # divided among the clients
    start: Tensor  # (clients, parameters): the initial models


@dataclass(frozen=True, eq=False)
class Run:
    """A method on a draw: fitted to it, with the weights and the availability that it makes of it."""

    seed: int
    algorithm: Algorithm
    network: Network
    availability: Availability
    problem: Problem
    start: Tensor  # (clients, parameters)

    @staticmethod
    def of(draw: Draw, method: Algorithm) -> Run:
        """Check that the method can run there, and fill in what depends on the draw."""
        method = with_step_sizes_of(method, draw.network)
        check(method, draw.network, draw.availability)
        fitted = method.fit(draw.availability)
        used = fitted.adapt_availability(draw.availability, draw.network)
        return Run(
            draw.seed,
            fitted,
            fitted.with_mixing_weights(draw.network),
            used,
            draw.problem,
            draw.start,
        )


class Tally(NamedTuple):
    """What really happened, counted where it happens, for all runs one after the other."""

    gradients: Ints  # (clients of all runs,)
    messages: Ints  # (links of all runs,): rounds in which a link carried something
    bytes: Ints  # (links of all runs,)

    @staticmethod
    def zeros(runs: Sequence[Run]) -> Tally:
        links = sum(run.network.links for run in runs)
        clients = sum(run.network.clients for run in runs)
        return Tally(
            np.zeros(clients, np.int64), np.zeros(links, np.int64), np.zeros(links, np.int64)
        )

    def of_run(self, runs: Sequence[Run], number: int) -> Tally:
        """The counts of one run: views, so that they can be read and written."""
        first_client = sum(run.network.clients for run in runs[:number])
        first_link = sum(run.network.links for run in runs[:number])
        clients = slice(first_client, first_client + runs[number].network.clients)
        links = slice(first_link, first_link + runs[number].network.links)
        return Tally(self.gradients[clients], self.messages[links], self.bytes[links])

    def copy(self) -> Tally:
        return Tally(self.gradients.copy(), self.messages.copy(), self.bytes.copy())


class RunState(NamedTuple):
    """The state of all clients of one run, on the process that records."""

    state: State
    statistics: Tensor  # (clients, columns): running statistics, mostly no columns
    flight: Tensor | None = (
        None  # (parameters,) the mass of trackers that is on its way, in virtual time
    )


def with_average(whole: RunState) -> Tensor:
    """(clients + 1, columns): all models of a run with their statistics, their average last."""
    x, statistics = whole.state[0], whole.statistics
    models = torch.cat([x, statistics.to(x)], 1) if statistics.shape[1] else x
    return torch.cat([models, mean(models)[None]])


class Exchanged(NamedTuple):
    """The models of one run after its last exchange, where local steps have followed since."""

    x: Tensor  # (clients, parameters)
    statistics: Tensor  # (clients, columns)


class RunCheckpoint(NamedTuple):
    """One run between two rounds: enough to continue it on any runtime and number of processes."""

    k: int  # the last round
    delay: float  # when x[k] was available
    state: Mapping[str, Tensor]  # (clients, columns) of every field of the method's state
    statistics: Tensor  # (clients, columns): running statistics
    counts: Tally  # of this run
    in_flight: Mapping[str, Tensor]  # what `World.under_way` gave
    exchanged: Exchanged | None = None  # models of the last exchange, between local steps


class CheckpointBatch(NamedTuple):
    """The tensors of the checkpoints of several runs in the same round, one run after the other."""

    state: dict[str, Tensor]  # copies: a world writes to the memory of its state
    statistics: Tensor
    counts: Tally  # of all runs of the method; zeros for those without a checkpoint
    exchanged: Exchanged | None

    @staticmethod
    def join(runs: Sequence[Run], checkpoints: Mapping[int, RunCheckpoint]) -> CheckpointBatch:
        """Join the checkpoints of some of `runs`, by the number of the run."""
        points = list(checkpoints.values())
        state = {
            name: torch.cat([point.state[name] for point in points]) for name in points[0].state
        }
        statistics = torch.cat([point.statistics for point in points])
        counts = Tally.zeros(runs)
        for number, point in checkpoints.items():
            for total, count in zip(counts.of_run(runs, number), point.counts, strict=True):
                total[:] = count
        exchanged = None
        if any(point.exchanged is not None for point in points):
            models = [p.exchanged or Exchanged(p.state["x"], p.statistics) for p in points]
            exchanged = Exchanged(
                torch.cat([each.x for each in models]),
                torch.cat([each.statistics for each in models]),
            )
        return CheckpointBatch(state, statistics, counts, exchanged)


class World(Protocol):
    """A batch of runs on some runtime.

    States are NamedTuples that begin with x and hold the clients of this process. A world may use the
    memory of a state again once it is given to `advance`: who wants to keep one makes a copy.
    """

    @property
    def runs(self) -> Ints: ...  # which runs are still going
    @property
    def processes(self) -> int: ...  # that hold a part of the clients each
    def init(self) -> State: ...  # the state after round 0
    def advance(
        self, state: State, rounds: range
    ) -> State: ...  # the state after these rounds, one by one
    def costs(
        self, k: int
    ) -> Floats: ...  # (≥ 1, runs): delay of the round that leads to x[k], and of later
    def keep(
        self, still: Bools, state: State
    ) -> tuple[World, State]: ...  # go on with some of the runs
    def at_exchange(self, state: State) -> tuple[World, State]:
        """What is evaluated: this world and `state`, but with the models of every run's last exchange.

        Both are the same objects where no run is between local steps. The other fields stay.
        """
        ...

    def split(self, x: Tensor) -> list[Tensor]: ...  # the clients held here, one tensor per run
    def gather(
        self, state: State, wanted: Bools
    ) -> list[RunState] | None: ...  # wanted runs, in order
    def under_way(
        self, at: int
    ) -> dict[str, Tensor]: ...  # what run `at` needs to go on, beside its state
    def meters(
        self, at: int
    ) -> dict[str, float]: ...  # seconds, bytes, … of run `at`, for the record
    def evaluate(self, state: State, at: int, whole: RunState | None) -> Evaluation | None:
        """Loss and accuracy of all clients' models of run `at` and, last, of their average.

        `whole` is what `gather` gave for it; None on processes that do not record, which get None.
        """
        ...

    def agree(self, flags: Bools) -> Bools: ...  # true where it is true in any process
    def tally(self) -> Tally: ...  # of all processes
    def close(self) -> None: ...  # wait for what is still under way


class Runtime(Protocol):
    """Makes worlds, and lets the processes that share them speak with one voice."""

    @property
    def records(self) -> bool: ...  # whether this process writes and reports
    @property
    def processes(self) -> int: ...  # that share the work
    @property
    def restarted(self) -> bool: ...  # whether the job was started again after a failure
    def working(self) -> AbstractContextManager[None]: ...  # around all work
    def check_alike(
        self, facts: Mapping[str, str]
    ) -> None: ...  # raise where processes have other facts
    def first(
        self, action: Callable[[], T]
    ) -> T: ...  # done where it records; all get (JSON) or raise it
    def share(
        self, data: Callable[[], bytes]
    ) -> bytes: ...  # the bytes of the process that records
    def world(self, runs: Sequence[Run], dtype: torch.dtype) -> World: ...  # at the beginning
    def restore(
        self,
        runs: Sequence[Run],
        dtype: torch.dtype,
        checkpoints: Mapping[int, RunCheckpoint] | None,
    ) -> Snapshot:
        """Continue some of `runs`, which are in the same round, from their checkpoints.

        Args:
            checkpoints: by the number of the run; None on processes that do not record.
        """
        ...


@dataclass(frozen=True)
class Snapshot:
    """Where a batch of runs stands."""

    k: int
    delay: Floats  # (runs still going,): when x[k] is available
    world: World
    state: State

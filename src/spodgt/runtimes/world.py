"""Interfaces of runtimes, and the values they work on: `Draw`, `Run`, `World`, `Runtime`.

A *draw* is one seed of an experiment. A *run* is a method on a draw. A *world* is a batch of runs
on some runtime; the training loop and the observer depend on nothing else. If several processes
hold a part of the clients each, all of them call the same functions in the same order, and the main
process (rank 0) records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.checks import check
from spodgt.algorithms.registry import with_step_sizes_of
from spodgt.kernels.steps import State, rebuild
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
    problem: Problem  # partitioned among the clients
    start: Tensor  # (clients, parameters) initial models


@dataclass(frozen=True, eq=False)
class Run:
    """A method on a draw, with the mixing weights and the availability that the method uses."""

    seed: int
    algorithm: Algorithm
    network: Network
    availability: Availability
    problem: Problem
    start: Tensor  # (clients, parameters) initial models

    @staticmethod
    def of(draw: Draw, method: Algorithm) -> Run:
        """Check that the method can run on a draw, and set what depends on the draw.

        Raises:
            Incompatible: the method cannot run on this network or with this availability.
        """
        method = with_step_sizes_of(method, draw.network)
        check(method, draw.network, draw.availability)
        fitted = method.fit(draw.availability)
        return Run(
            seed=draw.seed,
            algorithm=fitted,
            network=fitted.with_mixing_weights(draw.network),
            availability=fitted.adapt_availability(draw.availability, draw.network),
            problem=draw.problem,
            start=draw.start,
        )


class Tally(NamedTuple):
    """Counts of gradients and messages, of all runs one after the other."""

    gradients: Ints  # (clients of all runs,)
    messages: Ints  # (links of all runs,) rounds in which a link carried anything
    bytes: Ints  # (links of all runs,)

    @staticmethod
    def zeros(runs: Sequence[Run]) -> Tally:
        links = sum(run.network.links for run in runs)
        clients = sum(run.network.clients for run in runs)
        gradients = np.zeros(clients, np.int64)
        return Tally(gradients, np.zeros(links, np.int64), np.zeros(links, np.int64))

    def of_run(self, runs: Sequence[Run], number: int) -> Tally:
        """The counts of one run: views, which may be written to."""
        first_client = sum(run.network.clients for run in runs[:number])
        first_link = sum(run.network.links for run in runs[:number])
        clients = slice(first_client, first_client + runs[number].network.clients)
        links = slice(first_link, first_link + runs[number].network.links)
        return Tally(self.gradients[clients], self.messages[links], self.bytes[links])

    def copy(self) -> Tally:
        return Tally(self.gradients.copy(), self.messages.copy(), self.bytes.copy())


class RunState(NamedTuple):
    """The state of all clients of one run, on the main process."""

    state: State
    statistics: Tensor  # (clients, columns) running statistics, mostly no columns
    mass_in_flight: Tensor | None = None  # (parameters,) Σ of trackers in flight, in virtual time


def with_average(run_state: RunState) -> Tensor:
    """(clients + 1, columns) the models of a run with their statistics; the last is the average."""
    models = run_state.state[0]
    if run_state.statistics.shape[1]:
        models = torch.cat([models, run_state.statistics.to(models)], 1)
    return torch.cat([models, mean(models)[None]])


class Exchanged(NamedTuple):
    """Models of the last exchange, of a run that is between local steps."""

    x: Tensor  # (clients, parameters)
    statistics: Tensor  # (clients, columns)


class RunCheckpoint(NamedTuple):
    """One run between two rounds: enough to continue it on any runtime and number of processes."""

    k: int  # the last round
    delay: float  # when x[k] was available
    state: Mapping[str, Tensor]  # (clients, columns) of every field of the method's state
    statistics: Tensor  # (clients, columns) running statistics
    counts: Tally  # of this run
    in_flight: Mapping[str, Tensor]  # what `World.in_flight_state` returned
    exchanged: Exchanged | None = None  # models of the last exchange, between local steps


class CheckpointBatch(NamedTuple):
    """The checkpoints of several runs in the same round, their tensors one run after the other."""

    k: int
    delay: Floats  # (runs,)
    state: dict[str, Tensor]  # copies: a world writes to the memory of its state
    statistics: Tensor
    counts: Tally  # of all runs of the method; zeros for those without a checkpoint
    exchanged: Exchanged | None

    @staticmethod
    def join(runs: Sequence[Run], checkpoints: Mapping[int, RunCheckpoint]) -> CheckpointBatch:
        """Join the checkpoints of some of `runs`, by the number of the run."""
        points = list(checkpoints.values())
        state = {}
        for name in points[0].state:
            state[name] = torch.cat([point.state[name] for point in points])
        return CheckpointBatch(
            k=points[0].k,
            delay=np.array([point.delay for point in points]),
            state=state,
            statistics=torch.cat([point.statistics for point in points]),
            counts=_join_counts(runs, checkpoints),
            exchanged=_join_exchanged(points),
        )

    def to_state(self, like: State, names: Sequence[str], device: torch.device) -> State:
        """The state of the runs, of the type of `like`; `names` are those of its fields."""
        return rebuild(like, [self.state[name].to(device) for name in names])


def _join_counts(runs: Sequence[Run], checkpoints: Mapping[int, RunCheckpoint]) -> Tally:
    """The counts of all runs; zeros for those without a checkpoint."""
    counts = Tally.zeros(runs)
    for number, point in checkpoints.items():
        own = counts.of_run(runs, number)
        own.gradients[:] = point.counts.gradients
        own.messages[:] = point.counts.messages
        own.bytes[:] = point.counts.bytes
    return counts


def _join_exchanged(points: Sequence[RunCheckpoint]) -> Exchanged | None:
    """The models of the last exchange; None if no run is between local steps."""
    if all(point.exchanged is None for point in points):
        return None
    models = []
    statistics = []
    for point in points:
        exchanged = point.exchanged or Exchanged(point.state["x"], point.statistics)
        models.append(exchanged.x)
        statistics.append(exchanged.statistics)
    return Exchanged(torch.cat(models), torch.cat(statistics))


class Communicator(Protocol):
    """The processes that hold the clients of a world."""

    @property
    def size(self) -> int: ...  # number of processes
    def any(self, flags: Bools) -> Bools: ...  # collective: flags that are set in any process


class SingleProcess:
    """The communicator of a world in one process."""

    size = 1

    def any(self, flags: Bools) -> Bools:
        return flags


class World(Protocol):
    """A batch of runs on some runtime.

    States are NamedTuples that begin with x and hold the clients of this process. `advance` may
    write to the memory of its state: callers must copy a state they keep.
    """

    runs: Ints  # numbers of the runs that are not finished
    sizes: list[int]  # rows of a state that belong to each of these runs

    @property
    def communicator(self) -> Communicator: ...
    def init(self) -> State: ...  # the state after round 0
    def costs(self, k: int) -> Floats: ...  # (≥ 1, runs) delay of round k and of rounds after it
    def advance(self, state: State, rounds: range) -> State: ...  # the state after these rounds
    def select_runs(self, selected: Bools, state: State) -> tuple[World, State]: ...
    def at_last_exchange(self, state: State) -> tuple[World, State]:
        """This world and `state` with the models of the last exchange of every run.

        Returns:
            The same objects if no run is between local steps. The other fields are unchanged.
        """
        ...

    def gather(self, state: State, wanted: Bools) -> list[RunState] | None:
        """The states of the wanted runs, in order; None except on the main process."""
        ...

    def evaluate(self, state: State, index: int, run_state: RunState | None) -> Evaluation | None:
        """Loss and metrics of the models of all clients of a run and, last, of their average.

        Args:
            state: the state.
            index: of the run in `runs`.
            run_state: what `gather` returned for it; None except on the main process.

        Returns:
            None except on the main process.
        """
        ...

    def in_flight_state(self, index: int) -> dict[str, Tensor]: ...  # to resume, besides `state`
    def counters(self, index: int) -> dict[str, float]: ...  # bytes, seconds, … for the record
    def tally(self) -> Tally: ...  # collective: the counts of all processes


class Runtime(Protocol):
    """Creates worlds and coordinates the processes of a run."""

    @property
    def is_main(self) -> bool: ...  # whether this process writes and reports
    @property
    def processes(self) -> int: ...  # number of processes
    @property
    def restarted(self) -> bool: ...  # whether the job was started again after a failure
    def running(self) -> AbstractContextManager[None]: ...  # active while worlds are used
    def check_equal(self, settings: Mapping[str, str]) -> None:
        """Check that all processes have the same settings.

        Raises:
            InvalidInput: in every process, if they differ.
        """
        ...

    def broadcast_from_main(self, action: Callable[[], T]) -> T:
        """Run `action` on the main process; all get its (JSON) result, or raise its error."""
        ...

    def broadcast_bytes(self, data: Callable[[], bytes]) -> bytes:
        """The bytes of the main process; `data` is not called elsewhere."""
        ...

    def world(self, runs: Sequence[Run], dtype: torch.dtype) -> World: ...  # before round 0
    def restore(
        self,
        runs: Sequence[Run],
        dtype: torch.dtype,
        checkpoints: Mapping[int, RunCheckpoint] | None,
    ) -> Snapshot:
        """Continue some of `runs`, which are in the same round, from their checkpoints.

        Args:
            runs: all runs of the method.
            dtype: of the models.
            checkpoints: by the number of the run; None except on the main process.
        """
        ...


class SingleProcessRuntime:
    """Base of runtimes in one process: there is nothing to coordinate."""

    is_main = True
    processes = 1
    restarted = False

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check_equal(self, settings: Mapping[str, str]) -> None:
        """There is only one process."""

    def broadcast_from_main(self, action: Callable[[], T]) -> T:
        return action()

    def broadcast_bytes(self, data: Callable[[], bytes]) -> bytes:
        return data()


@dataclass(frozen=True)
class Snapshot:
    """A batch of runs after round k."""

    k: int
    delay: Floats  # (runs,) when x[k] is available
    world: World
    state: State

"""The `World` of virtual time: a round of the training loop is one tick of the simulated clock.

Every run has its own `EventExecutor`: the events of different runs are independent.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spodgt.errors import Incompatible
from spodgt.kernels.steps import State, rebuild
from spodgt.participation.roles import HasRoles
from spodgt.problems.running_statistics import refuse_statistics
from spodgt.runtimes.batch import RunBatch
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.events.executor import EventExecutor
from spodgt.runtimes.held_clients import ClientStatistics, HeldClients, run_states
from spodgt.runtimes.world import (
    CheckpointBatch,
    Run,
    RunCheckpoint,
    RunState,
    SingleProcess,
    SingleProcessRuntime,
    Snapshot,
    Tally,
)
from spodgt.types import Bools, Evaluation, Floats, Ints


class EventWorld:
    """Runs in virtual time, one after the other.

    Args:
        all_runs: all runs of the method, also those that are finished.
        time: the durations of gradients and messages.
        dtype: of the models.
        device: of the models.
        runs: numbers of the runs that are not finished; None: all.
        tally: counts to continue from; None: zeros.
        statistics: (clients, columns) private parameters to continue from; None: the initial ones.
        executors: of the runs, to continue with; None: new ones.
        compiled: use compiled loops for the activations of the method where they apply.
    """

    def __init__(
        self,
        all_runs: Sequence[Run],
        time: Time,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        runs: Ints | None = None,
        tally: Tally | None = None,
        statistics: Tensor | None = None,
        executors: Sequence[EventExecutor] | None = None,
        compiled: bool = True,
    ) -> None:
        self.time = time
        self.batch = RunBatch(all_runs, dtype, torch.device(device), runs)
        self.runs = self.batch.runs
        self.held = HeldClients(self.batch)
        self.sizes = self.held.sizes
        self.communicator = SingleProcess()
        self.counts = Tally.zeros(all_runs) if tally is None else tally
        self.statistics = ClientStatistics.initial(self.held, statistics).values
        self.compiled = compiled
        if executors is None:
            executors = [_create_executor(self, number) for number in self.runs.tolist()]
        self.executors = list(executors)
        parts = self.held.split(self.statistics)
        for executor, values in zip(self.executors, parts, strict=True):
            executor.context.statistics = values  # a view, written in place

    def init(self) -> State:
        states = [executor.init() for executor in self.executors]
        if len(states) > 1:
            return rebuild(states[0], [torch.cat(fields) for fields in zip(*states, strict=True)])
        # Activations write to the fields in place: they must not share memory.
        memory = {run.start.untyped_storage().data_ptr() for run in self.batch.live}
        fields = []
        for tensor in states[0]:
            is_shared = tensor.untyped_storage().data_ptr() in memory
            if is_shared or not tensor.is_contiguous():
                tensor = tensor.clone(memory_format=torch.contiguous_format)
            memory.add(tensor.untyped_storage().data_ptr())
            fields.append(tensor)
        return rebuild(states[0], fields)

    def costs(self, k: int) -> Floats:
        costs = [executor.costs(k) for executor in self.executors]
        ticks = min(map(len, costs))
        return np.array([row[:ticks] for row in costs]).T

    def advance(self, state: State, rounds: range) -> State:
        parts = zip(*map(self.held.split, state), strict=True)
        for executor, fields in zip(self.executors, parts, strict=True):
            executor.advance(rebuild(state, fields), rounds)
        return state

    def select_runs(self, selected: Bools, state: State) -> tuple[EventWorld, State]:
        world = EventWorld(
            self.batch.all_runs,
            self.time,
            dtype=self.batch.dtype,
            device=self.batch.device,
            runs=self.runs[selected],
            tally=self.counts,
            statistics=self.statistics[self.held.rows_of(selected)],
            executors=[self.executors[index] for index in np.flatnonzero(selected)],
            compiled=self.compiled,
        )
        return world, self.held.select(state, selected)

    def at_last_exchange(self, state: State) -> tuple[EventWorld, State]:
        """Clients are in different rounds: the models after the last exchange of each client."""
        if all(executor.last_exchange is None for executor in self.executors):
            return self, state
        x = state[0].clone()
        world = copy.copy(self)
        world.statistics = self.statistics.clone()
        models = self.held.split(x)
        values = self.held.split(world.statistics)
        for index, executor in enumerate(self.executors):
            if executor.last_exchange is not None:
                models[index].copy_(executor.last_exchange.x)
                values[index].copy_(executor.last_exchange.statistics)
        return world, rebuild(state, (x, *tuple(state)[1:]))

    def gather(self, state: State, wanted: Bools) -> list[RunState] | None:
        states = run_states(self.held, state, self.statistics, wanted)
        if not {"y", "g"} <= set(self.held.algorithm.traits.state):
            return states
        with_mass = []
        for index, run_state in zip(np.flatnonzero(wanted), states, strict=True):
            mass = self.executors[index].in_flight_mass()
            with_mass.append(run_state._replace(mass_in_flight=mass))
        return with_mass

    def evaluate(self, state: State, index: int, run_state: RunState | None) -> Evaluation | None:
        assert run_state is not None
        return self.batch.evaluate(index, run_state)

    def in_flight_state(self, index: int) -> dict[str, Tensor]:
        return self.executors[index].pack()

    def counters(self, index: int) -> dict[str, float]:
        executor = self.executors[index]
        seconds = executor.done * self.time.seconds
        return {"seconds": seconds, "bytes": float(executor.context.counts.bytes.sum())}

    def tally(self) -> Tally:
        return self.counts


def _create_executor(world: EventWorld, number: int) -> EventExecutor:
    batch = world.batch
    counts = world.counts.of_run(batch.all_runs, number)
    compiled = world.compiled and not world.statistics.shape[1]
    run = batch.all_runs[number]
    return EventExecutor(run, world.time, batch.dtype, batch.device, counts, compiled)


@dataclass(frozen=True)
class EventRuntime(SingleProcessRuntime):
    """The runtime of virtual time, in one process."""

    device: torch.device
    time: Time

    def world(self, runs: Sequence[Run], dtype: torch.dtype) -> EventWorld:
        return EventWorld(runs, self.time, dtype=dtype, device=self.device)

    def restore(
        self,
        runs: Sequence[Run],
        dtype: torch.dtype,
        checkpoints: Mapping[int, RunCheckpoint] | None,
    ) -> Snapshot:
        assert checkpoints is not None
        joined = CheckpointBatch.join(runs, checkpoints)
        world = EventWorld(
            runs,
            self.time,
            dtype=dtype,
            device=self.device,
            runs=np.array(list(checkpoints)),
            tally=joined.counts,
            statistics=joined.statistics.to(self.device),
        )
        for executor, point in zip(world.executors, checkpoints.values(), strict=True):
            executor.unpack(point.in_flight)
            if point.exchanged is not None:
                x = point.exchanged.x.to(self.device)
                executor.set_last_exchange(x, point.exchanged.statistics.to(self.device))
        like = self.world(runs[:1], dtype).init()
        names = world.held.algorithm.traits.state
        return Snapshot(joined.k, joined.delay, world, joined.to_state(like, names, self.device))


def check_run(run: Run) -> None:
    """Check that a run is possible in virtual time.

    Raises:
        Incompatible: its method, or its problem, is not.
    """
    name = run.algorithm.name
    traits = run.algorithm.traits
    refuse_statistics(run.problem, "virtual time")
    if traits.mixing == "server":
        raise Incompatible(
            f"{name} needs a server, which virtual time does not have; drop [time], or use dsgd."
        )
    is_supported = traits.activation in ("all", "edge-initiator")
    if not is_supported or isinstance(run.availability, HasRoles):
        raise Incompatible(
            f"{name} uses pairwise activation or time-varying weights, which virtual time does not "
            "support; drop [time], or use spod-gt-memory."
        )

"""The `World` of virtual time: a round of the loop is one tick of the clock, and every run has its engine."""

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
from spodgt.problems import refuse_statistics
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.events.executor import EventExecutor
from spodgt.runtimes.simulator import Simulation, Simulator
from spodgt.runtimes.world import CheckpointBatch, Exchanged, Run, RunCheckpoint, RunState, Tally
from spodgt.types import Bools, Floats, Ints


class VirtualWorld(Simulation):
    """Runs in virtual time, one after the other: their events have nothing to do with each other.

    Args:
        every: all runs of the batch.
        time: how long things take.
        dtype, device: of the models.
        runs: which of them are still going; all unless given.
        counts: a tally to go on with.
        statistics: (clients, columns) parameters that never leave their client, to go on with.
        engines: of the runs that are going, to go on with.
        compiled: use compiled loops for the turns of the method where they apply.
    """

    def __init__(
        self,
        every: Sequence[Run],
        time: Time,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        runs: Ints | None = None,
        counts: Tally | None = None,
        statistics: Tensor | None = None,
        engines: Sequence[EventExecutor] | None = None,
        compiled: bool = True,
    ) -> None:
        super().__init__(
            every,
            dtype=dtype,
            device=device,
            runs=runs,
            counts=counts,
            statistics=statistics,
            compiled=compiled,
        )
        self.time = time
        self.engines = list(engines) if engines is not None else self._engines()
        for engine, part in zip(self.engines, self.split(self.statistics), strict=True):
            engine.context.statistics = part  # written to in place

    def _engines(self) -> list[EventExecutor]:
        batch, counts = self.batch, self.counts
        clients = np.cumsum([0, *(run.network.clients for run in batch.every)])
        links = np.cumsum([0, *(run.network.links for run in batch.every)])
        parts = self.split(self.statistics)
        found = []
        for number, part in zip(self.runs.tolist(), parts, strict=True):
            own = slice(clients[number], clients[number + 1])
            out = slice(links[number], links[number + 1])
            tally = Tally(counts.gradients[own], counts.messages[out], counts.bytes[out])
            run = batch.every[number]
            found.append(
                EventExecutor(run, self.time, batch.dtype, batch.device, tally, part, self.compiled)
            )
        return found

    # --- World -----------------------------------------------------------------------------------
    def init(self) -> State:
        first, *others = states = [engine.init() for engine in self.engines]
        if others:
            return rebuild(first, [torch.cat(parts) for parts in zip(*states, strict=True)])
        owned = {run.start.untyped_storage().data_ptr() for run in self.batch.live}
        fields = []
        for tensor in first:  # they are written to, and may share their memory
            shared = tensor.untyped_storage().data_ptr() in owned or not tensor.is_contiguous()
            fields.append(tensor.clone(memory_format=torch.contiguous_format) if shared else tensor)
            owned.add(fields[-1].untyped_storage().data_ptr())
        return rebuild(first, fields)

    def costs(self, k: int) -> Floats:
        rows = [engine.costs(k) for engine in self.engines]
        return np.array([row[: min(map(len, rows))] for row in rows]).T

    def advance(self, state: State, rounds: range) -> State:
        parts = [rebuild(state, fields) for fields in zip(*map(self.split, state), strict=True)]
        for engine, part in zip(self.engines, parts, strict=True):
            engine.advance(part, rounds)
        return state

    def at_exchange(self, state: State) -> tuple[VirtualWorld, State]:
        """Clients are in rounds of their own: each with the model after its own last exchange."""
        kept = [engine.last_exchange for engine in self.engines]
        if all(models is None for models in kept):
            return self, state
        world = copy.copy(self)
        xs = self.split(state[0])
        parts = self.split(self.statistics)
        shown = [
            Exchanged(x, part) if models is None else Exchanged(models.x, models.statistics)
            for models, x, part in zip(kept, xs, parts, strict=True)
        ]
        world.statistics = torch.cat([models.statistics for models in shown])
        x = torch.cat([models.x for models in shown])
        return world, rebuild(state, (x, *tuple(state)[1:]))

    def restore_exchanged(self, k: int, x: Tensor, statistics: Tensor) -> None:
        for engine, models, beside in zip(
            self.engines, self.split(x), self.split(statistics), strict=True
        ):
            engine.set_last_exchange(models, beside)

    def keep(self, still: Bools, state: State) -> tuple[VirtualWorld, State]:
        rows = torch.from_numpy(np.flatnonzero(np.repeat(still, self.sizes))).to(self.batch.device)
        engines = [engine for engine, stays in zip(self.engines, still, strict=True) if stays]
        smaller = VirtualWorld(
            self.batch.every,
            self.time,
            dtype=self.batch.dtype,
            device=self.batch.device,
            runs=self.runs[still],
            counts=self.counts,
            statistics=torch.cat([engine.context.statistics for engine in engines])
            if engines
            else None,
            engines=engines,
            compiled=self.compiled,
        )
        return smaller, rebuild(state, [tensor[rows] for tensor in state])

    def gather(self, state: State, wanted: Bools) -> list[RunState] | None:
        found = super().gather(state, wanted) or []
        tracks = {"y", "g"} <= set(self.algorithm.traits.state)
        flights = [
            self.engines[at].in_flight_mass() if tracks else None
            for at in np.flatnonzero(wanted).tolist()
        ]
        return [one._replace(flight=flight) for one, flight in zip(found, flights, strict=True)]

    def under_way(self, at: int) -> dict[str, Tensor]:
        return self.engines[at].pack()

    def meters(self, at: int) -> dict[str, float]:
        engine = self.engines[at]
        sent = float(engine.context.counts.bytes.sum())
        return {"seconds": engine.done * self.time.seconds, "bytes": sent}


@dataclass(frozen=True)
class VirtualTime(Simulator):
    """The runtime of virtual time, in one process."""

    time: Time = Time()  # noqa: RUF009 (it is frozen)

    def world(self, runs: Sequence[Run], dtype: torch.dtype) -> VirtualWorld:
        return VirtualWorld(runs, self.time, dtype=dtype, device=self.device)

    def restored_world(
        self,
        runs: Sequence[Run],
        dtype: torch.dtype,
        checkpoints: Mapping[int, RunCheckpoint],
        batch: CheckpointBatch,
    ) -> VirtualWorld:
        world = VirtualWorld(
            runs,
            self.time,
            dtype=dtype,
            device=self.device,
            runs=np.array(list(checkpoints)),
            counts=batch.counts,
            statistics=batch.statistics.to(self.device),
        )
        for engine, point in zip(world.engines, checkpoints.values(), strict=True):
            engine.unpack(point.in_flight)
        return world


def check_run(run: Run) -> None:
    """Refuse what virtual time cannot run."""
    traits, name = run.algorithm.traits, run.algorithm.name
    refuse_statistics(run.problem, "virtual time")
    if traits.mixing == "server":
        raise Incompatible(
            f"{name} needs a server, which virtual time has not; drop [time], or use dsgd."
        )
    if traits.activation not in ("all", "edge-initiator") or isinstance(run.availability, HasRoles):
        raise Incompatible(
            f"{name} has pairs or weights that change between common rounds, which virtual time has not; "
            "drop [time], or use spod-gt-memory."
        )

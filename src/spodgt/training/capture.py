"""Captures the states and checkpoints of runs in a snapshot, from all processes, and saves them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from spodgt.runtimes.world import Exchanged, Run, RunCheckpoint, RunState, Snapshot, Tally
from spodgt.training.checkpoint import MethodLog, to_cpu
from spodgt.types import Bools


@dataclass(frozen=True)
class CheckpointCapture:
    """Makes checkpoints of the runs of one method.

    Args:
        runs: all runs of the method.
        with_messages: whether checkpoints hold messages in flight, from which runs can continue.
    """

    runs: Sequence[Run]
    with_messages: bool

    def capture_all(self, snapshot: Snapshot) -> dict[int, RunCheckpoint]:
        """The checkpoints of all runs of the batch; empty on processes that do not record."""
        everything = np.ones(len(snapshot.world.runs), bool)
        states = gather_states(snapshot, everything)
        exchange = at_exchange(snapshot)
        exchanged_states: dict[int, RunState] = {}
        if exchange is not snapshot:
            exchanged_states = gather_states(exchange, everything)
        counts = snapshot.world.tally()
        checkpoints: dict[int, RunCheckpoint] = {}
        for index, state in states.items():
            run = int(snapshot.world.runs[index])
            exchanged = exchanged_states.get(index)
            checkpoints[run] = self.capture_run(snapshot, index, state, exchanged, counts)
        return checkpoints

    def capture_run(
        self,
        snapshot: Snapshot,
        index: int,
        state: RunState,
        exchanged: RunState | None,
        counts: Tally,
    ) -> RunCheckpoint:
        """The checkpoint of one run; its tensors are those of `state`, not copies.

        Args:
            index: of the run in the batch.
            exchanged: the state with the models of the last exchange, if these may differ.
            counts: of all runs.
        """
        run = int(snapshot.world.runs[index])
        fields = self.runs[run].algorithm.traits.state
        models: Exchanged | None = None
        if exchanged is not None:
            models = Exchanged(exchanged.state[0], exchanged.statistics)
        in_flight: Mapping[str, Tensor] = {}
        if self.with_messages:
            in_flight = snapshot.world.in_flight_state(index)
        return RunCheckpoint(
            k=snapshot.k,
            delay=float(snapshot.delay[index]),
            state=dict(zip(fields, state.state, strict=True)),
            statistics=state.statistics,
            counts=counts.of_run(self.runs, run).copy(),
            in_flight=in_flight,
            exchanged=models,
        )


@dataclass(eq=False)
class CheckpointSaver:
    """Saves the runs of one method from time to time, and when they are interrupted.

    Args:
        capture: makes the checkpoints.
        log: of the method.
        write: writes a checkpoint file, given the checkpoints of the runs in progress; None: none
            are written.
        seconds: between two checkpoints.
        wait: waits until evaluations are complete.
        records: whether this process writes.
    """

    capture: CheckpointCapture
    log: MethodLog
    write: Callable[[Mapping[int, RunCheckpoint]], None] | None
    seconds: float
    wait: Callable[[], None]
    records: bool
    saved_at: float = field(default_factory=time.monotonic)

    def is_due(self) -> bool:
        """Whether this process writes checkpoints, and the last one is old."""
        if self.write is None or not self.records:
            return False
        return time.monotonic() - self.saved_at >= self.seconds

    def save(self, snapshot: Snapshot) -> None:
        """Write the checkpoints of all runs of the batch; collective."""
        self.wait()
        checkpoints = self.capture.capture_all(snapshot)
        if self.write is not None and self.records:
            self.write(checkpoints)
        self.saved_at = time.monotonic()

    def save_interrupted(self, snapshot: Snapshot) -> None:
        """Write and keep the checkpoints of all runs; collective."""
        if self.write is not None:
            self.wait()
            for run, checkpoint in self.capture.capture_all(snapshot).items():
                self.log.checkpoints[run] = to_cpu(checkpoint, copy=False)
            if self.records:
                self.write({})


def at_exchange(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the models of the last exchange; itself without local steps."""
    world, state = snapshot.world.at_last_exchange(snapshot.state)
    if world is snapshot.world:
        return snapshot
    return replace(snapshot, world=world, state=state)


def gather_states(snapshot: Snapshot, needs_state: Bools) -> dict[int, RunState]:
    """States by index in the batch; empty in processes that do not record."""
    if not needs_state.any():
        return {}
    gathered = snapshot.world.gather(snapshot.state, needs_state)
    if gathered is None:
        return {}
    return dict(zip(np.flatnonzero(needs_state).tolist(), gathered, strict=True))

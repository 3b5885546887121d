"""The distributed runtime: every process holds a block of the clients; rank 0 records.

Processes are synchronized where the simulator would evaluate, save or check for NaN. A checkpoint
holds the state of all clients, so another number of processes, or the simulator, can continue it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from spodgt.errors import Failed, InvalidInput, SpodgtError
from spodgt.kernels.steps import State, rebuild
from spodgt.problems.running_statistics import refuse_statistics
from spodgt.runtimes.distributed.client_blocks import assign_processes, client_costs
from spodgt.runtimes.distributed.process_group import Group, restarted
from spodgt.runtimes.distributed.world import DistributedWorld
from spodgt.runtimes.world import CheckpointBatch, Run, RunCheckpoint, Snapshot, Tally

T = TypeVar("T")


def check_runs(runs: Sequence[Run]) -> None:
    """Check that several processes can compute runs, before they connect and write anything.

    Raises:
        InvalidInput: the problem has running statistics, or fewer clients than processes.
    """
    refuse_statistics(runs[0].problem, "the distributed runtime")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if dist.is_initialized():
        size = dist.get_world_size()
    for run in runs:
        assign_processes(client_costs(run.problem, run.availability), size)


@dataclass(frozen=True, eq=False)
class DistributedRuntime:
    """The runtime of one process of several."""

    group: Group

    @property
    def is_main(self) -> bool:
        return self.group.rank == 0

    @property
    def processes(self) -> int:
        return self.group.size

    @property
    def restarted(self) -> bool:
        return restarted()

    def running(self) -> AbstractContextManager[None]:
        return self.group.answering()

    def check_equal(self, settings: Mapping[str, str]) -> None:
        """Processes with different settings or versions would wait for each other forever."""
        expected = self._broadcast_json(dict(settings))
        different = [name for name, value in settings.items() if expected.get(name) != value]
        counts = torch.zeros(self.group.size, dtype=torch.int64)
        counts[self.group.rank] = len(different)
        counts = self.group.sum(counts)
        if counts.any():
            names = ", ".join(different) or "settings or versions"
            raise InvalidInput(
                f"all processes must be alike, but rank {int(counts.argmax())} has other {names} "
                "than rank 0; use the same files and versions on all hosts."
            )

    def broadcast_from_main(self, action: Callable[[], T]) -> T:
        error: SpodgtError | None = None
        outcome: dict[str, Any] = {"value": None, "error": None, "is_invalid_input": False}
        if self.is_main:
            try:
                outcome["value"] = action()
            except SpodgtError as caught:
                error = caught
                outcome["error"] = str(caught)
                outcome["is_invalid_input"] = isinstance(caught, InvalidInput)
        received = self._broadcast_json(outcome)
        if error is not None:
            raise error
        if received["error"] is not None:
            kind = InvalidInput if received["is_invalid_input"] else Failed
            raise kind(received["error"])
        value: T = outcome["value"] if self.is_main else received["value"]
        return value

    def broadcast_bytes(self, data: Callable[[], bytes]) -> bytes:
        return self.group.broadcast_bytes(data() if self.is_main else b"")

    def world(self, runs: Sequence[Run], dtype: torch.dtype) -> DistributedWorld:
        return DistributedWorld(runs, self.group, dtype=dtype)

    def restore(
        self,
        runs: Sequence[Run],
        dtype: torch.dtype,
        checkpoints: Mapping[int, RunCheckpoint] | None,
    ) -> Snapshot:
        joined: CheckpointBatch | None = None
        header: dict[str, Any] = {}
        if checkpoints is not None:
            joined = CheckpointBatch.join(runs, checkpoints)
            header = {
                "k": joined.k,
                "delay": joined.delay.tolist(),
                "runs": list(checkpoints),
                "has_exchanged": joined.exchanged is not None,
            }
        header = self._broadcast_json(header)
        like = self.world(runs, dtype).init()  # a state of the right type and columns
        world = DistributedWorld(
            runs,
            self.group,
            dtype=dtype,
            runs=np.asarray(header["runs"], np.int64),
            tally=Tally.zeros(runs) if joined is None else joined.counts,
        )
        state = self._scatter_state(world, joined, like)
        if header["has_exchanged"]:
            exchanged = None if joined is None else joined.exchanged
            x = self._scatter(world, None if exchanged is None else exchanged.x, like[0])
            values = None if exchanged is None else exchanged.statistics
            statistics = self._scatter(world, values, world.statistics.values)
            world.exchanges.restore(header["k"], x, statistics)
        return Snapshot(header["k"], np.asarray(header["delay"]), world, state)

    def _scatter_state(
        self, world: DistributedWorld, joined: CheckpointBatch | None, like: State
    ) -> State:
        """The state and the statistics of this process, from those of all clients."""
        fields = []
        for name, tensor in zip(world.held.algorithm.traits.state, like, strict=True):
            values = None if joined is None else joined.state[name]
            fields.append(self._scatter(world, values, tensor))
        statistics = None if joined is None else joined.statistics
        world.statistics.values = self._scatter(world, statistics, world.statistics.values)
        return rebuild(like, fields)

    def _scatter(self, world: DistributedWorld, values: Tensor | None, like: Tensor) -> Tensor:
        """The rows of this process.

        Args:
            world: the world.
            values: (clients of the batch, columns) on the main process; None elsewhere.
            like: a tensor with the columns and the type of `values`.
        """
        rows = like.new_empty(len(world.held.clients), *like.shape[1:], device="cpu")
        if not rows.numel():
            return rows.to(self.group.device)
        parts = None
        if values is not None:
            owner = world.block.owner
            values = values.cpu()
            parts = [values[np.flatnonzero(owner == rank)] for rank in range(self.group.size)]
        return self.group.scatter(parts, rows).to(self.group.device)

    def _broadcast_json(self, value: dict[str, Any]) -> dict[str, Any]:
        """The value of the main process."""
        received: dict[str, Any] = json.loads(
            self.group.broadcast_bytes(json.dumps(value).encode() if self.is_main else b"")
        )
        return received

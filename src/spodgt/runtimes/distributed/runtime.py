"""The distributed runtime: processes that hold a block of the clients each; rank 0 records.

Processes meet only where the simulator would evaluate, save or check for NaN. A checkpoint holds the whole
state in the order of clients, so a run may be taken up by another number of processes, or by the simulator.
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
from spodgt.kernels.steps import rebuild
from spodgt.problems import refuse_statistics
from spodgt.runtimes.distributed.client_blocks import blocks, effort
from spodgt.runtimes.distributed.process_group import Group, restarted
from spodgt.runtimes.distributed.world import Distributed
from spodgt.runtimes.world import CheckpointBatch, Run, RunCheckpoint, Snapshot, Tally

T = TypeVar("T")
_CPU = torch.device("cpu")


def check_runs(runs: Sequence[Run]) -> None:
    """Refuse what several processes cannot run, before they meet and anything is written."""
    refuse_statistics(runs[0].problem, "the distributed runtime")
    size = (
        dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    )
    for run in runs:
        blocks(effort(run.problem, run.availability), size)


@dataclass(frozen=True, eq=False)
class Processes:
    """The runtime of one process among several."""

    group: Group

    @property
    def records(self) -> bool:
        return self.group.rank == 0

    @property
    def processes(self) -> int:
        return self.group.size

    @property
    def restarted(self) -> bool:
        return restarted()

    def working(self) -> AbstractContextManager[None]:
        return self.group.answering()

    def check_alike(self, facts: Mapping[str, str]) -> None:
        """Processes with other settings or versions would wait for each other in vain."""
        theirs = json.loads(self.share(lambda: json.dumps(dict(facts)).encode()))
        differ = [name for name, value in facts.items() if theirs.get(name) != value]
        odd = torch.zeros(self.group.size, dtype=torch.int64)
        odd[self.group.rank] = len(differ)
        odd = self.group.sum(odd)
        if odd.any():
            what = ", ".join(differ) or "settings or versions"
            raise InvalidInput(
                f"all processes must be alike, but rank {int(odd.argmax())} has other {what} than rank 0; "
                "use the same files and versions on all hosts."
            )

    def first(self, action: Callable[[], T]) -> T:
        """Do it where it is recorded; all get what it gives, or raise what it raises."""
        error: SpodgtError | None = None
        value: T | None = None
        if self.records:
            try:
                value = action()
            except SpodgtError as problem:
                error = problem
        word = {
            "value": value,
            "error": error and str(error),
            "invalid": isinstance(error, InvalidInput),
        }
        word = json.loads(self.share(lambda: json.dumps(word).encode()))
        if word["error"]:
            raise error or (InvalidInput if word["invalid"] else Failed)(word["error"])
        given: T = value if self.records else word["value"]  # type: ignore[assignment]
        return given

    def share(self, data: Callable[[], bytes]) -> bytes:
        return bytes(self.group.share_bytes(data() if self.records else b"").numpy().tobytes())

    def world(self, runs: Sequence[Run], dtype: torch.dtype) -> Distributed:
        return Distributed(runs, self.group, dtype=dtype)

    def restore(
        self,
        runs: Sequence[Run],
        dtype: torch.dtype,
        checkpoints: Mapping[int, RunCheckpoint] | None,
    ) -> Snapshot:
        batch: CheckpointBatch | None = None
        head: dict[str, Any] = {}
        counts = Tally.zeros(runs)
        if checkpoints is not None:
            batch = CheckpointBatch.join(runs, checkpoints)
            counts = batch.counts
            points = list(checkpoints.values())
            head = {
                "k": points[0].k,
                "delay": [point.delay for point in points],
                "runs": list(checkpoints),
                "exchanged": batch.exchanged is not None,
            }
        head = json.loads(self.share(lambda: json.dumps(head).encode()))
        fresh = self.world(runs, dtype)
        like = fresh.init()  # round 0 tells what a state looks like
        fresh.close()
        live = np.asarray(head["runs"], np.int64)
        world = Distributed(
            runs, self.group, dtype=dtype, runs=live, counts=counts, mail=fresh.mail
        )

        def dealt(whole: Tensor | None, like: Tensor) -> Tensor:
            """The rows of this process, of what the recording one has."""
            owner, parts = world.block.owner, None
            if whole is not None:
                parts = [
                    whole.cpu()[np.flatnonzero(owner == rank)] for rank in range(self.group.size)
                ]
            rows = like.new_empty(len(world.own), *like.shape[1:], device=_CPU)
            return self.group.scatter(parts, rows).to(self.group.device)

        names = world.algorithm.traits.state
        fields = [
            dealt(batch and batch.state[name], tensor)
            for name, tensor in zip(names, like, strict=True)
        ]
        if world.statistics.shape[1]:
            world.statistics = dealt(batch and batch.statistics, world.statistics)
        if head["exchanged"]:
            exchanged = batch and batch.exchanged
            x = dealt(exchanged and exchanged.x, like[0])
            statistics = world.statistics
            if statistics.shape[1]:
                statistics = dealt(exchanged and exchanged.statistics, statistics)
            world.restore_exchanged(head["k"], x, statistics)
        return Snapshot(head["k"], np.asarray(head["delay"]), world, rebuild(like, fields))

"""Processes of DistributedDataParallel inside one site: rank 0 is the peer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Shared = TypeVar("Shared")


@dataclass(frozen=True)
class Replicas:
    """The processes that train one model together.

    Args:
        rank: Of this process.
        count: Number of processes; 1 without DistributedDataParallel.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def of_this_process(cls) -> Replicas:
        """Those of the default process group, or one process alone."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_peer(self) -> bool:
        """Whether this process exchanges messages with other sites."""
        return self.rank == 0

    def share(self, value: Shared) -> Shared:
        """The value of rank 0; every process must call it."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0)
        return box[0]

    @torch.no_grad()
    def copy_from_peer(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0; every process must call it."""
        if self.count == 1:
            return
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)

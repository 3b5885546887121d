"""What the activations of one run read and write."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.runtimes.batch import MixingMatrix
from spodgt.runtimes.events.local_rounds import Coordination
from spodgt.runtimes.events.message_pool import MessagePool
from spodgt.runtimes.world import Run, Tally
from spodgt.types import Floats, Problem, Words


@dataclass(eq=False)
class RunContext:
    """One run, as its activations see it."""

    run: Run
    algorithm: Algorithm
    problem: Problem
    coordination: Coordination
    dtype: torch.dtype
    device: torch.device
    weights: dict[MixingMatrix, Floats]  # (links,)
    keys: Words  # (clients,) of the random stream "batch"
    counts: Tally  # of this run
    statistics: Tensor  # (clients, columns) private parameters, written in place
    pool: MessagePool

    @property
    def clients(self) -> int:
        return self.run.network.clients

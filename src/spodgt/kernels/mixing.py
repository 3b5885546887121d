"""Mixing over the links that work in a round: compiled on the CPU; on other devices dense where the
network is small and sparse where it is large.

    pull, gossip   x⁺_i = x_i + Σ_j a_ij v̂_ij (x_j - x_i)
    push           y⁺_i = y_i + Σ_j (b_ij v̂_ij y_j - b_ji v̂_ji y_i)

What a missing link would have carried stays on the diagonal.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.compiled import Memory, usable
from spodgt.kernels.loops import mix
from spodgt.types import Bools, Floats, Ints

_DENSE = 64  # clients of a run up to which a dense matrix is faster


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a batch of runs as one disjoint union."""

    runs: int  # equal blocks of clients; one where runs differ in size
    clients: int  # of all runs together
    receivers: Ints
    senders: Ints
    memory: Memory = field(default_factory=Memory)

    @cached_property
    def pointers(self) -> Ints:
        """Where each receiver's links begin: links are sorted by receiver."""
        counts = np.bincount(self.receivers, minlength=self.clients)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @property
    def dense(self) -> bool:
        """Runs of equal size lie in equal blocks, so one batched product mixes them all."""
        return self.clients % self.runs == 0 and self.clients // self.runs <= _DENSE

    def mix(self, x: Tensor, weights: Floats, active: Bools, *, keeper: Ints) -> Tensor:
        """Send along the `active` links; `keeper` is the end of each link that keeps what is not sent."""
        moved = np.where(active, weights, 0.0)
        kept = np.subtract(1.0, np.bincount(keeper, moved, minlength=self.clients), dtype=np.float64)
        if usable(x):
            return mix(x, self.memory.like(x), self.pointers, self.senders, weights, active, kept)
        return self.plain(x, moved, active, kept)

    def plain(self, x: Tensor, moved: Floats, active: Bools, kept: Floats) -> Tensor:
        """The same with torch's own products, on any device."""
        if self.dense:
            m = self.clients // self.runs
            matrix = np.zeros((self.clients, m))
            matrix[self.receivers, self.senders % m] = moved
            matrix[np.arange(self.clients), np.arange(self.clients) % m] = kept
            blocks = torch.from_numpy(matrix).to(x).view(self.runs, m, m)
            return torch.bmm(blocks, x.view(self.runs, m, -1)).view_as(x)
        on = np.flatnonzero(active)
        # Links are sorted by receiver; putting the diagonal first in each row keeps that order.
        rows = np.concatenate([np.arange(self.clients), self.receivers[on]])
        order = np.argsort(rows, kind="stable")
        columns = np.concatenate([np.arange(self.clients), self.senders[on]])[order]
        values = np.concatenate([kept, moved[on]])[order]
        pointers = np.r_[0, np.cumsum(np.bincount(rows, minlength=self.clients))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR support a beta
            sparse = torch.sparse_csr_tensor(
                torch.from_numpy(pointers).to(x.device),
                torch.from_numpy(columns).to(x.device),
                torch.from_numpy(values).to(x),
                (self.clients, self.clients),
            )
            mixed: Tensor = sparse @ x
            return mixed

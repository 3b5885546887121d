"""A batch of activations as a `Round`, in which a method computes its own `step`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.compose.codecs import IntervalQuantizer
from spodgt.algorithms.deprecated import OldRoundNames
from spodgt.errors import Incompatible
from spodgt.participation.local_blocks import block_ends
from spodgt.runtimes.batch import MixingMatrix
from spodgt.runtimes.events.activations import ActivationBatch
from spodgt.runtimes.events.batch_arrays import minibatch_keys
from spodgt.runtimes.events.batch_messages import AnyCodec, BatchMessages, RunContext
from spodgt.types import Minibatches


@dataclass(frozen=True)
class ColumnSubset:
    """Sparsification to consecutive columns; the intervals of all other columns are infinite."""

    columns: slice

    def size(self, columns: int, item: int) -> int:
        return item * len(range(*self.columns.indices(columns)))

    def pack(self, rows: Tensor) -> Tensor:
        return rows

    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        half = torch.full_like(data, torch.inf)
        half[:, self.columns] = 0.0
        return data, half


class ActivationRound(OldRoundNames):
    """The activations of a batch: rows in the order of the batch, then partners, if any."""

    def __init__(self, context: RunContext, batch: ActivationBatch) -> None:
        self.context = context
        self.batch = batch
        self.messages = BatchMessages(context, batch)
        self.clients = context.clients
        self.rows = np.array([*batch.clients, *batch.partners], np.int64)
        active = np.array([*batch.computes, *([False] * len(batch.partners))], bool)
        computing = np.flatnonzero(active)
        self.computing = computing[np.argsort(self.rows[computing])]  # rows, in client order
        self.computes = torch.from_numpy(active).to(context.device)[:, None]
        self.client_index = torch.from_numpy(self.rows).to(context.device)
        self.k = self._round_numbers()

    def _round_numbers(self) -> int | Tensor:
        """The round of all rows, or (rows, 1); partners do not start a round."""
        if len(set(self.batch.rounds)) == 1:
            return self.batch.rounds[0]
        rounds = [*self.batch.rounds, *([0] * len(self.batch.partners))]
        return torch.tensor(rounds, device=self.context.device)[:, None]

    @property
    def block_ends(self) -> Tensor:
        availability = self.context.run.availability
        rounds = [*self.batch.rounds, *([0] * len(self.batch.partners))]
        ends = [
            block_ends(availability, range(k, k + 1))[0, client]
            for k, client in zip(rounds, self.rows.tolist(), strict=True)
        ]
        return torch.tensor(ends, device=self.context.device)[:, None]

    @property
    def p(self) -> Tensor:
        p = torch.from_numpy(self.context.run.availability.p[self.rows])
        return p.to(self.context.device, self.context.dtype)[:, None]

    def grad(self, x: Tensor) -> Tensor:
        context = self.context
        g = torch.zeros_like(x)
        clients = self.rows[self.computing]
        context.counts.gradients[clients] += 1
        if not len(clients):
            return g
        keys = minibatch_keys(context.keys, clients, np.array(self.batch.rounds)[self.computing])
        minibatches = Minibatches(clients, keys, clients, 0)
        rows = torch.from_numpy(self.computing).to(x.device)
        index = torch.from_numpy(clients).to(x.device)
        models = torch.cat([x[rows], context.statistics[index]], 1)
        g[rows] = context.gradient(models, minibatches)
        context.statistics[index] = models[:, x.shape[1] :]
        return g

    def pull(self, x: Tensor, codec: Callable[[int], IntervalQuantizer] | None = None) -> Tensor:
        if codec is not None:
            return self.messages.pull_intervals(x, codec)
        return self.messages.mix(x, MixingMatrix.PULL)

    def push(self, y: Tensor, codec: AnyCodec | None = None) -> Tensor:
        return self.messages.mix(y, MixingMatrix.PUSH, codec)

    def mix_columns(self, x: Tensor, how: str, columns: Callable[[int], slice]) -> Tensor:
        if how == "pull":
            return self.messages.pull_intervals(x, lambda k: ColumnSubset(columns(k)))
        sent = torch.zeros_like(x)
        for row, k in enumerate(self.batch.rounds):
            sent[row, columns(k)] = x[row, columns(k)]
        return x + (self.push(sent, ColumnSubset(columns(0))) - sent)

    @property
    def push_self_weight(self) -> Tensor:
        weights = torch.from_numpy(self.messages.self_weights(MixingMatrix.PUSH))
        return weights.to(self.context.device, self.context.dtype)[:, None]

    def gossip(self, x: Tensor) -> Tensor:
        if not self.batch.partners:
            return self.messages.mix(x, MixingMatrix.GOSSIP)
        self.messages.count_bytes(x.shape[1] * x.element_size())
        first, second = x.chunk(2)
        return ((first + second) / 2).repeat(2, 1)

    def gossip_difference(self, x: Tensor) -> Tensor:
        if self.batch.partners:
            return self.gossip(x) - x
        return self.messages.mix_differences(x, MixingMatrix.GOSSIP)

    def average(self, x: Tensor) -> Tensor:
        if not self.context.coordination.synchronous:
            raise Incompatible(
                "round.average is undefined for asynchronous clients; use spod-gt-memory."
            )
        return x.mean(0, keepdim=True).expand_as(x)

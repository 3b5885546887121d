"""The messages of a batch of activations: mixing of the rows sent in it and of those in flight.

Each mixing call sends its input rows and returns the own share plus the contributions received.
Rows that are received in a later batch are copied into a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.compose.codecs import Codec, IntervalQuantizer
from spodgt.kernels.links import add_rows, move_into_intervals
from spodgt.problems.protocols import GradientFunction
from spodgt.runtimes.batch import MixingMatrix
from spodgt.runtimes.events.activations import ActivationBatch, Receipt
from spodgt.runtimes.events.local_rounds import Coordination
from spodgt.runtimes.events.message_pool import MessagePool
from spodgt.runtimes.world import Run, Tally
from spodgt.types import Bools, Floats, Ints, Problem, Words

AnyCodec = Codec | IntervalQuantizer


@dataclass(eq=False)
class RunContext:
    """One run, as its activations see it."""

    run: Run
    algorithm: Algorithm
    problem: Problem
    gradient: GradientFunction  # of the problem
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


class Reads(NamedTuple):
    """The messages that rows of a batch use in a mixing call, in the order of their links."""

    rows: Ints  # of the receivers
    links: Ints
    in_batch: Bools  # sent in this batch: `sources` are rows, else slots of the pool
    sources: Ints
    rounds: Ints  # of the senders

    @staticmethod
    def of(receipts: Sequence[Receipt], batch: int) -> Reads:
        """The reads of batch number `batch`."""
        copies = [receipt.message.copy for receipt in receipts]
        in_batch = np.array([copy.batch == batch for copy in copies], bool)
        rows = np.array([copy.row for copy in copies], np.int64)
        slots = np.array([copy.model.slot for copy in copies], np.int64)
        return Reads(
            rows=np.array([receipt.row for receipt in receipts], np.int64),
            links=np.array([receipt.message.link for receipt in receipts], np.int64),
            in_batch=in_batch,
            sources=np.where(in_batch, rows, slots),
            rounds=np.array([receipt.message.round_number for receipt in receipts], np.int64),
        )


class BatchMessages:
    """The messages that a batch sends and receives; making it updates the pool's references."""

    def __init__(self, context: RunContext, batch: ActivationBatch) -> None:
        self.context = context
        self.rows = len(batch.clients) + len(batch.partners)
        self.calls = 0  # mixing calls so far
        # Slots are noted before `update_refcounts` frees those that are read here.
        newest = [receipt for receipt in batch.received if receipt.is_newest]
        models = batch.remembered if context.coordination.uses_stale_models else newest
        self.model_reads = Reads.of(models, batch.number)
        self.tracker_reads = Reads.of(batch.received, batch.number)
        context.pool.update_refcounts(batch)
        self.links = np.array([message.link for message in batch.messages], np.int64)
        self.senders = np.array([message.copy.row for message in batch.messages], np.int64)
        stored = [copy for copy in batch.copies if copy.model.slot >= 0]
        self.stored_rows = torch.tensor([copy.row for copy in stored], dtype=torch.int64)
        self.stored_slots = torch.tensor([copy.model.slot for copy in stored], dtype=torch.int64)
        context.counts.messages[self.links] += 1  # a link occurs once in a batch

    def mix(self, x: Tensor, matrix: MixingMatrix, codec: AnyCodec | None = None) -> Tensor:
        """The rows of x, weighted by the diagonal of the matrix, plus the messages received."""
        if matrix is MixingMatrix.PUSH and self.calls not in self.context.pool.push_calls:
            self.context.pool.push_calls.append(self.calls)
        out = x * torch.from_numpy(self.self_weights(matrix)).to(x)[:, None]
        self._add_received(out, x, matrix, codec)
        return out

    def mix_differences(self, x: Tensor, matrix: MixingMatrix) -> Tensor:
        """Weighted differences between the messages received and the rows of x."""
        out = torch.zeros_like(x)
        self._add_received(out, x, matrix, subtract=x)
        return out

    def pull_intervals(self, x: Tensor, codec: Callable[[int], IntervalQuantizer]) -> Tensor:
        """x moved towards the intervals of messages; codecs depend on the round of the sender."""
        reads = self.model_reads
        buffer = self._buffer(x)
        in_batch = torch.from_numpy(reads.in_batch).to(x.device)
        sources = torch.from_numpy(reads.sources).to(x.device)
        received = x.new_empty(len(sources), x.shape[1])
        received[in_batch] = x[sources[in_batch]]
        received[~in_batch] = buffer[sources[~in_batch]]
        centre = torch.empty_like(received)
        half = torch.empty_like(received)
        for k in np.unique(reads.rounds).tolist():
            mask = torch.from_numpy(reads.rounds == k).to(x.device)
            data = codec(k).pack(received[mask])
            centre[mask], half[mask] = codec(k).unpack(data, x.shape[1], x.dtype)
        self._send(x, buffer, codec(0))
        weights = self.context.weights[MixingMatrix.PULL][reads.links]
        messages = np.arange(len(sources))
        return move_into_intervals(x.contiguous(), centre, half, reads.rows, messages, weights)

    def self_weights(self, matrix: MixingMatrix) -> Floats:
        """(rows,) the diagonal of a mixing matrix: one minus the weights of messages."""
        rows = self.model_reads.rows
        links = self.model_reads.links
        if matrix is MixingMatrix.PUSH:
            rows = self.senders
            links = self.links
        weights = self.context.weights[matrix][links]
        return np.asarray(1.0 - np.bincount(rows, weights, minlength=self.rows), np.float64)

    def count_bytes(self, size: int) -> None:
        """Count `size` bytes on every link that is used."""
        self.context.counts.bytes[self.links] += size

    def _add_received(
        self,
        out: Tensor,
        x: Tensor,
        matrix: MixingMatrix,
        codec: AnyCodec | None = None,
        subtract: Tensor | None = None,
    ) -> None:
        """Add the messages received to `out`, minus the receiver's row of `subtract`; send x."""
        reads = self.tracker_reads if matrix is MixingMatrix.PUSH else self.model_reads
        weights = self.context.weights[matrix][reads.links]
        buffer = self._buffer(x)
        for mask, source in ((reads.in_batch, x.contiguous()), (~reads.in_batch, buffer)):
            rows = reads.rows[mask]
            add_rows(out, source, rows, reads.sources[mask], weights[mask], subtract)
        self._send(x, buffer, codec)

    def _buffer(self, x: Tensor) -> Tensor:
        """The rows in flight of this mixing call."""
        pool = self.context.pool
        return pool.buffer(self.calls, x, pool.model_slots.capacity)

    def _send(self, x: Tensor, buffer: Tensor, codec: AnyCodec | None) -> None:
        """Copy the rows of x that later batches receive, and count the bytes sent."""
        buffer[self.stored_slots.to(x.device)] = x[self.stored_rows.to(x.device)]
        size = x.shape[1] * x.element_size()
        if codec is not None:
            size = codec.size(x.shape[1], x.element_size())
        self.count_bytes(size)
        self.calls += 1

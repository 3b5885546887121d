"""Batches of activations as flat arrays for the compiled loops of `kernels.event_batches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spodgt.runtimes.events.activations import ActivationBatch
from spodgt.types import Bools, Floats, Ints, Words

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of `rng.words`


class Offsets(NamedTuple):
    """CSR-style row pointers: batch n owns entries offsets.X[n] to offsets.X[n + 1] of table X."""

    clients: Ints
    model_reads: Ints
    tracker_reads: Ints
    model_copies: Ints
    tracker_copies: Ints
    deliveries: Ints
    gradients: Ints


class MessageReads(NamedTuple):
    """Messages that are received: new[row] += weight * (row or slot `source`)."""

    row: Ints  # of the receiver in its batch
    in_batch: Bools  # sent in the same batch: `source` is a row, else a slot of the pool
    source: Ints
    weight: Floats


class Copies(NamedTuple):
    """Rows that are copied into a pool: pool[slot] = rows[row]."""

    row: Ints
    slot: Ints


class Deliveries(NamedTuple):
    """Trackers that are added to the inbox of their receiver: inbox[receiver] += weight * row."""

    receiver: Ints  # client
    row: Ints  # of the sender in its batch
    weight: Floats


class Gradients(NamedTuple):
    """Gradients to compute."""

    client: Ints
    key: Words  # of the mini-batch


class BatchArrays(NamedTuple):
    """Consecutive batches; a row is the position of a client in its batch."""

    offsets: Offsets
    clients: Ints  # (rows,)
    model_self_weight: Floats  # (rows,) diagonal of the pull matrix
    tracker_self_weight: Floats  # (rows,) diagonal of the push matrix
    model_reads: MessageReads
    tracker_reads: MessageReads
    model_copies: Copies
    tracker_copies: Copies
    deliveries: Deliveries
    gradients: Gradients
    links: Ints  # (messages,) the link of every message sent


def to_arrays(
    batches: Sequence[ActivationBatch],
    update_refcounts: Callable[[ActivationBatch], None],
    receivers: Sequence[int],
    pull_weights: Floats,
    push_weights: Floats,
    keys: Words,
) -> BatchArrays:
    """Concatenate batches, in the order of time, into flat arrays.

    Args:
        batches: the batches.
        update_refcounts: frees the pool slots that a batch reads, assigns those it writes.
        receivers: (links,) clients.
        pull_weights: (links,) entries of A.
        push_weights: (links,) entries of B.
        keys: (clients,) keys of the random stream "batch".
    """
    builder = _Builder(receivers)
    for batch in batches:
        builder.add_clients(batch)
        builder.add_reads(batch)
        update_refcounts(batch)  # frees slots noted above, assigns slots noted below
        builder.add_copies(batch)
        builder.add_messages(batch)
        builder.end_batch()
    return builder.build(pull_weights, push_weights, keys)


def minibatch_keys(keys: Words, clients: Ints, rounds: Ints) -> Words:
    """(n,) keys of the mini-batches of clients in different rounds.

    A draw in round k begins with key + golden * (k + 1); these keys give the same draws in round 0.
    """
    with np.errstate(over="ignore"):
        return keys[clients] + GOLDEN * rounds.astype(np.uint64)


class _Table:
    """Columns of integers; `row_counts` are the numbers of rows after every batch."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.rows: list[tuple[int, ...]] = []
        self.row_counts = [0]

    def columns(self) -> dict[str, Ints]:
        """Contiguous columns by name; loops would be compiled again for other memory layouts."""
        table = np.array(self.rows, np.int64).reshape(-1, len(self.names))
        return dict(zip(self.names, np.ascontiguousarray(table.T), strict=True))


class _Builder:
    """Collects the tables of `BatchArrays`, one batch after the other."""

    def __init__(self, receivers: Sequence[int]) -> None:
        self.receivers = receivers
        self.clients = _Table("client")
        self.gradients = _Table("client", "round")
        self.model_reads = _Table("row", "link", "in_batch", "source", "receiver")
        self.tracker_reads = _Table("row", "link", "in_batch", "source")
        self.model_copies = _Table("row", "slot")
        self.tracker_copies = _Table("row", "slot")
        self.deliveries = _Table("receiver", "row", "link")
        self.messages = _Table("sender", "link")
        self.with_offsets: dict[str, _Table] = {
            name: getattr(self, name) for name in Offsets._fields
        }
        self.first_row = 0  # of the current batch in `clients`

    def add_clients(self, batch: ActivationBatch) -> None:
        self.first_row = len(self.clients.rows)
        for client, k, computes in zip(batch.clients, batch.rounds, batch.computes, strict=True):
            self.clients.rows.append((client,))
            if computes:
                self.gradients.rows.append((client, k))

    def add_reads(self, batch: ActivationBatch) -> None:
        """The messages that a batch receives; trackers in an inbox need no read."""
        for receipt in batch.received:
            row = receipt.row
            message = receipt.message
            copy = message.copy
            in_batch = copy.batch == batch.number
            if receipt.is_newest:
                source = copy.row if in_batch else copy.model.slot
                receiver = self.first_row + row
                self.model_reads.rows.append((row, message.link, in_batch, source, receiver))
            if not message.uses_inbox:
                source = copy.row if in_batch else copy.tracker.slot
                self.tracker_reads.rows.append((row, message.link, in_batch, source))

    def add_copies(self, batch: ActivationBatch) -> None:
        for copy in batch.copies:
            if copy.model.slot >= 0:
                self.model_copies.rows.append((copy.row, copy.model.slot))
            if copy.tracker.slot >= 0:
                self.tracker_copies.rows.append((copy.row, copy.tracker.slot))

    def add_messages(self, batch: ActivationBatch) -> None:
        for message in batch.messages:
            row = message.copy.row
            self.messages.rows.append((self.first_row + row, message.link))
            if message.uses_inbox:
                receiver = self.receivers[message.link]
                self.deliveries.rows.append((receiver, row, message.link))

    def end_batch(self) -> None:
        for table in self.with_offsets.values():
            table.row_counts.append(len(table.rows))

    def build(self, pull_weights: Floats, push_weights: Floats, keys: Words) -> BatchArrays:
        offsets = {}
        for name, table in self.with_offsets.items():
            offsets[name] = np.array(table.row_counts, np.int64)
        clients = self.clients.columns()["client"]
        model_reads = self.model_reads.columns()
        messages = self.messages.columns()
        weights_received = pull_weights[model_reads["link"]]
        weights_sent = push_weights[messages["link"]]
        received = np.bincount(model_reads["receiver"], weights_received, len(clients))
        sent = np.bincount(messages["sender"], weights_sent, len(clients))
        return BatchArrays(
            offsets=Offsets(**offsets),
            clients=clients,
            model_self_weight=np.asarray(1.0 - received, np.float64),
            tracker_self_weight=np.asarray(1.0 - sent, np.float64),
            model_reads=_reads(model_reads, pull_weights),
            tracker_reads=_reads(self.tracker_reads.columns(), push_weights),
            model_copies=Copies(**self.model_copies.columns()),
            tracker_copies=Copies(**self.tracker_copies.columns()),
            deliveries=_deliveries(self.deliveries.columns(), push_weights),
            gradients=_gradients(self.gradients.columns(), keys),
            links=messages["link"],
        )


def _reads(columns: dict[str, Ints], weights: Floats) -> MessageReads:
    weight = weights[columns["link"]]
    return MessageReads(columns["row"], columns["in_batch"] != 0, columns["source"], weight)


def _deliveries(columns: dict[str, Ints], weights: Floats) -> Deliveries:
    return Deliveries(columns["receiver"], columns["row"], weights[columns["link"]])


def _gradients(columns: dict[str, Ints], keys: Words) -> Gradients:
    client = columns["client"]
    return Gradients(client, minibatch_keys(keys, client, columns["round"]))

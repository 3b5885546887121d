"""The block of clients of each process: its rows, its messages in a round, and its mixing.

All processes compute this from the networks and the active links, so they need not communicate what
they will send.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.kernels.links import (
    BatchLinks,
    MixingOperator,
    add_rows,
    matrix_diagonal,
    round_weights,
)
from spodgt.problems.protocols import HasBatches
from spodgt.types import Availability, Bools, Floats, Ints, Problem

_SAMPLED_ROUNDS = 256  # rounds in which the gradients of each client are counted
_CLIENTS_PER_GRADIENT = 20  # clients that can be stored and mixed in the time of one gradient


def client_costs(problem: Problem, availability: Availability) -> Ints:
    """(clients,) computing time of each client per round, in integers that all hosts agree on."""
    length = availability.length
    rounds = range(_SAMPLED_ROUNDS if length is None else min(length + 1, _SAMPLED_ROUNDS))
    gradients = availability.computes(rounds).sum(0)
    clients = np.arange(len(gradients))
    samples = np.ones_like(clients)
    if isinstance(problem, HasBatches):
        samples = problem.batches(clients)
    fixed = len(rounds) * samples.max()
    return np.asarray(_CLIENTS_PER_GRADIENT * gradients * samples + fixed, np.int64)


def assign_processes(costs: Ints, size: int) -> Ints:
    """(clients,) the process of each client: consecutive clients, about equal costs.

    Every process holds at least one client of every run, so that all of them make the same calls in
    a step.

    Args:
        costs: (clients,) computing time.
        size: number of processes.

    Raises:
        InvalidInput: there are more processes than clients.
    """
    clients = len(costs)
    if size > clients:
        raise InvalidInput(
            f"{size} processes are too many for {clients} clients; "
            f"use torchrun --nproc-per-node {clients}."
        )
    total = np.append(0, np.cumsum(costs))
    cuts = [0]
    for process in range(1, size):
        nearest = int(np.abs(total * size - total[-1] * process).argmin())
        cuts.append(min(max(nearest, cuts[-1] + 1), clients - size + process))
    return np.repeat(np.arange(size), np.diff([*cuts, clients]))


@dataclass(frozen=True, eq=False)
class BlockTraffic:
    """The rows that a process sends and receives in one mixing, each to a process at most once."""

    sends: dict[int, Ints]  # process → rows of this block, in the order of clients
    receives: dict[int, Ints]  # process → clients of the batch, in order


@dataclass(frozen=True, eq=False)
class ClientBlock:
    """The clients of one process in a batch of runs, and the links that touch them."""

    rank: int
    owner: Ints  # (clients of the batch,) rank of the process that holds each client
    receivers: Ints  # (links of the batch,) clients
    senders: Ints

    @cached_property
    def clients(self) -> Ints:
        """The clients of this process."""
        return np.flatnonzero(self.owner == self.rank)

    @cached_property
    def row(self) -> Ints:
        """(clients of the batch,) row in this block; -1 for clients of other processes."""
        row = np.full(len(self.owner), -1)
        row[self.clients] = np.arange(len(self.clients))
        return row

    @cached_property
    def in_links(self) -> Ints:
        """Links into this block."""
        return np.flatnonzero(self.owner[self.receivers] == self.rank)

    @cached_property
    def inner_links(self) -> Ints:
        """Links within this block."""
        is_inner = self.owner[self.senders[self.in_links]] == self.rank
        return np.asarray(self.in_links[is_inner])

    @cached_property
    def incoming_links(self) -> Ints:
        """Links from other processes into this block."""
        is_incoming = self.owner[self.senders[self.in_links]] != self.rank
        return np.asarray(self.in_links[is_incoming])

    @cached_property
    def outgoing_links(self) -> Ints:
        """Links from this block to other processes."""
        is_sent = self.owner[self.senders] == self.rank
        is_foreign = self.owner[self.receivers] != self.rank
        return np.flatnonzero(is_sent & is_foreign)

    @cached_property
    def inner_mixing(self) -> BatchLinks:
        """The links within this block, by its rows."""
        receivers = self.row[self.receivers[self.inner_links]]
        return BatchLinks(1, len(self.clients), receivers, self.row[self.senders[self.inner_links]])

    def traffic(self, active: Bools) -> BlockTraffic:
        """What is sent and received over the active links."""
        outgoing = self.outgoing_links[active[self.outgoing_links]]
        incoming = self.incoming_links[active[self.incoming_links]]
        targets = self.owner[self.receivers[outgoing]]
        sources = self.owner[self.senders[incoming]]
        sends = {}
        for peer, clients in _group_clients(targets, self.senders[outgoing]).items():
            sends[peer] = self.row[clients]
        return BlockTraffic(sends, _group_clients(sources, self.senders[incoming]))

    def mix_inner(self, x: Tensor, weights: Floats, active: Bools, keepers: Ints) -> Tensor:
        """The share of this block's own clients in a mixing, which needs no message.

        Args:
            x: (clients of the block, columns).
            weights: (links of the batch,) entries of the matrix.
            active: (links of the batch,) active links.
            keepers: (links of the batch,) the end of each link that keeps what is not sent.
        """
        rounded = round_weights(weights, x.dtype)
        # The diagonal of the whole matrix: it depends on the links to other processes, too.
        diagonal = matrix_diagonal(rounded, active, keepers, len(self.owner))[self.clients]
        links = self.inner_links
        operator = MixingOperator(
            self.inner_mixing, rounded[links], self.row[keepers[links]], x.dtype
        )
        return operator.with_diagonal(x, active[links], diagonal)

    def mix_inner_differences(self, x: Tensor, weights: Floats, active: Bools) -> Tensor:
        """As `BatchLinks.mix_differences`, over the links within this block."""
        links = self.inner_links
        return self.inner_mixing.mix_differences(x, weights[links], active[links])

    def add_received(
        self,
        out: Tensor,
        received: Tensor,
        clients: Ints,
        weights: Floats,
        active: Bools,
        subtract: Tensor | None = None,
    ) -> None:
        """In place: add the rows of another process, weighted by the active links.

        Args:
            out: (clients of the block, columns).
            received: (n, columns) rows of `clients`, which are in ascending order.
            clients: (n,) of the batch.
            weights: (links of the batch,) entries of the matrix.
            active: (links of the batch,) active links.
            subtract: (clients of the block, columns) add differences to these rows instead.
        """
        links = self.incoming_links[active[self.incoming_links]]
        links = links[np.isin(self.senders[links], clients)]
        rows = self.row[self.receivers[links]]
        sources = np.searchsorted(clients, self.senders[links])
        add_rows(out, received, rows, sources, weights[links], subtract)


def _group_clients(processes: Ints, clients: Ints) -> dict[int, Ints]:
    """Clients by process, each once and in order."""
    return {int(p): np.unique(clients[processes == p]) for p in np.unique(processes)}


def as_slice(rows: Ints) -> slice | None:
    """Consecutive rows as a slice; None if they are not consecutive."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return None

"""Which clients a process holds, what it sends and receives in a round, and the mixing of one block.

All processes compute this alike from the networks and the active links: none asks another what it will send.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.kernels.links import Links, add_rows, matrix_diagonal
from spodgt.problems.protocols import HasBatches
from spodgt.types import Availability, Bools, Floats, Ints, Problem

_LOOK_AHEAD = 256  # rounds from which it is told how often a client computes
_HOLDING = 20  # clients kept and mixed for the price of one gradient


def effort(problem: Problem, availability: Availability) -> Ints:
    """(clients,): p × cost, how much work a client is in a round; whole numbers, exact on every host."""
    length = availability.length
    rounds = range(_LOOK_AHEAD if length is None else min(length + 1, _LOOK_AHEAD))
    often = availability.computes(rounds).sum(0)  # as the method uses it: it may wake everybody
    everyone = np.arange(len(often))
    cost = problem.batches(everyone) if isinstance(problem, HasBatches) else np.ones_like(everyone)
    return np.asarray(_HOLDING * often * cost + len(rounds) * cost.max(), np.int64)


def blocks(efforts: Ints, size: int) -> Ints:
    """(clients,): the process of each client; neighbours in number stay together, efforts are about equal.

    Every process holds at least one client of every run, so all of them take the same path through a step.
    """
    clients = len(efforts)
    if size > clients:
        raise InvalidInput(
            f"{size} processes are too many for {clients} clients; use torchrun --nproc-per-node {clients}."
        )
    total = np.r_[0, np.cumsum(efforts)]
    cuts = [0]
    for process in range(1, size):
        nearest = int(np.abs(total * size - total[-1] * process).argmin())
        cuts.append(min(max(nearest, cuts[-1] + 1), clients - size + process))
    return np.repeat(np.arange(size), np.diff([*cuts, clients]))


@dataclass(frozen=True, eq=False)
class Traffic:
    """What this process sends and receives for one mixing: a client goes to each process at most once."""

    sends: dict[int, Ints]  # process → rows of this block, in the order of clients
    receives: dict[int, Ints]  # process → clients of the batch, in order

    @cached_property
    def peers(self) -> list[int]:
        return sorted(self.sends.keys() | self.receives.keys())


@dataclass(frozen=True, eq=False)
class Block:
    """The clients of one process in a batch of runs, and the links that touch them."""

    rank: int
    owner: Ints  # (clients of the batch,)
    receivers: Ints
    senders: Ints

    @cached_property
    def own(self) -> Ints:
        return np.flatnonzero(self.owner == self.rank)

    @cached_property
    def row(self) -> Ints:
        """(clients of the batch,): the row of each in this block, -1 for those of others."""
        row = np.full(len(self.owner), -1)
        row[self.own] = np.arange(len(self.own))
        return row

    @cached_property
    def into(self) -> Ints:
        """Links that end in this block."""
        return np.flatnonzero(self.owner[self.receivers] == self.rank)

    @cached_property
    def within(self) -> Ints:
        return np.asarray(self.into[self.owner[self.senders[self.into]] == self.rank])

    @cached_property
    def arriving(self) -> Ints:
        return np.asarray(self.into[self.owner[self.senders[self.into]] != self.rank])

    @cached_property
    def leaving(self) -> Ints:
        ends = self.owner[self.senders], self.owner[self.receivers]
        return np.flatnonzero((ends[0] == self.rank) & (ends[1] != self.rank))

    def crossing(self, active: Bools) -> int:
        """Active links between any two processes: each would cost one vector if none were shared."""
        return int((active & (self.owner[self.receivers] != self.owner[self.senders])).sum())

    def traffic(self, active: Bools) -> Traffic:
        out, into = self.leaving[active[self.leaving]], self.arriving[active[self.arriving]]
        sends = _by_process(self.owner[self.receivers[out]], self.senders[out], len(self.owner))
        receives = _by_process(self.owner[self.senders[into]], self.senders[into], len(self.owner))
        return Traffic({peer: self.row[clients] for peer, clients in sends.items()}, receives)

    @cached_property
    def inner(self) -> Links:
        """The links within this block, by its own rows."""
        links = self.within
        return Links(
            1, len(self.own), self.row[self.receivers[links]], self.row[self.senders[links]]
        )

    def mix_own(self, x: Tensor, weights: Floats, active: Bools, keeper: Ints) -> Tensor:
        """What this block's clients keep and send to each other; needs no message."""
        weights = weights.astype(torch.empty(0, dtype=x.dtype).numpy().dtype)  # as `Links.mix` does
        # B_ii keeps what the missing links to other processes would have carried, too
        kept = matrix_diagonal(weights, active, keeper, len(self.owner))[self.own]
        links = self.within
        return self.inner.mix_with(x, weights[links], active[links], kept)

    def mix_own_differences(self, x: Tensor, weights: Floats, active: Bools) -> Tensor:
        """As `Links.mix_differences`, over the links within this block."""
        return self.inner.mix_differences(x, weights[self.within], active[self.within])

    def add(
        self,
        out: Tensor,
        halo: Tensor,
        clients: Ints,
        weights: Floats,
        active: Bools,
        own: Tensor | None,
    ) -> None:
        """Weigh in the rows `halo` of some `clients`, which another process sent; `own` as in `add_rows`."""
        links = self.arriving[active[self.arriving]]
        links = links[np.isin(self.senders[links], clients)]
        rows = self.row[self.receivers[links]]
        add_rows(
            out, halo, rows, np.searchsorted(clients, self.senders[links]), weights[links], own
        )


def _by_process(process: Ints, clients: Ints, count: int) -> dict[int, Ints]:
    """Each process's clients, every one once and in order."""
    codes = np.unique(process * count + clients)
    found = codes // count
    return {int(peer): codes[found == peer] % count for peer in np.unique(found)}


def spans(rows: Ints) -> slice | None:
    """Rows as one slice, if they follow each other."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return None

"""A large batch whose rows stand in another order than its clients: neighbours near each other in memory.

Only the rows of a state, and what a step reads beside them, are arranged. Draws, tallies, records and saved
states are by the numbers of clients. Sums over links keep the order of clients, so no number depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.compiled import jit, share
from spodgt.kernels.mixing import SCATTERED, Links
from spodgt.kernels.order import grouped, near_order
from spodgt.kernels.steps import Activity
from spodgt.runtimes.batch import RunBatch
from spodgt.types import ActiveLinks, Bools, Floats, Ints, Problem, Words


@jit
def _picked(given, which, out, first, last):  # type: ignore[no-untyped-def]
    for n in range(first, last):
        out[n] = given[which[n]]


def picked(given: Bools, which: Ints) -> Bools:
    """given[…, which], on all threads."""
    if given.ndim > 1:
        return np.stack([picked(row, which) for row in given])
    out = np.empty(len(which), np.bool_)
    share(len(which), len(which), lambda first, last: _picked(given, which, out, first, last))
    return out


@dataclass(frozen=True, eq=False)
class Arranged:
    """The `Batch` of a compiled step, by rows instead of clients."""

    batch: RunBatch
    clients: Ints  # (rows,) the client of each row: those of a run stay together

    @classmethod
    def of(cls, batch: RunBatch) -> Arranged | None:
        """In a better order, where runs are large and have one."""
        found, better = [], False
        for run, start in zip(batch.live, batch.starts.tolist(), strict=False):
            order, net = None, run.network
            if net.clients * batch.problem.parameters >= SCATTERED:
                order = near_order(net.clients, net.receivers, net.senders)
            better |= order is not None
            found.append(start + (np.arange(net.clients) if order is None else order))
        return cls(batch, np.concatenate(found)) if better else None

    @cached_property
    def rows(self) -> Ints:
        """(clients,) the row of each client."""
        rows = np.empty_like(self.clients)
        rows[self.clients] = np.arange(len(rows))
        return rows

    @cached_property
    def _order(self) -> Ints:
        """(links,) which link of the batch stands at each place."""
        return grouped(self.rows[self.batch.links.receivers], len(self.clients))[1]

    @cached_property
    def links(self) -> Links:
        links, order = self.batch.links, self._order
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        receivers, senders = self.rows[links.receivers[order]], self.rows[links.senders[order]]
        return Links(links.runs, links.clients, receivers, senders, places)

    @cached_property
    def weights(self) -> dict[str, Floats]:
        return {name: self.by_link(each) for name, each in self.batch.weights.items()}

    @cached_property
    def keys(self) -> Words:
        return self.batch.keys[self.clients]

    @cached_property
    def places(self) -> Ints:
        return self.batch.places[self.clients]

    @cached_property
    def p(self) -> Tensor:
        return self.batch.p[torch.from_numpy(self.clients)]

    @property
    def sizes(self) -> Sequence[int]:
        return self.batch.sizes

    @property
    def starts(self) -> Ints:
        return self.batch.starts

    @property
    def problem(self) -> Problem:
        return self.batch.problem

    def by_link(self, values: Floats) -> Floats:
        """(links,) values of the batch, arranged."""
        return values[self._order]

    def active(self, links: Bools) -> Bools:
        """(…, links) of the batch, arranged."""
        return picked(links, self._order)

    def activity(self, given: Activity) -> Activity:
        """The same rounds, arranged; those with roles are not for compiled steps of large networks."""
        pull, push = given.links
        links = ActiveLinks(self.active(pull), None if push is None else self.active(push))
        return replace(given, computes=picked(given.computes, self.clients), links=links)

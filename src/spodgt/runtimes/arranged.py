"""A large batch whose rows stand in another order than its clients: neighbours near each other in memory.

Only the rows of a state, and what a step reads beside them, are arranged. Draws, tallies, records and saved
states are by the numbers of clients. Sums over links keep the order of clients, so no number depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spodgt.compiled import jit, share
from spodgt.compiled.instructions import VECTOR, copy, fetch
from spodgt.kernels.mixing import SCATTERED, Links
from spodgt.kernels.order import near_order
from spodgt.kernels.steps import Activity
from spodgt.runtimes.batch import RunBatch
from spodgt.types import ActiveLinks, Floats, Ints, Problem, Words

T = TypeVar("T", bound=np.generic)
_AHEAD = 16  # rows whose links are fetched before they are read


@jit
def _carry(given, starts, pointers, out, first, last):  # type: ignore[no-untyped-def]
    """Rows first to last of `Arranged.by_link`; those of the next ones are fetched meanwhile.

    Most are copied in vectors, which reach into the next row: that is written after them.
    """
    end, most = pointers[last] - VECTOR, len(given) - VECTOR
    for row in range(first, last):
        low, high, at = pointers[row], pointers[row + 1], starts[row]
        soon = starts[min(row + _AHEAD, last - 1)]
        fetch(given, soon, 0, 0)
        fetch(given, min(soon + VECTOR, len(given) - 1), 0, 0)
        if high <= end and at + high - low <= most:
            copy(given, at, out, low, high)
        else:
            for n in range(high - low):
                out[low + n] = given[at + n]


@jit
def _pick(given, which, out):  # type: ignore[no-untyped-def]
    """out[n] ← given[which[n]], which have no sign: of others, numba asks whether they count from the end."""
    for n in range(len(which)):
        out[n] = given[which[n]]


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
    def _narrow(self) -> NDArray[np.uint32]:
        """The clients in half as many bytes."""
        return self.clients.astype(np.uint32)

    @cached_property
    def _pointers(self) -> Ints:
        """Where the links of each row begin; they stand together, in their order, in the batch, too."""
        counts = np.diff(self.batch.links.pointers)[self.clients]
        return np.concatenate([[0], np.cumsum(counts)])

    @cached_property
    def _starts(self) -> Ints:
        """Where the links of each row begin in the batch."""
        return self.batch.links.pointers[self.clients]

    @cached_property
    def links(self) -> Links:
        links = self.batch.links
        places = np.empty(len(links.senders), np.int64)
        places[self.by_link(np.arange(len(places)))] = np.arange(len(places))
        receivers = np.repeat(np.arange(len(self.clients)), np.diff(self._pointers))
        return Links(links.runs, links.clients, receivers, self.rows[self.by_link(links.senders)], places)

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

    def by_link(self, values: NDArray[T]) -> NDArray[T]:
        """(…, links) values of the batch, arranged."""
        out = np.empty(values.shape, values.dtype)
        rows, to = (
            np.ascontiguousarray(values).reshape(-1, values.shape[-1]),
            out.reshape(-1, values.shape[-1]),
        )

        def work(first: int, last: int) -> None:
            for given, found in zip(rows, to, strict=True):
                _carry(given, self._starts, self._pointers, found, first, last)

        share(len(self.clients), values.size, work)
        return out

    def activity(self, given: Activity) -> Activity:
        """The same rounds, arranged; those with roles are not for compiled steps of large networks."""
        pull, push = given.links
        links = ActiveLinks(self.by_link(pull), None if push is None else self.by_link(push))
        computes = np.empty_like(given.computes)

        def pick(first: int, last: int) -> None:
            for row, out in zip(given.computes.view(np.uint8), computes.view(np.uint8), strict=True):
                _pick(row, self._narrow[first:last], out[first:last])

        share(len(self.clients), computes.size, pick)
        return replace(given, computes=computes, links=links)

"""The links of a batch of runs, and the mixing of stacked models over the active ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.engine import fits_loops
from spodgt.types import Array, Bools, Floats, Ints

_DENSE = 64  # clients of a run up to which a dense matrix is faster
_COLUMNS = 1024  # that are added at a time
_CACHED = 2**16  # numbers of a block of columns of all clients, about


def columns_per_block(clients: int) -> int:
    """Columns that compiled loops process at a time, so that a block of all clients stays in a cache."""
    return max(64, min(512, _CACHED // max(1, clients) // 16 * 16))


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a batch of runs as one disjoint union, sorted by receiver."""

    runs: int  # equal blocks of clients; one where runs differ in size
    clients: int  # of all runs together
    receivers: Ints
    senders: Ints

    @cached_property
    def pointers(self) -> Ints:
        """(clients + 1,) where each receiver's links begin."""
        counts = np.bincount(self.receivers, minlength=self.clients)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @property
    def dense(self) -> bool:
        """Runs of equal size lie in equal blocks, so one batched product mixes them all."""
        return self.clients % self.runs == 0 and self.clients // self.runs <= _DENSE

    def mix(self, x: Tensor, weights: Floats, active: Bools, *, keeper: Ints) -> Tensor:
        """The mixing matrix of the active links, times x.

        Args:
            x: (clients, width).
            weights: (links,) entries of the matrix.
            active: (links,) which links work.
            keeper: (links,) the end of each link that keeps what is not sent: with `receivers`, rows
                sum to one; with `senders`, columns do.
        """
        # in the precision of the models: what is kept is the rest of what is really sent
        rounded = weights.astype(torch.empty(0, dtype=x.dtype).numpy().dtype)
        kept = matrix_diagonal(rounded, active, keeper, self.clients)
        return self.mix_with(x, rounded, active, kept)

    def mix_with(self, x: Tensor, weights: Array, active: Bools, kept: Floats) -> Tensor:
        """As `mix`, with weights in the precision of x and a given diagonal `kept` (clients,)."""
        if not fits_loops(x):
            return self.mix_plain(x, np.where(active, weights, 0.0), active, kept)
        from spodgt.kernels.mixing import mix_matrix

        out = torch.empty_like(x)
        links = np.array(weights, np.float64), np.ascontiguousarray(active)
        columns = columns_per_block(self.clients)
        mix_matrix(x.numpy(), out.numpy(), self.pointers, self.senders, *links, kept, columns)
        return out

    def mix_differences(self, x: Tensor, weights: Floats, active: Bools) -> Tensor:
        """The mixing matrix of the active links minus the identity, times x: sums of weighted differences.

        Differences of rows that are nearly equal have small rounding errors; `mix(x) - x` has those of x.
        """
        on = np.flatnonzero(active)
        out = torch.zeros_like(x)
        add_rows(out, x, self.receivers[on], self.senders[on], weights[on], own=x)
        return out

    def mix_plain(self, x: Tensor, moved: Floats, active: Bools, kept: Floats) -> Tensor:
        """The same in PyTorch, on any device.

        Args:
            x: (clients, width).
            moved: (links,) entries off the diagonal, zero where a link is not active.
            active: (links,).
            kept: (clients,) entries on the diagonal.
        """
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


def add_rows(
    out: Tensor, source: Tensor, to: Ints, rows: Ints, weights: Floats, own: Tensor | None = None
) -> None:
    """In place: out[to] += weights · source[rows], one after the other.

    With `own`, out[to] += weights · (source[rows] - own[to]).
    """
    receivers = torch.from_numpy(to).to(out.device)
    senders = torch.from_numpy(rows).to(out.device)
    factors = torch.from_numpy(weights).to(out)[:, None]
    for left in range(0, out.shape[1], _COLUMNS):  # a row for each link needs much memory
        columns = slice(left, left + _COLUMNS)
        values = source[senders, columns]
        if own is not None:
            values = values - own[receivers, columns]
        out[:, columns].index_add_(0, receivers, factors * values)


def move_into_intervals(
    x: Tensor, middle: Tensor, half: Tensor, receivers: Ints, senders: Ints, weights: Floats
) -> Tensor:
    """Every receiver's row of x moved towards the intervals of its senders, by the weights of the links.

    Args:
        x: (rows, columns).
        middle, half: (senders, columns) the intervals.
        receivers: (links,) rows of x.
        senders: (links,) rows of the intervals.
        weights: (links,) the fraction of the distance by which a receiver moves.
    """
    into = torch.from_numpy(receivers).to(x.device)
    source = torch.from_numpy(senders).to(x.device)
    weight = torch.from_numpy(weights).to(x)[:, None]
    distance = middle[source] - x[into]
    outside = (distance.abs() - half[source]).clamp(min=0)
    return x.clone().index_add_(0, into, weight * distance.sign() * outside)


def matrix_diagonal(weights: Array, active: Bools, keepers: Ints, clients: int) -> Floats:
    """(clients,) one minus what goes along the active links, of the ends that keep the rest."""
    moved = np.where(active, weights, 0.0)
    return np.asarray(1.0 - np.bincount(keepers, moved, minlength=clients), np.float64)

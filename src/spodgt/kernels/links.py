"""The links of a batch of runs, and mixing of stacked models over the active ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.engine import fits_loops
from spodgt.types import Array, Bools, Floats, Ints

_MAX_DENSE_CLIENTS = 64  # of a run; with more, a sparse matrix is faster
_BLOCK_COLUMNS = 1024  # that `add_rows` processes at a time
_BLOCK_SIZE = 2**16  # numbers of a block of columns of all clients that fit into a cache, about


def columns_per_block(clients: int) -> int:
    """Columns that compiled loops process at a time, so that a block of all clients fits a cache."""
    columns = _BLOCK_SIZE // max(1, clients) // 16 * 16
    return max(64, min(512, columns))


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a batch of runs as one disjoint union, sorted by receiver."""

    runs: int  # of equal size; 1 if runs differ in size
    clients: int  # of all runs
    receivers: Ints
    senders: Ints

    @cached_property
    def pointers(self) -> Ints:
        """(clients + 1,) where each receiver's links begin."""
        counts = np.bincount(self.receivers, minlength=self.clients)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @property
    def dense(self) -> bool:
        """Whether one batched matrix product mixes all runs."""
        return self.clients % self.runs == 0 and self.clients // self.runs <= _MAX_DENSE_CLIENTS

    def mix(self, x: Tensor, weights: Floats, active: Bools, *, keeper: Ints) -> Tensor:
        """Multiply the mixing matrix of the active links by x.

        Args:
            x: (clients, width).
            weights: (links,) entries of the matrix.
            active: (links,) mask of active links.
            keeper: (links,) the end of each link with the remaining weight on the diagonal:
                `receivers` for a row-stochastic matrix, `senders` for a column-stochastic one.

        Returns:
            (clients, width).
        """
        # in the precision of the models: the diagonal is one minus the weights that are used
        rounded = weights.astype(torch.empty(0, dtype=x.dtype).numpy().dtype)
        diagonal = matrix_diagonal(rounded, active, keeper, self.clients)
        return self.mix_with(x, rounded, active, diagonal)

    def mix_with(self, x: Tensor, weights: Array, active: Bools, diagonal: Floats) -> Tensor:
        """As `mix`, with weights in the precision of x and a given `diagonal` (clients,)."""
        if not fits_loops(x):
            return self.mix_plain(x, np.where(active, weights, 0.0), active, diagonal)
        from spodgt.kernels.mixing import mix_matrix

        out = torch.empty_like(x)
        mix_matrix(
            x.numpy(),
            out.numpy(),
            self.pointers,
            self.senders,
            np.array(weights, np.float64),
            np.ascontiguousarray(active),
            diagonal,
            columns_per_block(self.clients),
        )
        return out

    def mix_differences(self, x: Tensor, weights: Floats, active: Bools) -> Tensor:
        """Multiply the mixing matrix of the active links minus the identity by x.

        Computed from differences of rows, with small rounding errors if rows nearly agree;
        `mix(x) - x` has the errors of x.
        """
        on = np.flatnonzero(active)
        out = torch.zeros_like(x)
        add_rows(out, x, self.receivers[on], self.senders[on], weights[on], own=x)
        return out

    def mix_plain(self, x: Tensor, weights: Floats, active: Bools, diagonal: Floats) -> Tensor:
        """`mix_with` in PyTorch, on any device.

        Args:
            x: (clients, width).
            weights: (links,) entries off the diagonal, zero for inactive links.
            active: (links,).
            diagonal: (clients,).
        """
        if self.dense:
            m = self.clients // self.runs
            matrix = np.zeros((self.clients, m))
            matrix[self.receivers, self.senders % m] = weights
            matrix[np.arange(self.clients), np.arange(self.clients) % m] = diagonal
            blocks = torch.from_numpy(matrix).to(x).view(self.runs, m, m)
            return torch.bmm(blocks, x.view(self.runs, m, -1)).view_as(x)
        on = np.flatnonzero(active)
        # links are sorted by receiver; with the diagonal first in each row they remain so
        rows = np.concatenate([np.arange(self.clients), self.receivers[on]])
        order = np.argsort(rows, kind="stable")
        columns = np.concatenate([np.arange(self.clients), self.senders[on]])[order]
        values = np.concatenate([diagonal, weights[on]])[order]
        pointers = np.r_[0, np.cumsum(np.bincount(rows, minlength=self.clients))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # CSR support of torch is in beta
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
    """Add weighted rows in place: out[to] += weights · source[rows], in the order of the links.

    With `own`, out[to] += weights · (source[rows] - own[to]).
    """
    receivers = torch.from_numpy(to).to(out.device)
    senders = torch.from_numpy(rows).to(out.device)
    factors = torch.from_numpy(weights).to(out)[:, None]
    for left in range(0, out.shape[1], _BLOCK_COLUMNS):  # whole rows of all links need much memory
        columns = slice(left, left + _BLOCK_COLUMNS)
        values = source[senders, columns]
        if own is not None:
            values = values - own[receivers, columns]
        out[:, columns].index_add_(0, receivers, factors * values)


def move_into_intervals(
    x: Tensor,
    centre: Tensor,
    half_length: Tensor,
    receivers: Ints,
    senders: Ints,
    weights: Floats,
) -> Tensor:
    """Move the row of every receiver towards the intervals of its senders.

    Args:
        x: (rows, columns).
        centre: (senders, columns) centres of the intervals.
        half_length: (senders, columns) half their lengths.
        receivers: (links,) rows of x.
        senders: (links,) rows of the intervals.
        weights: (links,) fraction of the distance to the interval by which a receiver moves.

    Returns:
        (rows, columns).
    """
    into = torch.from_numpy(receivers).to(x.device)
    source = torch.from_numpy(senders).to(x.device)
    weight = torch.from_numpy(weights).to(x)[:, None]
    distance = centre[source] - x[into]
    outside = (distance.abs() - half_length[source]).clamp(min=0)
    return x.clone().index_add_(0, into, weight * distance.sign() * outside)


def matrix_diagonal(weights: Array, active: Bools, keepers: Ints, clients: int) -> Floats:
    """(clients,) one minus the weights of the active links, summed by `keepers`; see `Links.mix`."""
    used = np.where(active, weights, 0.0)
    return np.asarray(1.0 - np.bincount(keepers, used, minlength=clients), np.float64)

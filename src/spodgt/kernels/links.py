"""The links of a batch of runs, and mixing of stacked models over the active ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.engine import loops_enabled
from spodgt.types import Array, Bools, Floats, Ints

_MAX_DENSE_CLIENTS = 64  # of a run; with more, a sparse matrix is faster
_BLOCK_COLUMNS = 1024  # that `add_rows` processes at a time
_BLOCK_SIZE = 2**16  # numbers of a block of columns of all clients that fit into a cache, about


def columns_per_block(clients: int) -> int:
    """Columns that compiled loops process at a time, so that a block of all clients fits a cache."""
    columns = _BLOCK_SIZE // max(1, clients) // 16 * 16
    return max(64, min(512, columns))


@dataclass(frozen=True, eq=False)
class BatchLinks:
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

    def mix_differences(self, x: Tensor, weights: Floats, active: Bools) -> Tensor:
        """Multiply the mixing matrix of the active links minus the identity by x.

        Computed from differences of rows, with small rounding errors if rows nearly agree; the
        product minus x has the errors of x.
        """
        on = np.flatnonzero(active)
        out = torch.zeros_like(x)
        add_rows(out, x, self.receivers[on], self.senders[on], weights[on], own=x)
        return out


def round_weights(weights: Floats, dtype: torch.dtype) -> Floats:
    """Weights in the precision of the models, so that a matrix and its diagonal fit together."""
    return torch.from_numpy(np.asarray(weights, np.float64)).to(dtype).double().numpy()


def matrix_diagonal(weights: Array, active: Bools, keepers: Ints, clients: int) -> Floats:
    """(clients,) one minus the weights of the active links, summed by `keepers`."""
    used = np.where(active, weights, 0.0)
    return np.asarray(1.0 - np.bincount(keepers, used, minlength=clients), np.float64)


class MixingOperator:
    """A mixing matrix with the entries of the active links, multiplied with stacked models.

    The diagonal is one minus the entries that are used, summed by the clients that keep the rest.
    A compiled loop multiplies models on a CPU, PyTorch all others; both give the same up to
    rounding.

    Args:
        links: of a batch.
        weights: (links,) entries of the matrix.
        keepers: (links,) the end of each link with the remaining weight on the diagonal:
            `receivers` for a row-stochastic matrix, `senders` for a column-stochastic one.
        dtype: of the models, in which weights are rounded.
        compiled: use the compiled loop where it applies.
    """

    def __init__(
        self,
        links: BatchLinks,
        weights: Floats,
        keepers: Ints,
        dtype: torch.dtype,
        *,
        compiled: bool = True,
    ) -> None:
        self.links = links
        self.weights = round_weights(weights, dtype)
        self.keepers = keepers
        self.compiled = compiled and loops_enabled()

    def __call__(self, x: Tensor, active: Bools) -> Tensor:
        """Multiply the matrix by x.

        Args:
            x: (clients, width).
            active: (links,) mask of active links.

        Returns:
            (clients, width).
        """
        diagonal = matrix_diagonal(self.weights, active, self.keepers, self.links.clients)
        return self.with_diagonal(x, active, diagonal)

    def with_diagonal(self, x: Tensor, active: Bools, diagonal: Floats) -> Tensor:
        """The product with a matrix with this diagonal (clients,)."""
        if self.compiled and x.device.type == "cpu":
            return self._multiply_in_loop(x, active, diagonal)
        if self.links.dense:
            return self._multiply_dense(x, active, diagonal)
        return self._multiply_sparse(x, active, diagonal)

    def _multiply_in_loop(self, x: Tensor, active: Bools, diagonal: Floats) -> Tensor:
        from spodgt.kernels.mixing import mix_matrix

        x = x.contiguous()
        out = torch.empty_like(x)
        mix_matrix(
            x.numpy(),
            out.numpy(),
            self.links.pointers,
            self.links.senders,
            self.weights,
            np.ascontiguousarray(active),
            diagonal,
            columns_per_block(self.links.clients),
        )
        return out

    def _multiply_dense(self, x: Tensor, active: Bools, diagonal: Floats) -> Tensor:
        """One batched product of the matrices of all runs."""
        links = self.links
        m = links.clients // links.runs
        clients = np.arange(links.clients)
        matrix = np.zeros((links.clients, m))
        matrix[links.receivers, links.senders % m] = np.where(active, self.weights, 0.0)
        matrix[clients, clients % m] = diagonal
        blocks = torch.from_numpy(matrix).to(x).view(links.runs, m, m)
        return torch.bmm(blocks, x.reshape(links.runs, m, -1)).view_as(x)

    def _multiply_sparse(self, x: Tensor, active: Bools, diagonal: Floats) -> Tensor:
        links = self.links
        clients = np.arange(links.clients)
        on = np.flatnonzero(active)
        # links are sorted by receiver; with the diagonal first in each row they remain so
        rows = np.concatenate([clients, links.receivers[on]])
        order = np.argsort(rows, kind="stable")
        columns = np.concatenate([clients, links.senders[on]])[order]
        values = np.concatenate([diagonal, self.weights[on]])[order]
        pointers = np.r_[0, np.cumsum(np.bincount(rows, minlength=links.clients))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # CSR support of torch is in beta
            sparse = torch.sparse_csr_tensor(
                torch.from_numpy(pointers).to(x.device),
                torch.from_numpy(columns).to(x.device),
                torch.from_numpy(values).to(x),
                (links.clients, links.clients),
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

"""The clients that a process holds: their rows of a state, and what they keep besides it."""

from __future__ import annotations

import copy
import dataclasses
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, Schedule
from spodgt.kernels.steps import State, rebuild
from spodgt.problems.protocols import HasClientWeights
from spodgt.runtimes.batch import RunBatch, TallyIndex
from spodgt.runtimes.world import RunState
from spodgt.types import Bools, Floats, Ints

M = TypeVar("M", bound=Algorithm | Schedule)


def select_client_values(method: M, rows: Tensor, clients: int) -> M:
    """The same method or schedule with the values of some clients.

    Args:
        method: a method; its fields may hold one value per client.
        rows: numbers of the clients.
        clients: number of all clients; tensors of this length hold one value per client.
    """
    selected = copy.copy(method)  # not `replace`, which would check the values again
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, field.name)
        if isinstance(value, Algorithm | Schedule):
            value = select_client_values(value, rows, clients)
        elif isinstance(value, Tensor) and value.ndim and len(value) == clients:
            value = value[rows.to(value.device)]
        object.__setattr__(selected, field.name, value)
    return selected


class HeldClients:
    """The clients of a batch that this process holds; row r of a state is client `clients[r]`.

    Args:
        batch: the runs.
        clients: (rows,) numbers in the batch; None: all.
        in_links: the links of the batch into these clients; None: all.
    """

    def __init__(
        self, batch: RunBatch, clients: Ints | None = None, in_links: Ints | None = None
    ) -> None:
        self.batch = batch
        self.is_partial = clients is not None
        self.clients = np.arange(batch.links.clients) if clients is None else clients
        self.in_links: Ints | slice = slice(None) if in_links is None else in_links
        self.row = np.full(batch.links.clients, -1)  # of each client of the batch; -1: not here
        self.row[self.clients] = np.arange(len(self.clients))

    @cached_property
    def client_index(self) -> Tensor:
        """(clients,) number of each client in its run."""
        return torch.from_numpy(self.batch.client_index[self.clients]).to(self.batch.device)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of clients of each run."""
        run = np.repeat(np.arange(len(self.batch.sizes)), self.batch.sizes)
        counts: list[int] = np.bincount(run[self.clients], minlength=len(self.batch.sizes)).tolist()
        return counts

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method with the values of these clients."""
        method = self.batch.algorithm
        if not self.is_partial:
            return method
        rows = torch.from_numpy(self.clients)
        return select_client_values(method, rows, self.batch.links.clients)

    @cached_property
    def p(self) -> Tensor:
        """(clients, 1) probability that a client computes."""
        return self.batch.p[torch.from_numpy(self.clients).to(self.batch.device)]

    @cached_property
    def client_weight(self) -> Tensor:
        """(clients, 1) n w_i / Σ w of the objective."""
        problem = self.batch.problem
        scales = problem.loss_scales if isinstance(problem, HasClientWeights) else None
        if scales is None:
            scales = np.ones(self.batch.links.clients)
        return self.column(scales)

    @cached_property
    def tally_index(self) -> TallyIndex:
        """Positions in the tally of these clients, and of the links into them."""
        index = self.batch.tally_index
        if not self.is_partial:
            return index
        clients = np.arange(sum(run.network.clients for run in self.batch.all_runs))
        links = np.arange(sum(run.network.links for run in self.batch.all_runs))
        return TallyIndex(clients[index.clients][self.clients], links[index.links][self.in_links])

    def column(self, values: Floats) -> Tensor:
        """(clients, 1) values of the clients held here, of (clients of the batch,) values."""
        here = torch.from_numpy(values[self.clients])
        return here.to(self.batch.device, self.batch.dtype)[:, None]

    def initial_models(self) -> Tensor:
        """(clients, parameters)."""
        index = np.split(self.batch.client_index[self.clients], np.cumsum(self.sizes)[:-1])
        parts = []
        for run, clients in zip(self.batch.live, index, strict=True):
            parts.append(run.start[clients].to(self.batch.device, self.batch.dtype))
        return torch.cat(parts)

    def split(self, x: Tensor) -> list[Tensor]:
        """The rows of each run."""
        return list(torch.split(x, self.sizes))

    def select(self, state: State, runs: Bools) -> State:
        """The rows of some runs, of all fields of a state."""
        rows = self.rows_of(runs)
        return rebuild(state, [tensor[rows] for tensor in state])

    def rows_of(self, runs: Bools) -> Tensor:
        """The rows of some runs; `runs` is (runs,)."""
        rows = np.flatnonzero(np.repeat(runs, self.sizes))
        return torch.from_numpy(rows).to(self.batch.device)


def run_states(
    held: HeldClients, state: State, statistics: Tensor, wanted: Bools
) -> list[RunState]:
    """The states of some runs; this process holds all clients.

    Args:
        held: the clients.
        state: their state.
        statistics: (clients, columns).
        wanted: (runs,).
    """
    fields = [held.split(tensor) for tensor in state]
    values = held.split(statistics)
    states = []
    for index in np.flatnonzero(wanted).tolist():
        rows = rebuild(state, [field[index] for field in fields])
        states.append(RunState(rows, values[index]))
    return states


class ClientStatistics:
    """What clients keep besides the parameters, mostly no columns.

    First come running statistics, such as those of BatchNorm, which are exchanged with the models,
    then private columns. They are not a part of x, because methods subtract and extrapolate models
    and add them to corrections (K-GT, EXTRA, D²): statistics there would end up in trackers, and
    variances below zero. Here a gradient updates them, and receivers average them.

    Args:
        values: (clients, columns).
        private: number of private columns, the last ones.
    """

    def __init__(self, values: Tensor, private: int) -> None:
        self.values = values
        self.columns = values.shape[1]
        self.exchanged_columns = self.columns - private

    @staticmethod
    def initial(held: HeldClients, values: Tensor | None = None) -> ClientStatistics:
        """The statistics of the clients in round 0, or the given `values`."""
        runs = held.batch.live
        if values is None:
            drawn = torch.cat([run.problem.statistics(run.seed) for run in runs])
            values = torch.empty(
                len(held.clients), drawn.shape[1], dtype=held.batch.dtype, device=held.batch.device
            )
            if values.numel():
                values.copy_(drawn[torch.from_numpy(held.clients)])
        return ClientStatistics(values, runs[0].problem.private)

    def with_values(self, values: Tensor) -> ClientStatistics:
        """Other values of the same columns."""
        return ClientStatistics(values, values.shape[1] - self.exchanged_columns)

    def exchanged(self) -> Tensor:
        """(clients, columns) the running statistics."""
        return self.values[:, : self.exchanged_columns].contiguous()

    def replace_exchanged(self, received: Tensor) -> None:
        """Replace the running statistics; private columns remain."""
        private = self.values[:, self.exchanged_columns :]
        self.values = torch.cat([received, private], 1)

    def update(self, rows: Tensor, values: Tensor) -> None:
        """Replace all columns of some rows, without writing to the old tensor."""
        self.values = self.values.index_copy(0, rows, values)

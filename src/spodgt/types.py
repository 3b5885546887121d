"""Protocols and value types shared by all packages.

    Experiment ──draw(seed)──▶ Draw ──runtime──▶ World ──algorithm.step──▶ Observer ──▶ Record

Tensors are (clients, parameters). The leading axis is the clients that this process holds: all
clients of all runs of a batch in the simulator, a block of them in the distributed runtime, one
in a peer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]  # of any numbers
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Better = Literal["up", "down"]  # whether higher or lower values of a metric are better
P = TypeVar("P", bound="Problem")


class Round(Protocol):
    """The members of a round that all methods may use; for others see `algorithms.rounds`."""

    @property
    def k(self) -> int | Tensor: ...  # (clients, 1) if clients are in different rounds
    @property
    def computes(self) -> Tensor: ...  # (clients, 1) bool: active clients, which take gradients
    @property
    def p(self) -> Tensor: ...  # (clients, 1) probability that a client computes
    def grad(self, x: Tensor) -> Tensor: ...  # new stochastic gradients, zero rows if idle
    def pull(self, x: Tensor) -> Tensor: ...  # Â x, row-stochastic: receivers weight
    def push(self, y: Tensor) -> Tensor: ...  # B̂ y, column-stochastic: senders weight
    def gossip(self, x: Tensor) -> Tensor: ...  # Ŵ x, symmetric and doubly stochastic


class ActiveLinks(NamedTuple):
    """Masks of active links: (links,) in one round, or (rounds, links)."""

    pull: Bools  # links that carry models
    push: Bools | None = None  # links that carry trackers; None: the same, in one message

    @property
    def pushing(self) -> Bools:
        """Links that carry trackers."""
        return self.pull if self.push is None else self.push

    @property
    def used(self) -> Bools:
        """Links that carry anything."""
        return self.pull if self.push is None else self.pull | self.push

    def at(self, which: int | slice) -> ActiveLinks:
        """One round or a range of rounds."""
        push = None if self.push is None else self.push[which]
        return ActiveLinks(self.pull[which], push)


class Availability(Protocol):
    """Active clients and links of one network and seed, a pure function of the round.

    Round 0 has only `computes` (v⁰); round k ≥ 1 has links v̂^(k-1) and computes v^k. The delay
    clock charges 1/p for an active client and 1/p_hat for an active link.
    """

    @property
    def p(self) -> Floats: ...  # (clients,) probability that a client computes
    @property
    def p_hat(self) -> Floats: ...  # (links,) probability that a link is active
    @property
    def seed(self) -> int: ...  # of random draws that a method adds
    @property
    def length(self) -> int | None: ...  # number of rounds; None: unlimited
    @property
    def idle_clients(self) -> bool: ...  # whether any client may be idle in a round
    @property
    def idle_links(self) -> bool: ...  # whether any link may be down in a round
    def computes(self, rounds: range) -> Bools: ...  # (rounds, clients)
    def links(self, rounds: range) -> ActiveLinks: ...  # (rounds, links)


class Evaluation(NamedTuple):
    """Loss and metrics of models on unseen data, or on the objective if there are none."""

    loss: Tensor
    metrics: dict[str, Tensor]  # by the names of `Problem.metrics`

    def part(self, which: slice) -> Evaluation:
        """The entries of some of the models."""
        metrics = {name: values[which] for name, values in self.metrics.items()}
        return Evaluation(self.loss[which], metrics)


class Minibatches(NamedTuple):
    """The clients that draw a mini-batch in round k, and the random keys of their draws."""

    rows: Ints  # (n,) the client in this problem
    keys: Words  # (n,) the key of its run's stream "batch"
    client_index: Ints  # (n,) its number in its run
    k: int

    def part(self, which: Ints | slice) -> Minibatches:
        """The draws of some of the clients."""
        return Minibatches(self.rows[which], self.keys[which], self.client_index[which], self.k)


@runtime_checkable
class Problem(Protocol):
    """Models and data: gradients, loss and metrics of clients; `problems.protocols` has more.

    Clients may keep `statistics` in addition to the parameters: running statistics (BatchNorm),
    which are exchanged with the models, then `private` columns (personal layers), which never
    leave the client. `grad`, `full` and `evaluate` take models with these columns after the
    parameters, and `grad` updates them in place. Rounds add and remove the columns, so methods
    see parameters only.
    """

    @property
    def clients(self) -> int: ...
    @property
    def parameters(self) -> int: ...
    def start(self, seed: int) -> Tensor: ...  # (clients, parameters) initial models
    def join(self: P, others: Sequence[P]) -> P: ...  # several runs in one batch, this one first
    def to(self: P, device: torch.device, dtype: torch.dtype) -> P: ...
    def grad(self, x: Tensor, batches: Minibatches) -> Tensor: ...  # at x (n, columns)
    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]: ...  # F_i(x_i), ∇F_i(x_i)
    def evaluate(self, x: Tensor, rows: Ints | None = None) -> Evaluation:
        """Test loss and metrics of models x (n, columns).

        Args:
            rows: (n,) the client that owns the test data for each model; -1, or None for all
                models: the test data of all clients.
        """
        ...

    @property
    def metrics(self) -> Mapping[str, Better]:
        """The metrics that `evaluate` returns besides the loss."""
        return {}

    @property
    def private(self) -> int:
        """The number of private columns, the last ones of `statistics`."""
        return 0

    def statistics(self, seed: int) -> Tensor:
        """(clients, columns) running statistics and private columns of the initial models."""
        return torch.empty(self.clients, 0)

    def draw(self: P, seed: int) -> P:
        """The problem of one run, with its random partition."""
        return self

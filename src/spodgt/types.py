"""The contract, on one screen: what flows between the parts of the house.

    problem + network + participation ──rounds──▶ algorithm.step ──state──▶ recorder

Tensors are (clients, parameters). The leading axis is *the clients this process holds*: all of
them, of all runs of a batch, in the simulator; a block in the distributed runtime; one in a peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LinkPair = tuple[Bools, Bools]  # links that carry models and links that carry trackers: mostly one array
P = TypeVar("P", bound="Problem")


class Round(Protocol):
    """Round k, all an algorithm sees of the world."""

    @property
    def k(self) -> int: ...
    @property
    def computes(self) -> Tensor: ...  # (clients, 1) bool: who takes a gradient in this round
    @property
    def p(self) -> Tensor: ...  # (clients, 1): how often each client computes
    @property
    def place(self) -> Tensor: ...  # (clients,): a client's number in its own run
    @property
    def clients(self) -> int: ...  # how many clients a run has
    def grad(self, x: Tensor) -> Tensor: ...  # fresh stochastic gradients, zero rows where idle
    def pull(self, x: Tensor) -> Tensor: ...  # Â x: receivers weigh, rows sum to one
    def push(self, y: Tensor) -> Tensor: ...  # B̂ y: senders weigh, columns sum to one
    def gossip(self, x: Tensor) -> Tensor: ...  # Ŵ x: symmetric and doubly stochastic
    def average(self, x: Tensor) -> Tensor: ...  # the mean over all clients of a run: what a server sees


class Availability(Protocol):
    """Who computes and which links work, for one network and one seed: a pure function of the round.

    Round 0 has only `computes` (v⁰); round k ≥ 1 has links v̂^(k-1) and computes v^k. Arrays are
    (rounds, clients) and (rounds, links). `p` and `p_hat` are also what the delay clock charges.
    """

    @property
    def p(self) -> Floats: ...  # (clients,)
    @property
    def p_hat(self) -> Floats: ...  # (links,)
    @property
    def seed(self) -> int: ...  # what a method's own draws start from
    @property
    def length(self) -> int | None: ...  # rounds it can tell, None for ever
    @property
    def idle_clients(self) -> bool: ...  # some client may sit a round out
    @property
    def idle_links(self) -> bool: ...  # some link may be down
    def computes(self, rounds: range) -> Bools: ...
    def links(self, rounds: range) -> LinkPair: ...


class Evaluation(NamedTuple):
    """How good models are on unseen data (or on the objective, where there is none), one entry per model."""

    loss: Tensor
    accuracy: Tensor  # NaN where nothing is classified


class Problem(Protocol):
    """Models and data turned into gradients, loss and accuracy for the clients asked for.

    Where modules keep running statistics (BatchNorm), `grad`, `full` and `evaluate` take models with these
    as further columns behind the parameters; `grad` brings them up to date there. The round adds and takes
    off these columns, so that methods see parameters only.
    """

    @property
    def clients(self) -> int: ...
    @property
    def parameters(self) -> int: ...
    @property
    def work(self) -> float: ...  # multiplications in one `full` call, to decide what is affordable
    def draw(self: P, seed: int) -> P: ...  # the problem of one run: partitions are drawn here
    def start(self, seed: int) -> Tensor: ...  # (clients, parameters) initial models
    def statistics(
        self, seed: int
    ) -> Tensor: ...  # (clients, columns) initial running statistics, mostly none
    def join(self: P, others: Sequence[P]) -> P: ...  # several runs side by side, this one first
    def to(self: P, device: torch.device, dtype: torch.dtype) -> P: ...
    def grad(self, x: Tensor, rows: Ints, keys: NDArray[np.uint64], places: Ints, k: int) -> Tensor:
        """Stochastic gradients in round k at `x` (rows, parameters), for clients `rows`.

        `keys` and `places` name each row's run and its number there: all the randomness there is.
        """
        ...

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        """Exact local losses F_i(x_i) and gradients ∇F_i(x_i) of clients `rows`."""
        ...

    def evaluate(self, x: Tensor) -> Evaluation:
        """Test loss and accuracy of every model in `x` (models, parameters)."""
        ...

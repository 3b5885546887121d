"""The contract, on one screen: what flows between the rooms of the house.

    Experiment ──draw(seed)──▶ Draw ──runtime──▶ World ──rounds: algorithm.step──▶ observer ──▶ Record

Tensors are (clients, parameters). The leading axis is *the clients this process holds*: all of
them, of all runs of a batch, in the simulator; a block in the distributed runtime; one in a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

Array = NDArray[Any]  # of any numbers
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Better = Literal["up", "down"]  # whether higher or lower values of a metric are better
P = TypeVar("P", bound="Problem")


class Round(Protocol):
    """Round k, all an algorithm sees of the world."""

    @property
    def k(self) -> int: ...
    @property
    def computes(self) -> Tensor: ...  # (clients, 1) bool: who takes a gradient in this round
    @property
    def p(self) -> Tensor: ...  # (clients, 1): the probability that a client computes
    @property
    def place(self) -> Tensor: ...  # (clients,): a client's number in its own run
    @property
    def clients(self) -> int: ...  # how many clients a run has
    def grad(self, x: Tensor) -> Tensor: ...  # fresh stochastic gradients, zero rows where idle
    def pull(self, x: Tensor) -> Tensor: ...  # Â x: receivers weigh, rows sum to one
    def push(self, y: Tensor) -> Tensor: ...  # B̂ y: senders weigh, columns sum to one
    @property
    def kept(
        self,
    ) -> Tensor: ...  # (clients, 1) the diagonal of B̂: what of a push stays with its sender
    def gossip(self, x: Tensor) -> Tensor: ...  # Ŵ x: symmetric and doubly stochastic
    def gossip_difference(self, x: Tensor) -> Tensor: ...  # (Ŵ - I) x as Σ_j ŵ_ij (x_j - x_i)
    def average(
        self, x: Tensor
    ) -> Tensor: ...  # the mean over all clients of a run: what a server sees
    @property
    def lead(
        self,
    ) -> Tensor: ...  # (clients, 1): a client's part of the step; 1 unless there is a root
    @property
    def restarts(
        self,
    ) -> Tensor: ...  # (clients, 1) bool: whose tracker starts anew after this round


class Code(Protocol):
    """A short form of rows on a wire, exact for the rows that it is used for."""

    def size(self, columns: int, item: int) -> int: ...  # bytes of a row of numbers of `item` bytes
    def pack(self, rows: Tensor) -> Tensor: ...  # (rows, size) bytes
    def unpack(
        self, data: Tensor, columns: int, dtype: torch.dtype
    ) -> Tensor: ...  # (rows, columns)


class IntervalCode(Protocol):
    """A short form of rows that says an interval for every number; a receiver goes towards its nearer end.

    So it goes no farther than it would towards the number itself, and stays where it is inside the interval.
    """

    def size(self, columns: int, item: int) -> int: ...
    def pack(self, rows: Tensor) -> Tensor: ...
    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The middles of the intervals, and half their lengths."""
        ...


class CodedRound(Round, Protocol):
    """A round of a runtime whose links carry short forms, too.

    What a message says of a model depends on its sender's round, which may be another than the receiver's.
    """

    def pull(self, x: Tensor, code: Callable[[int], IntervalCode] | None = None) -> Tensor: ...
    def push(self, y: Tensor, code: Code | None = None) -> Tensor: ...
    def some(self, x: Tensor, how: str, columns: Callable[[int], slice]) -> Tensor:
        """x with some columns pulled or pushed, as `how` says."""
        ...


class ServerRound(Round, Protocol):
    """A round of a runtime whose server knows the weights of clients in the objective."""

    @property
    def client_weight(self) -> Tensor: ...  # (clients, 1): n w_i / Σ w, by which `grad` has scaled


class ActiveLinks(NamedTuple):
    """The links that work: (links,) in one round, or (rounds, links)."""

    pull: Bools  # links that carry models
    push: Bools | None = None  # links that carry trackers; None: the same, in one message

    @property
    def pushing(self) -> Bools:
        return self.pull if self.push is None else self.push

    @property
    def used(self) -> Bools:
        """Links that carry anything."""
        return self.pull if self.push is None else self.pull | self.push

    def at(self, which: int | slice) -> ActiveLinks:
        """One round or a range of rounds."""
        return ActiveLinks(self.pull[which], None if self.push is None else self.push[which])


class Roles(NamedTuple):
    """How links weigh and who steps, where that changes between rounds: one row per round, or one round."""

    a: Floats  # (rounds, links) pull weights
    b: Floats  # (rounds, links) push weights
    lead: Floats  # (rounds, clients): see `Round`
    restarts: Bools  # (rounds, clients)

    def at(self, which: int | slice) -> Roles:
        """One round or a range of rounds."""
        return Roles(self.a[which], self.b[which], self.lead[which], self.restarts[which])


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
    def links(self, rounds: range) -> ActiveLinks: ...


@runtime_checkable
class HasRoles(Protocol):
    """An availability in which the weights of links and the parts of clients change between rounds."""

    @property
    def roots(self) -> tuple[int, ...]: ...  # the clients that lead, one after the other
    def roles(self, rounds: range) -> Roles: ...


class Evaluation(NamedTuple):
    """How good models are on unseen data (or on the objective, where there is none), one entry per model."""

    loss: Tensor
    metrics: dict[str, Tensor]  # by the names that `Problem.metrics` declares

    def part(self, which: slice) -> Evaluation:
        return Evaluation(
            self.loss[which], {name: values[which] for name, values in self.metrics.items()}
        )


class Minibatches(NamedTuple):
    """Whose mini-batches of round k are drawn: all the randomness there is in a gradient."""

    rows: Ints  # (n,) the client in this problem
    keys: Words  # (n,) the key of its run's stream "batch"
    places: Ints  # (n,) its number in its own run
    k: int

    def part(self, which: Ints | slice) -> Minibatches:
        return Minibatches(self.rows[which], self.keys[which], self.places[which], self.k)


@runtime_checkable
class Problem(Protocol):
    """Models and data turned into gradients, loss and accuracy for the clients asked for.

    Where clients keep more than the parameters that methods work on, `grad`, `full` and `evaluate` take
    models with these `statistics` as further columns behind the parameters; `grad` brings them up to date
    there. First come running statistics (BatchNorm), which are exchanged with the models, then `private`
    columns, which never leave their client (personal layers). The round adds and takes off these columns,
    so that methods see parameters only.
    """

    @property
    def clients(self) -> int: ...
    @property
    def parameters(self) -> int: ...
    @property
    def work(self) -> float: ...  # multiplications in one `full` call, to decide what is affordable
    def draw(self: P, seed: int) -> P: ...  # the problem of one run: partitions are drawn here
    def start(self, seed: int) -> Tensor: ...  # (clients, parameters) initial models
    @property
    def metrics(self) -> Mapping[str, Better]: ...  # what `evaluate` gives beside the loss
    @property
    def private(
        self,
    ) -> int: ...  # how many of the last columns of `statistics` stay with their client
    def statistics(
        self, seed: int
    ) -> Tensor: ...  # (clients, columns) what a client keeps besides; mostly none
    def join(self: P, others: Sequence[P]) -> P: ...  # several runs side by side, this one first
    def to(self: P, device: torch.device, dtype: torch.dtype) -> P: ...
    def grad(
        self, x: Tensor, batches: Minibatches
    ) -> Tensor: ...  # stochastic gradients at x (n, columns)
    def full(
        self, x: Tensor, rows: Ints
    ) -> tuple[Tensor, Tensor]: ...  # exact F_i(x_i), ∇F_i(x_i) of `rows`
    def evaluate(self, x: Tensor, rows: Ints | None = None) -> Evaluation:
        """Test loss and metrics of models x (n, columns).

        Model i is evaluated on the test data of client rows[i], where clients have their own; on those of all
        clients where rows[i] is -1 or `rows` is None.
        """
        ...


# --- what a problem may also be able to do; ask with isinstance -----------------------------------------
@runtime_checkable
class HasOptimum(Protocol):
    """Knows the minimiser of Σ w_i F_i, (parameters,)."""

    def optimum(self, weights: ArrayLike | None = None) -> Tensor: ...


@runtime_checkable
class HasIdentity(Protocol):
    """Can be told from another problem when a run is resumed: by its settings in words, and its numbers."""

    @property
    def identity(self) -> tuple[dict[str, str], list[Tensor | Ints]]: ...


@runtime_checkable
class HasValidation(Protocol):
    """Has data to choose by that are not its test data."""

    @property
    def validation_source(self) -> str: ...  # which data these are, in words
    def on_validation_data(self) -> Problem: ...  # the same problem evaluated on them


@runtime_checkable
class HasBatches(Protocol):
    """Holds samples, of which a gradient reads some."""

    def batches(self, rows: Ints) -> Ints: ...  # how many samples a gradient of each client reads


@runtime_checkable
class HasSamples(HasBatches, Protocol):
    """Can say what each client holds."""

    def sizes(self) -> Ints: ...  # (clients,) samples
    def labels(
        self,
    ) -> Ints | None: ...  # (clients, classes) samples of each class; None without classes


@runtime_checkable
class HasModel(Protocol):
    """Its models (columns,) are those of a torch module."""

    def state_dict(
        self, x: Tensor
    ) -> dict[str, Tensor]: ...  # all that the module's own has, by name
    def module(self, x: Tensor) -> nn.Module: ...  # the user's module with this model in it


@runtime_checkable
class HasClientNames(Protocol):
    """Its clients may have names, by which they are joined to those of a network."""

    @property
    def client_names(self) -> tuple[str, ...] | None: ...
    def reordered(self, order: Ints) -> Problem: ...  # client order[i] becomes client i


@runtime_checkable
class HasClientWeights(Protocol):
    """Its objective is Σ w_i F_i / Σ w_i: `grad` and `full` are those of (n w_i / Σ w) F_i, n the clients."""

    @property
    def weighting(self) -> str: ...  # "equal", "samples" or "given"
    @property
    def loss_scales(self) -> Floats | None: ...  # (clients,) n w_i / Σ w; None where all are one


class TensorLayout(Protocol):
    """Named tensors that lie one after the other in a flat vector."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def shapes(self) -> tuple[torch.Size, ...]: ...
    def unflatten(
        self, x: Tensor
    ) -> dict[str, Tensor]: ...  # views into x (…, parameters), by name


@runtime_checkable
class HasLayout(Protocol):
    """Its flat vectors hold named tensors, about which processes that exchange them must agree."""

    @property
    def layout(self) -> TensorLayout: ...


class LinearData(NamedTuple):
    """A linear problem as compiled loops read it."""

    numbers: Ints  # client i holds the samples numbers[offsets[i] : offsets[i + 1]]
    offsets: Ints  # (clients + 1,)
    inputs: NDArray[np.generic]  # (samples, features): bytes, or floats of the models' type
    targets: Ints  # (samples,) classes
    scale: float  # what turns an input into a feature
    classes: int
    bias: bool
    loss: int  # its number in `problems.losses.LOSSES`


@runtime_checkable
class CompiledGradient(HasBatches, Protocol):
    """Has gradients that compiled loops compute, where `linear_data` is not None."""

    def linear_data(self, dtype: torch.dtype) -> LinearData | None: ...

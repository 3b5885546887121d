"""The contract, on one screen: what flows between the parts of the house.

    problem + network + participation ──rounds──▶ algorithm.step ──state──▶ recorder

Tensors are (clients, parameters). The leading axis is *the clients this process holds*: all of
them, of all runs of a batch, in the simulator; a block in the distributed runtime; one in a peer.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spodgt.errors import InvalidInput

if TYPE_CHECKING:
    from spodgt.network import Network

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LinkPair = tuple[Bools, Bools]  # links that carry models and links that carry trackers: mostly one array
Rate = Any  # a step size: a number, a (clients, 1) tensor with one per client, or a schedule
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


class Schedule(ABC):
    """A step size that changes with the rounds; a frozen dataclass of numbers."""

    name: ClassVar[str]

    @abstractmethod
    def at(self, k: Any) -> Rate:
        """The step size of round k ≥ 1, the one that leads to x[k]; `k` may be (clients, 1)."""


def positive(value: Any, name: str, *, whole: bool = False) -> Rate:
    """A number above 0, or one per client as a (clients, 1) tensor; anything else is the caller's mistake."""
    if isinstance(value, Schedule):
        return value
    number: Any = None if isinstance(value, bool) else value
    if isinstance(number, Integral if whole else Real) and 0 < float(number) < math.inf:
        return int(float(number)) if whole else float(number)
    if isinstance(value, list | tuple | np.ndarray) and not whole:
        with contextlib.suppress(TypeError, ValueError):
            value = torch.from_numpy(np.array(value, np.float64).reshape(-1, 1))
    if isinstance(value, Tensor) and value.numel() and bool(((value > 0) & (value < math.inf)).all()):
        return value
    kind, example = ("a whole number", 5) if whole else ("a number", 0.01)
    field = name.split(maxsplit=1)[0]
    raise InvalidInput(f"{name} must be {kind} above 0, got {value!r}; use {field}={example}.")


# What a method does where some are idle: goes on without them, waits for them and pays for it, or refuses.
Sporadic = Literal["yes", "waits", "no"]


@dataclass(frozen=True)
class Traits:
    """What a method needs and gives; checks, tables and tests read it."""

    source: str  # citation key of docs/references.md
    mixing: Literal["pull+push", "pull", "push", "gossip", "none", "server"]
    sporadic_clients: Sporadic
    sporadic_links: Sporadic
    tracking: bool = False  # follows the global gradient, not the client's own
    local_steps: bool = False  # several gradients between two exchanges
    exact: Literal["yes", "all active", "no"] = "no"  # reaches the optimum with a constant step
    vectors: int = 1  # parameter vectors in one message
    talks: Literal["all", "pair", "client"] = "all"  # in a round: everybody, a random pair or a random client
    steps: Literal["per client", "common", "constant", "none"] = "common"  # the freest step size it allows
    momentum: Literal["kept", "restarted", "none"] = "kept"  # restarted: by every exchange after local steps


class Algorithm(ABC):
    """A method: a frozen dataclass whose fields are hyperparameters; `init` and `step` are pure.

    It never loops, counts, logs or draws randomness. State is a NamedTuple of (clients, …) tensors
    that begins with x.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]

    def __post_init__(self) -> None:
        for field in ("step_size", "server_step", "averaging", "local_steps"):
            value = getattr(self, field, None)
            if value is not None:
                whole = field == "local_steps"
                object.__setattr__(self, field, positive(value, f"{field} of {self.name}", whole=whole))

    @abstractmethod
    def init(self, x: Tensor, round: Round) -> Any:
        """The state after round 0, in which clients only compute."""

    @abstractmethod
    def step(self, state: Any, round: Round) -> Any:
        """The state after this round."""

    def fit(self, availability: Availability) -> Algorithm:
        """The same method with the fields that depend on a run filled in, such as K of `k-gt`."""
        return self

    def uses(self, availability: Availability, network: Network) -> Availability:
        """What the method makes of the availability: some use every link in every round."""
        return availability

    def weighs(self, network: Network) -> Network:
        """The network with the weights the method prescribes: two who gossip meet halfway."""
        return network


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

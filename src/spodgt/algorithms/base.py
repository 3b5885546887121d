"""The interface of methods: `Algorithm`, its state, and the `Traits` that it declares."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from inspect import isfunction
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from spodgt._util.deprecation import renamed_attributes
from spodgt.algorithms import deprecated
from spodgt.algorithms.hyperparameters import (
    ByClient,
    Count,
    Fraction,
    NotNegative,
    Number,
    Positive,
    Rate,
    Schedule,
    Share,
    check_fields,
    fraction,
    positive,
    positive_integer,
)
from spodgt.network import Network
from spodgt.participation.availability import AvailabilityOverride, NoLinks, RandomActivation
from spodgt.types import Availability, Round

# With the names of other modules that method files need, so that one import line suffices there.
__all__ = [
    "Algorithm",
    "Availability",
    "ByClient",
    "Count",
    "Fraction",
    "GradientState",
    "HasOverlap",
    "HasStepSize",
    "LocalSteps",
    "Mixing",
    "Network",
    "NotNegative",
    "Number",
    "Positive",
    "Rate",
    "Round",
    "Rule",
    "S",
    "Schedule",
    "Share",
    "Sporadic",
    "State",
    "Tensor",
    "TrackingState",
    "Traits",
    "exchanges",
    "fraction",
    "positive",
    "positive_integer",
]


# --- states ---------------------------------------------------------------------------------------
class State(Protocol):
    """The state of a method between rounds: a NamedTuple of (clients, …) tensors, x first."""

    @property
    def x(self) -> Tensor: ...  # (clients, parameters): the models
    @property
    def _fields(self) -> tuple[str, ...]: ...
    def __iter__(self) -> Iterator[Tensor]: ...


S = TypeVar("S", bound=State, default=Any)
R = TypeVar("R", bound=Round, default=Any)  # `Round`, or a round of `algorithms.rounds`


class GradientState(NamedTuple):
    """Models and the gradients at these models."""

    x: Tensor
    g: Tensor


class TrackingState(NamedTuple):
    """Models, trackers of the global gradient, and the gradients contained in the trackers."""

    x: Tensor
    y: Tensor
    g: Tensor


# --- traits ---------------------------------------------------------------------------------------
# The gradient of an idle client: zero; zero, with those of active clients times 1/p; or its last.
Rule = Literal["zero", "importance", "memory"]

Mixing = Literal["pull", "push", "gossip"]

# Partial participation: supported; every client or link is awaited, at its cost; or refused.
Sporadic = Literal["yes", "waits", "no"]


@deprecated.accept_old_traits
@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a method, for checks, tables, runtimes and tests."""

    source: str  # citation key of the references page; "spodgt" for methods without a paper
    mixing: Literal["pull+push", "pull", "push", "gossip", "none", "server"]
    sporadic_clients: Sporadic
    sporadic_links: Sporadic
    state: tuple[str, ...] = ()  # fields of the state, in order; filled in from `Algorithm[State]`
    # state fields that a step mixes unchanged, in the order of the calls
    mixed_fields: tuple[tuple[Mixing, str], ...] = ()
    tracking: bool = False  # tracks the global gradient
    local_steps: bool = False  # several gradients between two exchanges
    exact: Literal["yes", "all active", "no"] = "no"  # reaches the optimum with a constant step
    vectors: int = 1  # parameter vectors in one message
    # active in a round: all clients; a random pair; a random pair, of which the first computes; or
    # a random client with one in- and one out-neighbour
    activation: Literal["all", "edge", "edge-initiator", "node"] = "all"
    idle_steps: bool = True  # with tracking: clients step in rounds without a new gradient, too
    steps: Literal["per client", "common", "constant", "none"] = "common"  # allowed step sizes
    momentum: Literal["kept", "restarted", "none"] = "kept"  # restarted: at each exchange
    direction: bool = True  # a step is η times one direction, which layers may transform
    rule: Rule | None = None  # gradients of idle clients, if the step is Spod-GT's
    two_way: bool = False  # needs the reverse of every link, as gossip does
    root: bool = False  # routes over spanning trees: one client, the root, takes the steps
    degree_reweighting: bool = False  # mixing weights depend on the number of active links
    compressed: bool = False  # messages are compressed, which not every runtime supports
    # compiled loops for `step`: "linear" if it is linear in the rows of the state
    # (`kernels.compiled_rounds`); "gradient-tracking" if it is Spod-GT's, also in virtual time
    compiled: str | None = None
    asynchronous: bool = False  # in virtual time, clients do not wait for each other
    uses_stale_models: bool = False  # in virtual time, clients weight the last models received

    @property
    def waits(self) -> bool:
        """Whether all clients start every round together in virtual time."""
        return not self.asynchronous or self.sporadic_links == "waits"

    @property
    def directed(self) -> bool:
        """Whether links may be one-way."""
        return self.mixing != "gossip" and not self.two_way

    @property
    def uses_links(self) -> bool:
        """Whether clients exchange messages over the links of the network."""
        return self.mixing not in ("none", "server")

    @property
    def uses_trees(self) -> bool:
        """Whether messages are routed over spanning trees."""
        return self.root or self.two_way


# --- methods --------------------------------------------------------------------------------------
@typing.runtime_checkable
class HasStepSize(Protocol):
    """A method with a step size."""

    @property
    def step_size(self) -> Rate | None: ...


@typing.runtime_checkable
class HasOverlap(Protocol):
    """A method that bounds staleness: in virtual time, rounds ahead of the in-neighbours."""

    @property
    def overlap(self) -> int: ...


_SETUP_HOOKS = {"fit", "adapt_availability", "with_mixing_weights", "message", *deprecated.HOOKS}


@renamed_attributes(deprecated.HOOKS)
class Algorithm(ABC, Generic[S, R]):
    """A method: a frozen dataclass of hyperparameters with pure functions `init` and `step`.

    It never loops over rounds, counts, logs or draws random numbers. `Algorithm[State]` declares
    the type of the state, `Algorithm[State, TreeRound]` also that of the round.

    Arguments of its methods:
        x: (clients, parameters) initial models.
        state: The state before a round, which must not be modified.
        round: Round 0 in `init`, round k ≥ 1 in `step`.
        availability: Active clients and links of a run.
        network: The links and their mixing weights.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]

    def __init_subclass__(cls) -> None:
        """Fill in `traits.state`; a class with a new step does not inherit the compiled one."""
        super().__init_subclass__()
        deprecated.adopt_old_hooks(cls)
        inherited = getattr(super(cls, cls), "traits", None)
        if "traits" in vars(cls):
            state = _state_fields(cls) or cls.traits.state
            cls.traits = replace(cls.traits, state=state)
        if inherited is not None and _changes_step(cls) and _same_step(cls.traits, inherited):
            cls.traits = replace(cls.traits, rule=None, compiled=None)

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @abstractmethod
    def init(self, x: Tensor, round: R) -> S:
        """The state after round 0, in which clients only compute."""

    @abstractmethod
    def step(self, state: S, round: R) -> S:
        """The state after a round."""

    @property
    def period(self) -> int:
        """Rounds between exchanges: clients exchange in rounds k divisible by it.

        Metrics are those of the models after the last exchange, not between local steps.
        """
        return 1

    def message(self, columns: int, item: int) -> int:
        """Bytes of a message about models of `columns` numbers of `item` bytes each."""
        return self.traits.vectors * columns * item

    def fit(self, availability: Availability) -> Algorithm:
        """The same method with the fields that depend on `availability`, such as K of `k-gt`."""
        return self

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        """The part of `availability` on `network` that the method uses, as its traits declare.

        mixing "server" or "none": no links. activation other than "all": the clients drawn.
        "waits": all clients or links in every round. Gossip: one draw per pair of links.
        """
        traits = self.traits
        if not traits.uses_links:
            return NoLinks(availability)
        if traits.activation != "all":
            return RandomActivation(
                availability,
                network,
                pairs=traits.activation != "node",
                computing=traits.steps != "none",
                partner=traits.activation != "edge-initiator",
            )
        all_clients = traits.sporadic_clients == "waits"
        all_links = traits.sporadic_links == "waits"
        is_symmetric = traits.mixing == "gossip" and traits.sporadic_links == "yes"
        if not all_clients and not all_links and not is_symmetric:
            return availability
        return AvailabilityOverride(
            availability,
            all_clients=all_clients,
            all_links=all_links,
            pairs=network.reverse if is_symmetric else None,
        )

    def with_mixing_weights(self, network: Network) -> Network:
        """The network with the mixing weights of the method, such as ½ for random pairs."""
        if self.traits.activation == "all":
            return network
        half = np.full(network.links, 0.5)
        return replace(network, a=half, b=half, w=None if network.w is None else half)


def _state_fields(cls: type[Algorithm]) -> tuple[str, ...] | None:
    """The fields of the state in `Algorithm[State]`, declared by the class or its nearest base."""
    for parent in cls.__mro__:
        for base in vars(parent).get("__orig_bases__", ()):
            for argument in typing.get_args(base):
                if hasattr(argument, "_fields"):
                    return tuple(argument._fields)
    return None


def _changes_step(cls: type[Algorithm]) -> bool:
    """Whether the class defines methods other than those that prepare a run."""
    methods = {
        name for name, value in vars(cls).items() if isfunction(value) and not name.startswith("__")
    }
    return bool(methods - _SETUP_HOOKS)


def _same_step(traits: Traits, inherited: Traits) -> bool:
    """Whether traits are inherited, or are other traits that declare the step of the parent."""
    if traits is inherited:
        return True
    is_tracking = traits.compiled == "gradient-tracking"
    return is_tracking and (traits.rule, traits.compiled) == (inherited.rule, inherited.compiled)


class LocalSteps(Algorithm[S]):
    """A method with K local steps between exchanges: links are used in every K-th round only."""

    local_steps: int | None  # K; None until `fit` sets it

    @property
    def period(self) -> int:
        return self.local_steps or 1

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        base = super().adapt_availability(availability, network)
        return AvailabilityOverride(base, every=self.local_steps or 1)


def exchanges(k: int | Tensor, K: int | Tensor) -> Tensor:
    """Whether round k ends K local steps: a bool, or (clients, 1) if k or K differ per client."""
    due = k % K == 0
    return torch.tensor(due) if isinstance(due, bool) else due

"""What every method is: `Algorithm`, the `Traits` it declares, its state and its step sizes."""

from __future__ import annotations

import contextlib
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from inspect import isfunction
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.network.names import values_by_client
from spodgt.participation.availability import AvailabilityOverride, NoLinks, RandomActivation
from spodgt.types import Availability, Round

# With the words of other rooms that method files need, so that one import line serves them.
__all__ = [
    "Algorithm", "Availability", "ByClient", "Count", "Fraction", "GradientState", "HasOverlap",
    "HasStepSize", "LocalSteps", "Mixing", "Network", "NotNegative", "Number", "Positive", "Rate", "Round",
    "Rule", "S", "Schedule", "Sporadic", "State", "Tensor", "TrackingState", "Traits", "exchanges",
    "fraction", "positive",
]  # fmt: skip


# --- states ------------------------------------------------------------------------------------------
class State(Protocol):
    """What a method carries from round to round: a NamedTuple of (clients, …) tensors that begins with x."""

    @property
    def x(self) -> Tensor: ...  # (clients, parameters): the models
    @property
    def _fields(self) -> tuple[str, ...]: ...
    def __iter__(self) -> Iterator[Tensor]: ...


S = TypeVar("S", bound=State, default=Any)
R = TypeVar("R", bound=Round, default=Any)  # `Round`, or a round of `algorithms.rounds`


class GradientState(NamedTuple):
    """Models and the gradients taken there."""

    x: Tensor
    g: Tensor


class TrackingState(NamedTuple):
    """Models, trackers of the global gradient, and the gradients that the trackers hold."""

    x: Tensor
    y: Tensor
    g: Tensor


# --- fields ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ByClient:
    """Numbers by the name of a client, until a network tells the order of the clients."""

    values: tuple[tuple[str, float], ...]

    def resolve(self, network: Network, key: str) -> Tensor:
        """(clients, 1) in the order of the network's clients; `key` names the field in errors."""
        labels = [network.label(client) for client in range(network.clients)]
        ordered = values_by_client(dict(self.values), labels, key)
        return torch.tensor(ordered, dtype=torch.float64).reshape(-1, 1)

    def to_dict(self) -> dict[str, float]:
        return dict(self.values)

    def __mul__(self, other: Tensor) -> typing.NoReturn:
        raise InvalidInput(
            f"{self} has no order outside a network; give it to spodgt.train or compare."
        )

    __rtruediv__ = __mul__


def positive(
    value: object, name: str, *, whole: bool = False, zero: bool = False, most: float = math.inf
) -> Rate:
    """A number above 0 and at most `most`; with `zero`, also 0. Or one per client, in order or by name.

    `name` is the argument and its owner for the error message, such as "step_size of spod-gt".
    """
    if isinstance(value, Schedule | ByClient):
        return value  # type: ignore[return-value]
    if isinstance(value, Mapping) and value and not whole:
        numbers = [(str(client), positive(each, name)) for client, each in value.items()]
        if all(isinstance(number, float) for _, number in numbers):
            return ByClient(tuple(numbers))  # type: ignore[arg-type, return-value]
    if not isinstance(value, bool) and isinstance(value, Integral if whole else Real):
        number = int(value) if isinstance(value, Integral) and whole else float(value)
        if (0 < number < (2**53 + 1 if whole else math.inf) and number <= most) or (
            zero and number == 0
        ):
            return number
    if isinstance(value, list | tuple | np.ndarray) and not whole:
        with contextlib.suppress(TypeError, ValueError):
            value = torch.from_numpy(np.array(value, np.float64).reshape(-1, 1))
    if isinstance(value, Tensor):
        value = value.detach()
        if value.numel() and bool(((value > 0) & (value < math.inf)).all()):
            return value
        value = value.flatten().tolist()  # one line
    kind, example = ("a whole number", 5) if whole else ("a number", 0.01)
    argument = name.split(maxsplit=1)[0]
    kind += " above 0" + (f" and at most {most:g}" if most < math.inf else "")
    raise InvalidInput(f"{name} must be {kind}, got {value!r}; use {argument}={example}.")


def fraction(value: object) -> bool:
    """Whether it is a number in [0, 1), such as the weight of the past in a running mean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


Number = float | Tensor  # one for all clients, or (clients, 1)
Positive = Annotated[float, positive]  # a field of this type is checked by the function
Count = Annotated[int, partial(positive, whole=True)]
NotNegative = Annotated[float, partial(positive, zero=True)]
Fraction = Annotated[float, partial(positive, zero=True, most=1.0)]  # 0 and 1 included


def _check_fields(owner: Algorithm | Schedule) -> None:
    try:
        hints = typing.get_type_hints(type(owner), include_extras=True)
    except NameError as error:
        raise InvalidInput(
            f"fields of {owner.name} need their types at run time, but {error}; import them always."
        ) from error
    for each in fields(owner):  # type: ignore[arg-type]
        value, hint = getattr(owner, each.name), hints[each.name]
        for part in (hint, *typing.get_args(hint)):  # the type, or the parts of `Count | None`
            for check in getattr(part, "__metadata__", ()):
                if callable(check) and value is not each.default:
                    object.__setattr__(
                        owner, each.name, check(value, f"{each.name} of {owner.name}")
                    )


# --- step sizes --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Schedule(ABC):
    """A step size that changes with the rounds; a frozen dataclass of numbers."""

    name: ClassVar[str]
    start: Annotated[Number, positive]  # in round 1, or where the warm-up ends
    # rounds in which the step size grows from nearly nothing to `start`
    warmup: Annotated[int, partial(positive, whole=True, zero=True)] = field(
        default=0, kw_only=True, repr=False
    )

    def __post_init__(self) -> None:
        _check_fields(self)

    @abstractmethod
    def at(self, k: int | Tensor) -> Number:
        """The step size of round k ≥ 1 after the warm-up; `k` may be (clients, 1)."""

    def warmed(self, k: int | Tensor) -> Number:
        """The step size of round k ≥ 1, the one that leads to x[k]: start · k/warmup at first, then `at`."""
        if isinstance(self.warmup, int) and self.warmup == 0:
            return self.at(k)
        rounds, until = torch.as_tensor(k, dtype=torch.float64), torch.as_tensor(self.warmup)
        rate = self.at((rounds - until).clamp(min=1)) * (rounds / until.clamp(min=1)).clamp(max=1)
        return torch.as_tensor(rate)

    def __mul__(self, other: Tensor) -> typing.NoReturn:
        raise InvalidInput(
            f"{self} has no value outside a round; build the method with spodgt.method."
        )

    __rtruediv__ = __mul__


# A step size: a number, one per client, or a schedule of these. One per client by name is a `ByClient` until
# a run is made, which puts it into the order of the clients; no step sees it.
Rate = Annotated[float | Tensor | Schedule, positive]


@typing.runtime_checkable
class HasStepSize(Protocol):
    @property
    def step_size(self) -> Rate | None: ...


@typing.runtime_checkable
class HasOverlap(Protocol):
    """In virtual time a client may be ahead of its in-neighbours by so many rounds."""

    @property
    def overlap(self) -> int: ...


# --- declarations ------------------------------------------------------------------------------------
# What an idle client's gradient counts as: zero, zero with others weighed by 1/p, or its last one.
Rule = Literal["zero", "importance", "memory"]

Mixing = Literal["pull", "push", "gossip"]

# What a method does where some are idle: goes on without them, waits for them and pays for it, or refuses.
Sporadic = Literal["yes", "waits", "no"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a method needs and gives; checks, tables, runtimes and tests read it."""

    source: str  # citation key of docs/references.md; "spodgt" for methods without a paper
    mixing: Literal["pull+push", "pull", "push", "gossip", "none", "server"]
    sporadic_clients: Sporadic
    sporadic_links: Sporadic
    state: tuple[str, ...] = ()  # the fields of its state, in order; `Algorithm[State]` fills it in
    mixed_fields: tuple[
        tuple[Mixing, str], ...
    ] = ()  # fields that a step mixes as they are, in its order
    tracking: bool = False  # follows the global gradient, not the client's own
    local_steps: bool = False  # several gradients between two exchanges
    exact: Literal["yes", "all active", "no"] = "no"  # reaches the optimum with a constant step
    vectors: int = 1  # parameter vectors in one message
    # in a round: everybody, a random pair, a random pair of which the one that woke computes, a random client
    activation: Literal["all", "edge", "edge-initiator", "node"] = "all"
    steps: Literal["per client", "common", "constant", "none"] = (
        "common"  # the freest step size it allows
    )
    momentum: Literal["kept", "restarted", "none"] = (
        "kept"  # restarted: by every exchange after local steps
    )
    direction: bool = True  # a step is η times one direction, which layers may change
    rule: Rule | None = (
        None  # for idle clients' gradients, where the state is that of gradient tracking
    )
    two_way: bool = False  # needs the reverse of every link, as gossip does
    root: bool = False  # one client leads: all gradients go to it, and all models come from it
    degree_reweighting: bool = False  # links weigh by how many of them work in a round
    compressed: bool = False  # messages are in a short form, which not every runtime has
    # how compiled loops may run `step`: "linear", if it is linear in the rows of the state
    # (`kernels.compiled_rounds`); "gradient-tracking", if it is Spod-GT's, in virtual time, too
    compiled: str | None = None
    # in virtual time: a client goes on with what has arrived; others begin every round together
    asynchronous: bool = False
    uses_stale_models: bool = (
        False  # in virtual time: a client weighs the last models it knows, new or old
    )

    @property
    def waits(self) -> bool:
        """Whether clients begin every round together in virtual time."""
        return not self.asynchronous or self.sporadic_links == "waits"

    @property
    def directed(self) -> bool:
        """Whether links may be one-way."""
        return self.mixing != "gossip" and not self.two_way


class Algorithm(ABC, Generic[S, R]):
    """A method: a frozen dataclass whose fields are hyperparameters; `init` and `step` are pure.

    It never loops over rounds, counts, logs or draws randomness. Its methods take:

    Args:
        x: (clients, parameters) initial models.
        state: the state before a round, which stays as it is.
        round: what the clients see of the round: 0 in `init`, k ≥ 1 in `step`.
        availability: who computes and which links work in a run, a function of the round.
        network: who can talk, and with which weights.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]

    def __init_subclass__(cls) -> None:
        """Fill in `traits.state`. A step of its own gives up an inherited compiled one."""
        super().__init_subclass__()
        hooks = {
            "fit",
            "adapt_availability",
            "with_mixing_weights",
            "message",
        }  # these set the scene and leave the step alone
        own = {
            key
            for key, value in vars(cls).items()
            if isfunction(value) and not key.startswith("__")
        }
        if "traits" in vars(cls):
            bases = (
                base for parent in cls.__mro__ for base in vars(parent).get("__orig_bases__", ())
            )
            named = (
                state for base in bases for state in typing.get_args(base)
            )  # S of Algorithm[S]
            names = (state._fields for state in named if hasattr(state, "_fields"))
            cls.traits = replace(cls.traits, state=next(names, cls.traits.state))
        elif own - hooks and hasattr(cls, "traits"):
            cls.traits = replace(cls.traits, rule=None, compiled=None)

    def __post_init__(self) -> None:
        _check_fields(self)

    @abstractmethod
    def init(self, x: Tensor, round: R) -> S:
        """The state after round 0, in which clients only compute."""

    @abstractmethod
    def step(self, state: S, round: R) -> S:
        """The state after a round."""

    @property
    def period(self) -> int:
        """Rounds from one exchange to the next: round k is an exchange where k is a multiple of it.

        Metrics are those of the models after the last exchange, not of models between local steps.
        """
        return 1

    def message(self, columns: int, item: int) -> int:
        """Bytes of a message about models of so many numbers, of `item` bytes each."""
        return self.traits.vectors * columns * item

    def fit(self, availability: Availability) -> Algorithm:
        """The same method with the fields that depend on a run filled in, such as K of `k-gt`."""
        return self

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        """What the method makes of the availability, by default what its traits say.

        A server or no mixing: no links. "waits": everybody, in every round. Gossip: one draw per pair.
        A random pair or client talks: those who are drawn.
        """
        traits = self.traits
        if traits.mixing in ("none", "server"):
            return NoLinks(availability)
        if traits.activation != "all":
            two, who = (
                traits.activation in ("edge", "edge-initiator"),
                traits.activation != "edge-initiator",
            )
            return RandomActivation(
                availability, network, two, computing=traits.steps != "none", partner=who
            )
        clients, links = traits.sporadic_clients == "waits", traits.sporadic_links == "waits"
        pairs = (
            network.reverse
            if traits.mixing == "gossip" and traits.sporadic_links == "yes"
            else None
        )
        if not clients and not links and pairs is None:
            return availability
        return AvailabilityOverride(availability, all_clients=clients, all_links=links, pairs=pairs)

    def with_mixing_weights(self, network: Network) -> Network:
        """The network with the method's own mixing weights, such as ½ where two random clients meet."""
        if self.traits.activation == "all":
            return network
        half = np.full(network.links, 0.5)
        return replace(network, a=half, b=half, w=None if network.w is None else half)


class LocalSteps(Algorithm[S]):
    """A method that takes K local steps between two exchanges: links are used in every K-th round only."""

    local_steps: int | None  # K; None until `fit` has chosen it

    @property
    def period(self) -> int:
        return self.local_steps or 1

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        return AvailabilityOverride(
            super().adapt_availability(availability, network), every=self.local_steps or 1
        )


def exchanges(k: int | Tensor, K: int | Tensor) -> Tensor:
    """Whether round k ends K local steps: a scalar, or (clients, 1) where K differs between runs."""
    due = k % K == 0
    return torch.tensor(due) if isinstance(due, bool) else due

"""What every method is: `Algorithm`, its declared `Traits`, and step sizes."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.types import Availability, Round

Rate = Any  # a step size: a number, a (clients, 1) tensor with one per client, or a schedule


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


# What an idle client's gradient counts as: zero, zero with others weighed by 1/p, or its last one.
Rule = Literal["zero", "importance", "memory"]

Mixing = Literal["pull", "push", "gossip"]

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
    state: tuple[str, ...] = ("x",)  # the fields of its state, in order
    mixes: tuple[tuple[Mixing, str], ...] = ()  # fields that a step mixes as they are, in its order
    rule: Rule | None = None  # for idle clients' gradients, where the state is x, y, g of gradient tracking
    compiled: str | None = None  # the compiled step of `kernels.STEPS` that does what `step` does


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

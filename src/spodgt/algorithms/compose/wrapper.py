"""A method around another one: it changes what the inner method is given, and leaves the rest to it.

A `Layer` is a wrapper that `method` adds by a keyword. A gradient layer changes gradients before the inner
method sees them; what a tracker sums up is then the changed gradients. A direction layer changes what the
step size is multiplied with, such as the tracker; trackers and gradients stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import abstractmethod
from collections import namedtuple
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, HasStepSize, LocalSteps, Rate, S, State
from spodgt.algorithms.rounds import TreeRound
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.types import Availability, Round

Memory = tuple[Tensor, ...]  # what a layer keeps of every client: (clients, …) each


@dataclass(frozen=True)
class Wrapper(Algorithm[S]):
    base: Algorithm[S]

    def declares(self, suffix: str, *more: str, **changes: object) -> None:
        """Take the name and traits of `base`, with `more` fields in the state; it is not compiled.

        A layer that is linear says `compiled=self.traced`.
        """
        traits = self.base.traits
        new: dict[str, Any] = {"state": (*traits.state, *more), "compiled": None} | changes
        object.__setattr__(self, "name", f"{self.base.name}+{suffix}")
        object.__setattr__(self, "traits", dataclasses.replace(traits, **new))

    @property
    def traced(self) -> str | None:
        """`compiled` of a layer that is linear itself, where `base` can be compiled."""
        return self.base.traits.compiled and "linear"

    @property
    def step_size(self) -> Rate | None:
        return self.base.step_size if isinstance(self.base, HasStepSize) else None

    @property
    def local_steps(self) -> int | None:
        return self.base.local_steps if isinstance(self.base, LocalSteps | Wrapper) else None

    @property
    def period(self) -> int:
        return self.base.period

    def message(self, columns: int, item: int) -> int:
        return self.base.message(columns, item)

    def fit(self, availability: Availability) -> Wrapper[S]:
        return dataclasses.replace(self, base=self.base.fit(availability))

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        return self.base.adapt_availability(availability, network)

    def with_mixing_weights(self, network: Network) -> Network:
        return self.base.with_mixing_weights(network)


# --- directions --------------------------------------------------------------------------------------
Turn = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Along:
    """A step size that changes the direction it is multiplied with first: η times turns of y."""

    rate: Rate
    turns: tuple[Turn, ...]  # in the order in which they are applied

    @staticmethod
    def first(turn: Turn, rate: Rate | Along) -> Along:
        """`turn` before those that `rate` has."""
        return (
            Along(rate.rate, (turn, *rate.turns))
            if isinstance(rate, Along)
            else Along(rate, (turn,))
        )

    def __mul__(self, direction: Tensor) -> Tensor:
        for turn in self.turns:
            direction = turn(direction)
        return self.rate * direction


def with_rate(
    algorithm: Algorithm[S], change: Callable[[Rate | Along], Rate | Along]
) -> Algorithm[S]:
    """The same method with another step size in the innermost one, `change` of the one it has.

    Not by `replace`: the method would check what is no mistake here, such as the zero a schedule ends with.
    """
    now = copy.copy(algorithm)
    if isinstance(algorithm, Wrapper):
        object.__setattr__(now, "base", with_rate(algorithm.base, change))
    elif isinstance(algorithm, HasStepSize) and algorithm.step_size is not None:
        object.__setattr__(now, "step_size", change(algorithm.step_size))
    return now


# --- layers ------------------------------------------------------------------------------------------
@cache
def _wider(inner: type[State], names: tuple[str, ...]) -> Any:
    """The state's type with more fields: flat, so that it is cut, stored and shown like any other."""
    wider = namedtuple("Wider", [*inner._fields, *names])  # type: ignore[misc]
    title = "".join(name.title().replace("_", "") for name in names)
    return type(f"{inner.__name__}With{title}", (wider,), {"inner": inner, "__slots__": ()})


@dataclass(frozen=True)
class Layer(Wrapper[S]):
    """A wrapper with a keyword: its fields after `base` are what the keyword is given."""

    key: ClassVar[str]  # of `method` and of configurations
    example: ClassVar[str]  # a good value, as it is typed
    off: ClassVar[float] = 0  # the number that means: no such layer

    @classmethod
    def of(cls, base: Algorithm, value: object) -> Algorithm:
        """`base` in the layer that a keyword's value means: a number, a table, or True for the defaults."""
        first, *_ = own = [each.name for each in dataclasses.fields(cls)][1:]
        if value is None or value is False or (type(value) in (int, float) and value == cls.off):
            return base
        given = (
            value
            if isinstance(value, dict)
            else {}
            if value is True and len(own) > 1
            else {first: value}
        )
        for name, one in given.items():
            if name not in own:
                raise InvalidInput(
                    f"{name}={one!r} is not a field of {cls.key}; its fields are {', '.join(own)}."
                )
        return cls(base, **given)

    @property
    def value(self) -> object:
        """What `of` makes this layer from."""
        own = dataclasses.fields(self)[1:]
        if len(own) == 1:
            return getattr(self, own[0].name)
        given = {each.name: getattr(self, each.name) for each in own}
        return {
            name: one for name, one in given.items() if one != getattr(type(self), name)
        } or True

    def refuse(self, must: str, value: object) -> InvalidInput:
        """What to raise for a bad `value`, which `must` be something else."""
        return InvalidInput(
            f"{self.key} of {self.base.name} must be {must}, got {value!r}; use {self.key}={self.example}."
        )

    def begin(self, x: Tensor) -> Memory:
        """What is kept before round 0, in the order of the names given to `declares`."""
        return ()

    def unfit(self) -> str | None:
        """What `base` lacks for this layer, as the end of a sentence about it; None if nothing."""
        return None

    def parts(self, state: State) -> tuple[State, Memory]:
        """The inner method's state, and what this layer keeps."""
        if not (count := len(self.traits.state) - len(self.base.traits.state)):
            return state, ()
        inner: type[State] = type(state).inner  # type: ignore[attr-defined]
        fields = tuple(state)
        return inner(*fields[:-count]), fields[-count:]

    def whole(self, state: State, memory: Memory) -> Any:
        names = self.traits.state[len(self.base.traits.state) :]
        return _wider(cast(Hashable, type(state)), names)(*state, *memory) if names else state


@dataclass(frozen=True)
class LinkLayer(Layer[S]):
    """Changes which links are used or how they weigh, in `uses`; the step is the inner method's own."""

    @abstractmethod
    def adapt_availability(self, availability: Availability, network: Network) -> Availability: ...

    def init(self, x: Tensor, round: Round) -> S:
        return self.base.init(x, round)

    def step(self, state: S, round: Round) -> S:
        return self.base.step(state, round)


@dataclass(frozen=True)
class GradientLayer(Layer[S]):
    """Changes every gradient that a client takes, before the inner method sees it."""

    @abstractmethod
    def changed(self, g: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Other gradients for `g` taken at `x`, and what is kept; of idle clients neither is used."""

    def kept(self, memory: Memory, round: Round) -> Memory:
        """What is left of the memory when a round begins."""
        return memory

    def unfit(self) -> str | None:
        takes = self.traits.momentum != "none"
        return (
            None
            if takes
            else f"needs gradients to filter, but the method takes none; drop {self.key}."
        )

    def init(self, x: Tensor, round: Round) -> Any:
        filtered = _Filtered(round, self, self.begin(x))
        state = self.base.init(x, cast(Round, filtered))
        return self.whole(state, filtered.memory)

    def step(self, state: S, round: Round) -> Any:
        inner, memory = self.parts(state)
        filtered = _Filtered(round, self, self.kept(memory, round))
        after = self.base.step(cast(S, inner), cast(Round, filtered))
        return self.whole(after, filtered.memory)


@dataclass
class _Filtered:
    """A round whose gradients have gone through a layer; everything else is the round's own."""

    round: Round
    layer: GradientLayer
    memory: Memory

    def grad(self, x: Tensor) -> Tensor:
        computes, g = self.round.computes, self.round.grad(x)
        g, memory = self.layer.changed(g, x, self.memory)
        pairs = zip(memory, self.memory, strict=True)
        self.memory = tuple(torch.where(computes, new, old) for new, old in pairs)
        return torch.where(computes, g, torch.zeros_like(g))

    def __getattr__(self, name: str) -> object:
        return getattr(self.round, name)


@dataclass(frozen=True)
class DirectionLayer(Layer[S]):
    """Changes the direction in which every client steps: its tracker, or its gradient without tracking.

    Clients that take no step keep their models and what the layer keeps. A direction of zero is no sign of
    that: gradients of hinge losses are zero where a batch is separated. Where clients step along their own
    gradients, those that took none do not step; the state has a column for it.
    """

    @abstractmethod
    def turned(self, y: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Another direction for `y` of the models `x`, and what is kept."""

    @property
    def along_own_gradients(self) -> bool:
        """Whether clients step along neither a tracker nor the mean of all gradients."""
        method: Algorithm = self.base
        while isinstance(method, Wrapper):
            method = method.base
        traits = method.traits
        return traits.activation == "all" and not traits.tracking and traits.exact == "no"

    def declares(self, suffix: str, *more: str, **changes: object) -> None:
        if self.along_own_gradients:
            more = (*more, f"{self.key}_active")
        super().declares(suffix, *more, **changes)

    def unfit(self) -> str | None:
        if self.traits.direction:
            return None
        return f"has no direction to step along; drop {self.key}, or use spod-gt-memory."

    def init(self, x: Tensor, round: Round) -> Any:
        watched = _Watched(round, round.computes & False)
        state = self.base.init(x, cast(Round, watched))
        return self.whole(state, self._join(self.begin(x), watched.active.to(x)))

    def step(self, state: S, round: Round) -> Any:
        inner, memory = self.parts(state)
        watched = _Watched(round, round.computes)
        if self.along_own_gradients:
            *memory_of_turn, active = memory
            memory = tuple(memory_of_turn)
            watched.active = active != 0
        turn = _Turned(self, inner.x, memory, watched)
        now = with_rate(self.base, lambda rate: Along.first(turn, rate))
        after = now.step(cast(S, inner), cast(Round, watched))
        return self.whole(after, self._join(turn.memory, watched.active.to(inner.x)))

    def _join(self, memory: Memory, active: Tensor) -> Memory:
        return (*memory, active) if self.along_own_gradients else memory


@dataclass
class _Watched:
    """A round that notes which clients have taken the last gradients; everything else is the round's own."""

    round: Round
    active: Tensor  # (clients, 1) bool

    def grad(self, x: Tensor) -> Tensor:
        self.active = self.round.computes
        return self.round.grad(x)

    def __getattr__(self, name: str) -> object:
        return getattr(self.round, name)


@dataclass
class _Turned:
    """The direction of one round in a layer; clients that take no step keep the direction they have."""

    layer: DirectionLayer
    x: Tensor
    memory: Memory
    round: _Watched

    def __call__(self, y: Tensor) -> Tensor:
        steps = self._steps()
        turned, memory = self.layer.turned(y, self.x, self.memory)
        self.memory = tuple(
            torch.where(steps, new, old) for new, old in zip(memory, self.memory, strict=True)
        )
        return torch.where(steps, turned, y)

    def _steps(self) -> Tensor:
        """(clients, 1) bool: the clients that take a step."""
        traits = self.layer.traits
        round = self.round.round
        if traits.activation != "all":
            return round.computes
        if self.layer.along_own_gradients:
            return self.round.active
        if traits.root or traits.two_way:
            return cast(TreeRound, round).step_weight != 0
        return torch.ones_like(round.computes)

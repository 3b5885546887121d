"""Wrappers around a method: they change the round, the step size or the links of the inner method.

A `Layer` is a wrapper that `spodgt.method` adds by a keyword, such as `momentum=0.9`:

    LinkLayer        changes active links and mixing weights
    GradientLayer    changes gradients before the inner method uses them; trackers sum up the
                     changed gradients (`gradient_layer.py`)
    DirectionLayer   changes what the step size is multiplied with, such as the tracker; trackers
                     and gradients are unchanged (`direction_layer.py`)
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
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.types import Availability, Round

Memory = tuple[Tensor, ...]  # state of a layer: (clients, …) tensors


@dataclass(frozen=True)
class Wrapper(Algorithm[S]):
    """A method around the method `base`; all properties are those of `base` unless overridden."""

    base: Algorithm[S]

    def set_traits(self, suffix: str, *memory_names: str, **changes: object) -> None:
        """Take name and traits of `base`, with changes.

        Args:
            suffix: Appended to the name.
            memory_names: State fields that the layer adds.
            changes: Other traits. A layer is not compiled unless it passes `compiled`.
        """
        traits = self.base.traits
        changed: dict[str, Any] = {"state": (*traits.state, *memory_names), "compiled": None}
        changed.update(changes)
        object.__setattr__(self, "name", f"{self.base.name}+{suffix}")
        object.__setattr__(self, "traits", dataclasses.replace(traits, **changed))

    @property
    def compiled_name(self) -> str | None:
        """`compiled` of a linear layer: "linear" if `base` can be compiled."""
        return "linear" if self.base.traits.compiled else None

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


# --- step sizes -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class ScaledDirection:
    """A step size that transforms the direction first: η * y is η times transforms of y.

    It replaces the step size of the inner method: `step_size * y` there then applies the layers.
    """

    rate: Rate
    transforms: tuple[Callable[[Tensor], Tensor], ...]  # in the order in which they are applied

    @classmethod
    def prepend(
        cls, transform: Callable[[Tensor], Tensor], rate: Rate | ScaledDirection
    ) -> ScaledDirection:
        """`transform`, then those of `rate`, if it has any."""
        if isinstance(rate, ScaledDirection):
            return cls(rate.rate, (transform, *rate.transforms))
        return cls(rate, (transform,))

    def __mul__(self, direction: Tensor) -> Tensor:
        for transform in self.transforms:
            direction = transform(direction)
        return self.rate * direction


def with_rate(
    algorithm: Algorithm[S], change: Callable[[Rate | ScaledDirection], Rate | ScaledDirection]
) -> Algorithm[S]:
    """A copy with the step size `change(step_size)` in the innermost method.

    `dataclasses.replace` would check the new value, but 0, the end of a schedule, is valid here.
    """
    changed = copy.copy(algorithm)
    if isinstance(algorithm, Wrapper):
        object.__setattr__(changed, "base", with_rate(algorithm.base, change))
    elif isinstance(algorithm, HasStepSize) and algorithm.step_size is not None:
        object.__setattr__(changed, "step_size", change(algorithm.step_size))
    return changed


# --- layers ---------------------------------------------------------------------------------------
@cache
def _extended_state_type(inner: type[State], names: tuple[str, ...]) -> Any:
    """A NamedTuple type with the fields of `inner`, then `names`.

    It is flat, so that runtimes slice and store it like the state of any method; `inner_type` is
    the type to split it into.
    """
    suffix = "".join(name.title().replace("_", "") for name in names)
    fields = namedtuple("Fields", [*inner._fields, *names])  # type: ignore[misc]
    attributes = {"inner_type": inner, "__slots__": ()}
    return type(f"{inner.__name__}With{suffix}", (fields,), attributes)


@dataclass(frozen=True)
class Layer(Wrapper[S]):
    """A wrapper with a keyword; its fields after `base` are the values of the keyword."""

    key: ClassVar[str]  # keyword of `spodgt.method` and of configs
    example: ClassVar[str]  # a reasonable value, for error messages
    off: ClassVar[float] = 0  # the number that means: no such layer

    @classmethod
    def wrap(cls, base: Algorithm, value: object) -> Algorithm:
        """`base` with this layer, unless the value of the keyword switches it off.

        Args:
            base: The inner method.
            value: A number, a dict of fields, or True for the defaults; None, False and `off`: no
                layer.

        Raises:
            InvalidInput: The dict has a key that is not a field.
        """
        is_off = type(value) in (int, float) and value == cls.off
        if value is None or value is False or is_off:
            return base
        names = [field.name for field in dataclasses.fields(cls)[1:]]
        given: dict[str, Any] = {names[0]: value}
        if isinstance(value, dict):
            given = value
        elif value is True and len(names) > 1:
            given = {}
        for name in given:
            if name not in names:
                raise InvalidInput(
                    f"{name}={given[name]!r} is not a field of {cls.key}; "
                    f"its fields are {', '.join(names)}."
                )
        return cls(base, **given)

    @property
    def value(self) -> object:
        """The value of the keyword: `wrap(base, value)` is the same layer."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        if len(values) == 1:
            return next(iter(values.values()))
        defaults = type(self)
        changed = {key: value for key, value in values.items() if value != getattr(defaults, key)}
        return changed or True

    def invalid(self, requirement: str, value: object) -> InvalidInput:
        """The error to raise for a bad `value` of the keyword."""
        return InvalidInput(
            f"{self.key} of {self.base.name} must be {requirement}, got {value!r}; "
            f"use {self.key}={self.example}."
        )

    def why_incompatible(self) -> str | None:
        """Why the layer cannot wrap `base`, as the predicate of a sentence; None if it can."""
        return None

    def initial_memory(self, x: Tensor) -> Memory:
        """The layer's state before round 0, in the order of the names given to `set_traits`."""
        return ()

    def split_state(self, state: State) -> tuple[State, Memory]:
        """The state of the inner method, and the layer's."""
        count = len(self.traits.state) - len(self.base.traits.state)
        if count == 0:
            return state, ()
        inner_type: type[State] = type(state).inner_type  # type: ignore[attr-defined]
        fields = tuple(state)
        return inner_type(*fields[:-count]), fields[-count:]

    def join_state(self, state: State, memory: Memory) -> Any:
        """The inverse of `split_state`."""
        names = self.traits.state[len(self.base.traits.state) :]
        if not names:
            return state
        return _extended_state_type(cast(Hashable, type(state)), names)(*state, *memory)


@dataclass(frozen=True)
class LinkLayer(Layer[S]):
    """A layer that changes active links or mixing weights; the step is that of the inner method."""

    @abstractmethod
    def adapt_availability(self, availability: Availability, network: Network) -> Availability: ...

    def init(self, x: Tensor, round: Round) -> S:
        return self.base.init(x, round)

    def step(self, state: S, round: Round) -> S:
        return self.base.step(state, round)


class RoundProxy:
    """Base of rounds that change one member of another round and forward all others."""

    round: Round

    def __getattr__(self, name: str) -> object:
        return getattr(self.round, name)


def update_where(condition: Tensor, new: Memory, old: Memory) -> Memory:
    """Rows of `new` where the condition (clients, 1) holds, else rows of `old`."""
    pairs = zip(new, old, strict=True)
    return tuple(torch.where(condition, updated, before) for updated, before in pairs)

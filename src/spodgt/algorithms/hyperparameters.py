"""Types of hyperparameters and their checks: numbers, numbers per client, step-size schedules.

    Rate         a step size: a number above 0, one per client, or a schedule
    Positive     a number above 0
    NotNegative  a number of at least 0
    Fraction     a number in [0, 1]
    Share        a number in (0, 1], such as the weight of new values in an average
    Count        a whole number above 0

A field with one of these types is checked and converted by `check_fields` when a method is created.
"""

from __future__ import annotations

import contextlib
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Annotated, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.network.names import values_by_client

_MAX_INTEGER = 2**53  # larger integers are not exact as float64


@dataclass(frozen=True)
class ByClient:
    """Numbers by client name, until a network defines the order of the clients."""

    values: tuple[tuple[str, float], ...]

    def resolve(self, network: Network, key: str) -> Tensor:
        """(clients, 1) in the order of the network's clients; `key` names the field in errors."""
        labels = [network.label(client) for client in range(network.clients)]
        ordered = values_by_client(dict(self.values), labels, key)
        return torch.tensor(ordered, dtype=torch.float64).reshape(-1, 1)

    def to_dict(self) -> dict[str, float]:
        """The numbers by client name."""
        return dict(self.values)

    def __mul__(self, other: Tensor) -> typing.NoReturn:
        raise InvalidInput(
            f"{self} has no order outside a network; give it to spodgt.train or compare."
        )

    __rtruediv__ = __mul__


@dataclass(frozen=True)
class NumberCheck:
    """Checks that a hyperparameter is above 0: one number, one per client, or a schedule.

    Args:
        integer: Only integers are accepted.
        zero: 0 is accepted, too.
        maximum: The largest number that is accepted.
    """

    integer: bool = False
    zero: bool = False
    maximum: float = math.inf

    def __call__(self, value: object, name: str) -> Rate:
        """Check and convert a value.

        Args:
            value: A number, a schedule, or one number per client: a list, array or tensor in the
                order of the clients, or a mapping by client name.
            name: The argument and its owner for errors, such as "step_size of spod-gt".

        Returns:
            An int or float, a (clients, 1) tensor, a `ByClient`, or the schedule itself.

        Raises:
            InvalidInput: The value is none of these, or out of range.
        """
        if isinstance(value, Schedule | ByClient):
            return cast(Rate, value)
        if isinstance(value, Mapping):
            return self._check_mapping(value, name)
        if isinstance(value, list | tuple | np.ndarray) and not self.integer:
            with contextlib.suppress(TypeError, ValueError):
                value = torch.from_numpy(np.array(value, np.float64).reshape(-1, 1))
        if isinstance(value, Tensor):
            if self._accepts_tensor(value):
                return value.detach()
            raise InvalidInput(self._message(value.flatten().tolist(), name))
        if not self._accepts_number(value):
            raise InvalidInput(self._message(value, name))
        return int(cast(int, value)) if self.integer else float(cast(float, value))

    def _check_mapping(self, values: Mapping[object, object], name: str) -> Rate:
        """One number per client, by name."""
        if not values or self.integer:
            raise InvalidInput(self._message(values, name))
        numbers: dict[str, float] = {}
        for client, value in values.items():
            number = self(value, name)
            if not isinstance(number, float):
                raise InvalidInput(self._message(values, name))
            numbers[str(client)] = number
        return cast(Rate, ByClient(tuple(numbers.items())))

    def _accepts_number(self, value: object) -> bool:
        kind = Integral if self.integer else Real
        if isinstance(value, bool) or not isinstance(value, kind):
            return False
        number = cast(float, value)
        if number == 0:
            return self.zero
        is_representable = number <= _MAX_INTEGER if self.integer else number < math.inf
        return 0 < number <= self.maximum and is_representable

    def _accepts_tensor(self, values: Tensor) -> bool:
        is_above = values >= 0 if self.zero else values > 0
        is_valid = is_above & (values <= self.maximum) & (values < math.inf)
        return values.numel() > 0 and bool(is_valid.all())

    def _message(self, value: object, name: str) -> str:
        kind = "a whole number above 0" if self.integer else "a number above 0"
        example = "5" if self.integer else "0.01"
        if callable(value) and not self.integer:
            return (
                f"{name} is a function, which spodgt.method accepts; "
                f"use spodgt.method({name.rsplit(maxsplit=1)[-1]!r}, step_size=…)."
            )
        limit = f" and at most {self.maximum:g}" if self.maximum < math.inf else ""
        argument = name.split(maxsplit=1)[0]
        return f"{name} must be {kind}{limit}, got {value!r}; use {argument}={example}."


positive = NumberCheck()
positive_integer = NumberCheck(integer=True)


def fraction(value: object) -> bool:
    """Whether a value is a number in [0, 1), such as the weight of the past in a running mean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


Number = float | Tensor  # one for all clients, or (clients, 1)
Positive = Annotated[float, positive]
Count = Annotated[int, positive_integer]
NotNegative = Annotated[float, NumberCheck(zero=True)]
Fraction = Annotated[float, NumberCheck(zero=True, maximum=1.0)]  # in [0, 1]
Share = Annotated[float, NumberCheck(maximum=1.0)]  # in (0, 1]


@dataclass(frozen=True)
class Schedule(ABC):
    """A step size that changes with the rounds; a frozen dataclass of numbers.

    Args:
        start: Step size in round 1, or at the end of the warm-up.
        warmup: Rounds in which the step size grows linearly to `start`.
    """

    name: ClassVar[str]
    start: Annotated[Number, positive]
    warmup: Annotated[int, NumberCheck(integer=True, zero=True)] = field(
        default=0, kw_only=True, repr=False
    )

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @abstractmethod
    def at(self, k: int | Tensor) -> Number:
        """The step size of round k ≥ 1 after the warm-up; `k` may be (clients, 1)."""

    def with_warmup(self, k: int | Tensor) -> Number:
        """The step size of round k ≥ 1, which computes x[k]: start · k/warmup, then `at`."""
        if isinstance(self.warmup, int) and self.warmup == 0:
            return self.at(k)
        rounds = torch.as_tensor(k, dtype=torch.float64)
        warmup = torch.as_tensor(self.warmup)
        ramp = (rounds / warmup.clamp(min=1)).clamp(max=1)
        return torch.as_tensor(self.at((rounds - warmup).clamp(min=1)) * ramp)

    def __mul__(self, other: Tensor) -> typing.NoReturn:
        raise InvalidInput(
            f"{self} has no value outside a round; build the method with spodgt.method."
        )

    __rtruediv__ = __mul__


# A step size: a number, one per client, or a schedule of these. A `ByClient` is replaced by a
# tensor when a run is created, so no step sees it.
Rate = Annotated[float | Tensor | Schedule, positive]


def check_fields(owner: object, name: str) -> None:
    """Check the fields of a dataclass by the checks in their types; store the converted values.

    Args:
        owner: An instance of a frozen dataclass.
        name: Its name in errors.

    Raises:
        InvalidInput: A field is out of range, or its type is not importable at run time.
    """
    try:
        hints = typing.get_type_hints(type(owner), include_extras=True)
    except NameError as error:
        raise InvalidInput(
            f"fields of {name} need their types at run time, but {error}; import them always."
        ) from error
    for each_field in fields(owner):  # type: ignore[arg-type]
        value = getattr(owner, each_field.name)
        if value is each_field.default:
            continue
        for check in _checks(hints[each_field.name]):
            checked = check(value, f"{each_field.name} of {name}")
            object.__setattr__(owner, each_field.name, checked)


def _checks(hint: object) -> Iterator[Callable[[object, str], object]]:
    """The checks of a type, or of the members of a union such as `Count | None`."""
    for part in (hint, *typing.get_args(hint)):
        yield from filter(callable, getattr(part, "__metadata__", ()))

"""Step-size schedules, for methods that allow them.

`method("dsgd", step_size=InverseSqrt(0.1))` wraps the method, so method files only contain a
number. A schedule starts at `start`, a number or one per client, in round 1; with `warmup`, the
step size first grows linearly. With local steps, the step size is constant between two exchanges.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from spodgt._util.text import first_line
from spodgt.algorithms.base import (
    Algorithm,
    Count,
    NotNegative,
    Number,
    Positive,
    Rate,
    S,
    Schedule,
)
from spodgt.algorithms.compose.wrapper import ScaledDirection, Wrapper, with_rate
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.tensors import widened
from spodgt.types import Round

_DESCRIBED_ROUNDS = 200  # of a function, for its checksum


@dataclass(frozen=True)
class Constant(Schedule):
    """η: the same in every round."""

    name = "constant"

    def at(self, k: int | Tensor) -> Number:
        return self.start


@dataclass(frozen=True)
class Inverse(Schedule):
    """η_k = start / (1 + (k - 1)/scale): 1/k, `scale` rounds until it has halved."""

    name = "inverse"
    scale: Positive = 1.0

    def at(self, k: int | Tensor) -> Number:
        return self.start / (1 + (k - 1) / self.scale)


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """η_k = start / √(1 + (k - 1)/scale): 1/√k."""

    name = "inverse-sqrt"
    scale: Positive = 1.0

    def at(self, k: int | Tensor) -> Number:
        return self.start / (1 + (k - 1) / self.scale) ** 0.5


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from `start` to `end` over `rounds` rounds [loshchilov2017sgdr], then `end`."""

    name = "cosine"
    rounds: Count = 1000
    end: NotNegative = 0.0

    def at(self, k: int | Tensor) -> Number:
        done = (torch.as_tensor(k - 1, dtype=torch.float64) / self.rounds).clamp(max=1)
        return self.end + (self.start - self.end) * (1 + torch.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class FunctionSchedule(Schedule):
    """η_k = function(k): a step size by round, from a function of the user.

    Args:
        start: Its value in round 1.
        function: Called with the round, from 1; returns a number of at least 0.
        reference: "file.py:name" if it was named so; else empty.
    """

    name = "function"
    function: Callable[[int], float] = float  # replaced by `function_schedule`
    reference: str = ""

    def at(self, k: int | Tensor) -> Number:
        if isinstance(k, Tensor):
            values = [self._value(int(each)) for each in k.flatten().tolist()]
            return torch.tensor(values, dtype=torch.float64).reshape(k.shape)
        return self._value(int(k))

    def _value(self, k: int) -> float:
        return _function_value(self.function, k)

    def describe(self) -> str:
        """The reference, or the name and a checksum of the first values."""
        if self.reference:
            return self.reference
        values = [self._value(k) for k in range(1, _DESCRIBED_ROUNDS + 1)]
        digest = zlib.crc32(struct.pack(f"{len(values)}d", *values))
        return f"function {getattr(self.function, '__name__', 'object')} {digest:08x}"


def function_schedule(function: Callable[[int], float], reference: str = "") -> FunctionSchedule:
    """The schedule of a function of the round."""
    start = _function_value(function, 1)
    if start == 0:
        raise InvalidInput("step_size must be above 0 in round 1, got 0.0; return 0.01 there.")
    return FunctionSchedule(start, function, reference)


def _function_value(function: Callable[[int], float], k: int) -> float:
    try:
        value: object = function(k)
    except Exception as error:
        raise InvalidInput(
            f"step_size failed in round {k}: {type(error).__name__}: {first_line(error)}; "
            "it is called with the round: 1, 2, …"
        ) from error
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise InvalidInput(
            f"step_size must be a number of at least 0 in every round, got {value!r:.60} in round "
            f"{k}; return a number such as 0.01."
        )
    return float(value)  # type: ignore[arg-type]


SCHEDULES: dict[str, type[Schedule]] = {
    cls.name: cls for cls in (Constant, Inverse, InverseSqrt, Cosine)
}


def check_names(given: Mapping[str, object], owner: str, names: list[str]) -> None:
    """Raise `InvalidConfig` if a key of `given` is not in `names`, the fields of `owner`."""
    for key, value in given.items():
        if key not in names:
            raise InvalidConfig(
                f"{key}={value!r} is not a field of {owner}; its fields are {', '.join(names)}."
            )


def schedule(value: Any) -> Any:
    """Convert the config of a step size.

    Args:
        value: A dict such as `{"schedule": "inverse-sqrt", "start": 0.1}`, a function of the round,
            or any other step size. A dict without `schedule` has one step size per client name.

    Returns:
        A `Schedule`, the number of a constant one, or other values unchanged.

    Raises:
        InvalidConfig: The schedule or one of its fields is not known, or `start` is missing.
    """
    if callable(value) and not isinstance(value, Schedule | Tensor):
        return function_schedule(value)
    if isinstance(value, Constant) and not value.warmup:
        return value.start
    if not isinstance(value, dict) or not _is_schedule(value):
        return value
    fields = dict(value)
    name = fields.pop("schedule", None)
    if name not in SCHEDULES:
        raise InvalidConfig(
            f"schedule of step_size must be one of {', '.join(SCHEDULES)}, got {name!r}."
        )
    check_names(fields, name, _field_names(SCHEDULES[name]))
    if "start" not in fields:
        raise InvalidConfig(f"step_size with schedule {name!r} needs a start; add start = 0.1.")
    return schedule(SCHEDULES[name](**fields))


def _is_schedule(table: dict[str, object]) -> bool:
    """Whether a dict configures a schedule, and not one step size per client."""
    if "schedule" in table:
        return True
    return any(table.keys() & set(_field_names(cls)) for cls in SCHEDULES.values())


def _field_names(cls: type[Schedule]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


@dataclass(frozen=True)
class Scheduled(Wrapper[S]):
    """`base` with the step size of `schedule` in each round."""

    name = "scheduled"
    schedule: Schedule

    def __post_init__(self) -> None:
        self.set_traits(self.schedule.name, compiled=self.compiled_name)

    @property
    def step_size(self) -> Schedule:
        return self.schedule

    def init(self, x: Tensor, round: Round) -> S:
        return self.base.init(x, round)

    def step(self, state: S, round: Round) -> S:
        rate = rate_at(self.schedule, round.k, self.local_steps)
        eta = rate.to(state.x) if isinstance(rate, Tensor) else rate

        def set_rate(old: Rate | ScaledDirection) -> Rate | ScaledDirection:
            return replace(old, rate=eta) if isinstance(old, ScaledDirection) else eta

        return with_rate(self.base, set_rate).step(state, round)


def rate_at(schedule: Schedule, k: int | Tensor, K: int | Tensor | None) -> Number:
    """The step size of round k; constant during K local steps, if K is given."""
    if K is not None:
        k = (k - 1) // K * K + 1
    return schedule.with_warmup(widened(k) if isinstance(k, Tensor) else k)


def with_fixed_rate(algorithm: Algorithm, rate: object) -> Algorithm:
    """The same method with `rate` instead of its step size or schedule."""
    if isinstance(algorithm, Scheduled):
        return with_fixed_rate(algorithm.base, rate)
    if isinstance(algorithm, Wrapper):
        changed = copy.copy(algorithm)
        object.__setattr__(changed, "base", with_fixed_rate(algorithm.base, rate))
        return changed
    return with_rate(algorithm, lambda _: rate)  # type: ignore[arg-type, return-value]

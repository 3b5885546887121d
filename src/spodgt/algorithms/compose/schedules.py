"""Step sizes that change with the rounds, for any method whose paper allows it.

`method("dsgd", step_size=InverseSqrt(0.1))` wraps the method, so its file knows only a number. A schedule
starts at `start` in round 1; `start` may be one per client. With `warmup` rounds before, the step size first
grows in proportion to the round. Methods with local steps hold the step size between two exchanges.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, Count, NotNegative, Number, Positive, S, Schedule
from spodgt.algorithms.compose.wrapper import Along, Wrapper, with_rate
from spodgt.errors import InvalidConfig
from spodgt.tensors import widened
from spodgt.types import Round


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
    """From `start` down to `end` along half a cosine [loshchilov2017sgdr], then `end` for ever."""

    name = "cosine"
    rounds: Count = 1000
    end: NotNegative = 0.0

    def at(self, k: int | Tensor) -> Number:
        done = (torch.as_tensor(k - 1, dtype=torch.float64) / self.rounds).clamp(max=1)
        return self.end + (self.start - self.end) * (1 + torch.cos(math.pi * done)) / 2


SCHEDULES: dict[str, type[Schedule]] = {
    cls.name: cls for cls in (Constant, Inverse, InverseSqrt, Cosine)
}


_SCHEDULE_FIELDS = {field.name for cls in SCHEDULES.values() for field in dataclasses.fields(cls)}


def check_names(given: Mapping[str, object], owner: str, known: list[str]) -> None:
    names = ", ".join(known)
    for key, value in given.items():
        if key not in known:
            raise InvalidConfig(
                f"{key}={value!r} is not a field of {owner}; its fields are {names}."
            )


def schedule(value: Any) -> Any:
    """The schedule that a table `{schedule = "inverse-sqrt", start = 0.1}` means; others as they are.

    A table without `schedule` holds one step size per client, by name.
    """
    if not isinstance(value, dict):
        return value.start if isinstance(value, Constant) and not value.warmup else value
    fields = dict(value)
    if "schedule" not in fields and not _SCHEDULE_FIELDS & fields.keys():
        return value  # by the names of clients
    name = fields.pop("schedule", None)
    if name not in SCHEDULES:
        raise InvalidConfig(
            f"schedule of step_size must be one of {', '.join(SCHEDULES)}, got {name!r}."
        )
    check_names(fields, name, [field.name for field in dataclasses.fields(SCHEDULES[name])])
    if "start" not in fields:
        raise InvalidConfig(f"step_size with schedule {name!r} needs a start; add start = 0.1.")
    return schedule(SCHEDULES[name](**fields))


@dataclass(frozen=True)
class Scheduled(Wrapper[S]):
    """`base` with the step size that `schedule` gives for the round."""

    name = "scheduled"
    schedule: Schedule

    def __post_init__(self) -> None:
        self.declares(self.schedule.name, compiled=self.traced)

    @property
    def step_size(self) -> Schedule:
        return self.schedule

    def init(self, x: Tensor, round: Round) -> S:
        return self.base.init(x, round)

    def step(self, state: S, round: Round) -> S:
        rate = rate_at(self.schedule, round.k, self.local_steps)
        eta = rate.to(state.x) if isinstance(rate, Tensor) else rate
        now = with_rate(
            self.base, lambda old: replace(old, rate=eta) if isinstance(old, Along) else eta
        )
        return now.step(state, round)


def rate_at(schedule: Schedule, k: int | Tensor, K: int | Tensor | None) -> Number:
    """The step size of round k, which K local steps hold."""
    held: int | Tensor = k if K is None else (k - 1) // K * K + 1
    return schedule.warmed(widened(held) if isinstance(held, Tensor) else held)


def fixed(algorithm: Algorithm, rate: object) -> Algorithm:
    """The same method with `rate` in place of its step size or schedule."""
    if isinstance(algorithm, Scheduled):
        return fixed(algorithm.base, rate)
    if isinstance(algorithm, Wrapper):
        now = copy.copy(algorithm)
        object.__setattr__(now, "base", fixed(algorithm.base, rate))
        return now
    return with_rate(algorithm, lambda _: rate)  # type: ignore[arg-type, return-value]

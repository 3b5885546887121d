"""Step sizes that change with the rounds, for any method whose paper allows it.

`method("dsgd", step_size=InverseSqrt(0.1))` wraps the method, so its file knows only a number. A schedule
starts at `start` in round 1; `start` may be one per client. Methods with local steps hold the step size
between two exchanges.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spodgt.algorithms.base import Rate, Schedule, positive
from spodgt.algorithms.compose.wrapper import Wrapper
from spodgt.errors import InvalidConfig
from spodgt.types import Round


@dataclass(frozen=True)
class _Started(Schedule):
    start: Rate

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "end" and (isinstance(value, Tensor) or value == 0):
                continue  # a schedule may end at zero
            value = positive(value, f"{field.name} of {self.name}", whole=field.name == "rounds")
            object.__setattr__(self, field.name, value)


@dataclass(frozen=True)
class Constant(_Started):
    """η: the same in every round."""

    name: ClassVar[str] = "constant"

    def at(self, k: Any) -> Rate:
        return self.start


@dataclass(frozen=True)
class Inverse(_Started):
    """η_k = start / (1 + (k - 1)/scale): 1/k, `scale` rounds until it has halved."""

    name: ClassVar[str] = "inverse"
    scale: float = 1.0

    def at(self, k: Any) -> Rate:
        return self.start / (1 + (k - 1) / self.scale)


@dataclass(frozen=True)
class InverseSqrt(_Started):
    """η_k = start / √(1 + (k - 1)/scale): 1/√k."""

    name: ClassVar[str] = "inverse-sqrt"
    scale: float = 1.0

    def at(self, k: Any) -> Rate:
        return self.start / (1 + (k - 1) / self.scale) ** 0.5


@dataclass(frozen=True)
class Cosine(_Started):
    """From `start` down to `end` along half a cosine [loshchilov2017sgdr], then `end` for ever."""

    name: ClassVar[str] = "cosine"
    rounds: int = 1000
    end: float = 0.0

    def at(self, k: Any) -> Rate:
        done = (torch.as_tensor(k - 1, dtype=torch.float64) / self.rounds).clamp(max=1)
        return self.end + (self.start - self.end) * (1 + torch.cos(math.pi * done)) / 2


SCHEDULES: dict[str, type[_Started]] = {cls.name: cls for cls in (Constant, Inverse, InverseSqrt, Cosine)}


@dataclass(frozen=True)
class Mixed(Schedule):
    """Another schedule for each run of a batch."""

    name: ClassVar[str] = "mixed"
    parts: tuple[Schedule, ...]
    clients: tuple[int, ...]  # how many each run has

    def at(self, k: Any) -> Tensor:
        ks = torch.split(k, list(self.clients)) if isinstance(k, Tensor) and k.ndim else [k] * len(self.parts)
        rates = [
            torch.as_tensor(part.at(k), dtype=torch.float64) for part, k in zip(self.parts, ks, strict=True)
        ]
        return torch.cat([r.reshape(-1, 1).expand(m, 1) for r, m in zip(rates, self.clients, strict=True)])


def schedule(value: Any) -> Any:
    """The schedule that a table `{schedule = "inverse-sqrt", start = 0.1}` means; others as they are."""
    if not isinstance(value, dict):
        return value.start if isinstance(value, Constant) else value
    fields = dict(value)
    name = fields.pop("schedule", None)
    if name not in SCHEDULES:
        raise InvalidConfig(f"schedule of step_size must be one of {', '.join(SCHEDULES)}, got {name!r}.")
    known = [field.name for field in dataclasses.fields(SCHEDULES[name])]
    for key, given in fields.items():
        if key not in known:
            raise InvalidConfig(
                f"{key}={given!r} is not a field of {name}; its fields are {', '.join(known)}."
            )
    if "start" not in fields:
        raise InvalidConfig(f"step_size with schedule {name!r} needs a start; add start = 0.1.")
    return schedule(SCHEDULES[name](**fields))


@dataclass(frozen=True)
class Scheduled(Wrapper):
    """`base` with the step size that `schedule` gives for the round."""

    name: ClassVar[str] = "scheduled"
    schedule: Schedule

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.base.name}+{self.schedule.name}")
        object.__setattr__(self, "traits", self.base.traits)

    @property
    def step_size(self) -> Schedule:
        return self.schedule

    def init(self, x: Tensor, round: Round) -> Any:
        return self.base.init(x, round)

    def step(self, state: Any, round: Round) -> Any:
        k, K = round.k, self.local_steps
        held: Any = k if K is None else (k - 1) // K * K + 1
        rate = self.schedule.at(held.double() if isinstance(held, Tensor) else held)
        now = copy.copy(self.base)  # not `replace`: a rate of zero at the end of a schedule is no mistake
        object.__setattr__(now, "step_size", rate.to(state.x) if isinstance(rate, Tensor) else rate)
        return now.step(state, round)

"""What a device can do: in which local rounds it computes a gradient, and which links it uses.

{kind = "bernoulli", p = 0.7}      drawn, a pure function of (seed, round, client)
{kind = "budget", share = 0.25}    at most this share of wall time goes into gradients
{kind = "trace", path = "a.csv"}   recorded: columns round, receiver, sender, up; replayed in a loop
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from spodgt import rng
from spodgt.errors import InvalidConfig
from spodgt.participation import Trace
from spodgt.types import Bools


class Capacity(Protocol):
    """Decides, before each round, whether it computes."""

    @property
    def p(self) -> float: ...
    def computes(self, k: int) -> bool: ...
    def spent(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Drawn:
    p: float
    key: np.uint64
    place: int

    def computes(self, k: int) -> bool:
        return self.p >= 1 or bool(rng.uniform(self.key, k, self.place) < self.p)

    def spent(self, seconds: float) -> None: ...


@dataclass
class Budget:
    p: float  # the share of wall time
    clock: Callable[[], float] = time.monotonic
    used: float = 0.0
    begun: float = field(default=-1.0)

    def computes(self, k: int) -> bool:
        now = self.clock()
        if self.begun < 0:
            self.begun = now
        return self.used <= self.p * (now - self.begun)

    def spent(self, seconds: float) -> None:
        self.used += seconds


@dataclass(frozen=True)
class Replayed:
    p: float
    rounds: Bools

    def computes(self, k: int) -> bool:
        return bool(self.rounds[k % len(self.rounds)])

    def spent(self, seconds: float) -> None: ...


def capacity(section: Mapping[str, Any], seed: int, place: int) -> Capacity:
    """Build it from the manifest's table, or say what is wrong with it."""
    fields = dict(section)
    kind = fields.pop("kind", None)
    known = {"bernoulli": "p", "budget": "share", "trace": "path"}
    if kind not in known or set(fields) != {known[kind]}:
        raise InvalidConfig(
            f"compute={dict(section)!r} must be one of {{kind = 'bernoulli', p = 0.7}}, "
            "{kind = 'budget', share = 0.25} and {kind = 'trace', path = 'trace.csv'}."
        )
    value = fields[known[kind]]
    if kind == "trace":
        rounds = np.asarray(Trace.read(value).computes)
        if place >= rounds.shape[1]:
            raise InvalidConfig(
                f"compute.path={value!r} knows {rounds.shape[1]} clients, not number {place}; add its rows."
            )
        return Replayed(max(float(rounds[:, place].mean()), 1e-300), rounds[:, place])
    if not isinstance(value, int | float) or not 0 < value <= 1:
        raise InvalidConfig(
            f"compute.{known[kind]} must be in (0, 1], got {value!r}; use {known[kind]} = 0.5."
        )
    return (
        Drawn(float(value), rng.key(seed, "clients"), place) if kind == "bernoulli" else Budget(float(value))
    )


def active_links(chances: Mapping[str, float], seed: int, place: int, k: int) -> list[str]:
    """The out-links drawn for local round k."""
    if all(chance >= 1 for chance in chances.values()):
        return list(chances)
    draws = rng.uniform(rng.key(seed, "peer-links"), k, place, np.arange(len(chances)))
    return [name for (name, chance), u in zip(chances.items(), draws, strict=True) if u < chance]

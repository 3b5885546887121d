"""What a device can do: in which local rounds it computes a gradient, and which links it uses.

{kind = "bernoulli", p = 0.7}      drawn, a pure function of (seed, round, client)
{kind = "budget", share = 0.25}    at most this fraction of wall time goes into gradients
{kind = "trace", path = "a.csv"}   recorded: columns round, receiver, sender, up; replayed in a loop
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from spodgt import rng
from spodgt.errors import InvalidConfig
from spodgt.participation import Trace
from spodgt.participation.availability import Independent, Recorded
from spodgt.types import Availability

Table = Mapping[str, object]  # a client's table `compute` in the manifest
_KEYS = {"bernoulli": "p", "budget": "share", "trace": "path"}


@dataclass(frozen=True)
class Scheduled:
    """Computes when an availability says so: drawn, or recorded and replayed."""

    availability: Availability
    place: int
    period: int | None = None  # rounds after which a recorded one starts again

    @property
    def p(self) -> float:
        return float(self.availability.p[self.place])

    def computes(self, k: int) -> bool:
        k = k % self.period if self.period else k
        return bool(self.availability.computes(range(k, k + 1))[0, self.place])

    def spent(self, seconds: float) -> None:
        """A gradient took so long; a schedule does not mind."""


@dataclass
class Budget:
    """Computes as long as gradients have taken no more than a fraction `p` of the time."""

    p: float
    clock: Callable[[], float] = time.monotonic
    used: float = 0.0
    begun: float = -1.0

    def computes(self, k: int) -> bool:
        now = self.clock()
        if self.begun < 0:
            self.begun = now
        return self.used <= self.p * (now - self.begun)

    def spent(self, seconds: float) -> None:
        self.used += seconds


Capacity = Scheduled | Budget


def capacity(section: Table, seed: int, place: int) -> Capacity:
    """The capacity of client number `place`, from its table in the manifest."""
    kind = section.get("kind")
    key = _KEYS.get(kind) if isinstance(kind, str) else None
    if key is None or set(section) != {"kind", key}:
        raise InvalidConfig(
            f"compute={dict(section)!r} must be one of {{kind = 'bernoulli', p = 0.7}}, "
            "{kind = 'budget', share = 0.25} and {kind = 'trace', path = 'trace.csv'}."
        )
    value, no_links = section[key], np.ones(0)
    if kind == "trace":
        rounds = np.asarray(Trace.read(str(value)).computes)
        if place >= rounds.shape[1]:
            raise InvalidConfig(
                f"compute.path={value!r} knows {rounds.shape[1]} clients, not number {place}; add its rows."
            )
        p = np.maximum(rounds.mean(0), 1e-300)
        return Scheduled(Recorded(p, no_links, rounds, np.ones((len(rounds), 0), bool)), place, len(rounds))
    if not isinstance(value, int | float) or not 0 < value <= 1:
        raise InvalidConfig(f"compute.{key} must be in (0, 1], got {value!r}; use {key} = 0.5.")
    if kind == "budget":
        return Budget(float(value))
    return Scheduled(Independent(np.full(place + 1, float(value)), no_links, seed), place)


def active_links(probabilities: Mapping[str, float], seed: int, place: int, k: int) -> list[str]:
    """The out-links drawn for local round k, from p̂ of each."""
    if all(p_hat >= 1 for p_hat in probabilities.values()):
        return list(probabilities)
    draws = rng.uniform(rng.key(seed, "peer-links"), k, place, np.arange(len(probabilities)))
    return [name for (name, p_hat), u in zip(probabilities.items(), draws, strict=True) if u < p_hat]

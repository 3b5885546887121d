"""How one peer runs; none of it is agreed with others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    durability: str = "power"
    rounds: int | None = None  # stop after so many local rounds,
    gradients: int | None = None  # gradients,
    seconds: float | None = None  # or seconds; None: never
    linger: bool = False  # stay reachable after the last round
    report_every: float = 1.0  # seconds
    evaluate_every: float = 5.0  # seconds
    commit_every: int = 1  # local rounds that share one commit
    listen: str | None = None  # host:port, if other than the manifest's
    problem: Callable[[str], object] | None = None  # makes the client's own problem from its name

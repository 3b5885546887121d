"""Whether all mass is there, from states alone, of one client or of all.

    Σ y + Σ_links (in flight) = Σ g

What is in flight on a link is the sender's total less what the receiver has taken of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spodgt.peer.states import State


@dataclass(frozen=True)
class Audit:
    """How far the mass is from complete, relative to the largest numbers in the sum."""

    error: float | None  # None while not all clients are in one epoch
    local: dict[str, float]  # L of each client, relative
    epochs: dict[str, int]
    in_flight: float = 0.0
    problems: list[str] = field(default_factory=list)


def terms(state: State) -> Iterator[Tensor]:
    """The terms of L = y - g - z - Σρ + Σσ of one client, float64: zero up to rounding, whatever happened."""
    yield from (state.method.y[0], -state.method.g[0].double(), -state.z[0])
    yield from (-link.total.double() for link in state.into.values())
    yield from (link.total.double() for link in state.out.values())


def scale(state: State) -> float:
    """The largest number that took part in a client's sums."""
    return max(1e-300, *(_largest(term) for term in terms(state)))


def local_error(state: State) -> float:
    """|L| of one client, relative."""
    return _largest(sum(terms(state))) / scale(state)


def audit(states: Mapping[str, State]) -> Audit:
    """The audit of all clients of a run, from their committed states."""
    local = {name: local_error(state) for name, state in states.items()}
    epochs = {name: state.epoch for name, state in states.items()}
    if len(set(epochs.values())) > 1:
        return Audit(None, local, epochs, problems=["not all clients have reached the newest epoch yet"])
    problems: list[str] = []
    total = sum(state.method.y[0] - state.method.g[0].double() for state in states.values())
    flying = 0.0
    for name, state in states.items():
        for target, out in state.out.items():
            link = f"link {name} → {target}"
            if target not in states:
                problems.append(f"{link}: no state of {target} was given")
                continue
            into = states[target].into.get(name)
            if into is None:
                problems.append(f"{link} is unknown to {target}")
                continue
            sent = out.total.double()
            if into.base == out.base:
                sent = sent - into.total.double()
            elif into.number != out.base:  # else the receiver has all before the base and nothing after it
                counts = f"the sender counts from {out.base}, the receiver has {into.number}"
                problems.append(f"{link}: {counts}")
            flying = max(flying, _largest(sent))
            total = total + sent
    error = _largest(total) / max(scale(state) for state in states.values())
    return Audit(error, local, epochs, flying, problems)


def _largest(vector: Tensor | float) -> float:
    return float(torch.as_tensor(vector).abs().max())

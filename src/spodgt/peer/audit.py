"""Whether all mass is there, from states alone, of one client or of all.

    Σ y + Σ_links (in flight) = Σ g

What is in flight on a link is the sender's total less what the receiver has taken of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from spodgt.peer.states import State, residual


@dataclass(frozen=True)
class Audit:
    """How far the mass is from complete, relative to the largest numbers in the sum."""

    error: float | None  # None while not all clients are in one epoch
    local: dict[str, float]  # L of each client, relative
    epochs: dict[str, int]
    in_flight: float = 0.0
    problems: list[str] = field(default_factory=list)


def scale(state: State) -> float:
    """The largest number that took part in a client's sums."""
    parts = [state.method.y, state.method.g, state.z]
    parts += [link.total for link in state.out.values()] + [link.total for link in state.into.values()]
    return max([float(part.abs().max()) for part in parts if part.numel()] + [1e-300])


def local_error(state: State) -> float:
    """|L| of one client, relative."""
    return float(residual(state).abs().max()) / scale(state)


def audit(states: Mapping[str, State]) -> Audit:
    """The audit of all clients of a run, from their committed states."""
    local = {name: local_error(state) for name, state in states.items()}
    epochs = {name: state.epoch for name, state in states.items()}
    problems: list[str] = []
    if len(set(epochs.values())) > 1:
        return Audit(None, local, epochs, problems=["not all clients have reached the newest epoch yet"])
    total = sum(state.method.y[0] - state.method.g[0].double() for state in states.values())
    flying = 0.0
    for name, state in states.items():
        for target, out in state.out.items():
            if target not in states:
                problems.append(f"link {name} → {target}: no state of {target} was given")
                continue
            into = states[target].into.get(name)
            sent = out.total.double()
            if into is None:
                problems.append(f"link {name} → {target} is unknown to {target}")
                continue
            if into.base == out.base:
                sent = sent - into.total.double()
            elif into.number != out.base:  # else the receiver has all before the base and nothing after it
                problems.append(
                    f"link {name} → {target}: the sender counts from {out.base}, the receiver has "
                    f"{into.number}"
                )
            flying = max(flying, float(sent.abs().max()))
            total = total + sent
    largest = max(scale(state) for state in states.values())
    error = float(torch.as_tensor(total).abs().max()) / largest
    return Audit(error, local, epochs, flying, problems)

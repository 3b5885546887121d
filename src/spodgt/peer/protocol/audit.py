"""Audit of the conservation of mass, from the states of one client or of all.

    Σ y + Σ_links (in flight) = Σ g

The mass in flight on a link is the sender's total less the part that the receiver has applied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spodgt.peer.protocol.client_state import State
from spodgt.peer.protocol.running_sums import InLink, OutLink
from spodgt.tensors import largest, slices


@dataclass(frozen=True)
class Audit:
    """The error of the conservation law, relative to the largest numbers in the sum."""

    error: float | None  # None while not all clients are in one epoch
    local: dict[str, float]  # L of each client, relative
    epochs: dict[str, int]
    in_flight: float = 0.0
    problems: list[str] = field(default_factory=list)

    def passed(self, limit: float) -> bool:
        """Whether all clients were given, in one epoch, and no mass is missing; NaN never passes."""
        numbers = [math.nan if self.error is None else self.error, *self.local.values()]
        return not self.problems and all(number <= limit for number in numbers)


def terms(state: State) -> Iterator[tuple[Tensor, float]]:
    """The terms of L = y - g - z - Σρ + Σσ of one client, with their signs."""
    yield from ((state.method.y[0], 1.0), (state.method.g[0], -1.0), (state.z[0], -1.0))
    yield from ((link.total, -1.0) for link in state.into.values())
    yield from ((link.total, 1.0) for link in state.out.values())


def scale(state: State) -> float:
    """The largest number that took part in a client's sums; NaN if one of them is."""
    return _maximum([1e-300, *(largest(vector) for vector, _ in terms(state))])


def local_error(state: State) -> float:
    """|L| of one client, relative; NaN if a number is not finite. Large states are summed in parts.

    L is zero up to rounding, whatever happened.
    """
    errors = []
    for part in slices(state.z.shape[1]):
        total = torch.zeros_like(state.z[0, part])
        for vector, sign in terms(state):
            total.add_(vector[part].double(), alpha=sign)
        errors.append(largest(total))
    return _maximum(errors) / scale(state)


def audit(states: Mapping[str, State]) -> Audit:
    """The audit of all clients of a run, from their committed states."""
    local = {name: local_error(state) for name, state in states.items()}
    epochs = {name: state.epoch for name, state in states.items()}
    if len(set(epochs.values())) > 1:
        newest = max(epochs.values())
        late = ", ".join(name for name, epoch in epochs.items() if epoch < newest)
        problem = f"not all clients have reached the newest epoch: {late}"
        return Audit(None, local, epochs, problems=[problem])
    problems: list[str] = []
    total = sum(state.method.y[0] - state.method.g[0].double() for state in states.values())
    largest_in_flight = 0.0
    for name, state in states.items():
        problems += _unknown_neighbours(name, state, states)
        for receiver, link in state.out.items():
            if receiver not in states:
                continue
            sent, problem = in_flight(link, states[receiver].into.get(name))
            if problem:
                problems.append(f"link {name} → {receiver}: {problem}")
            largest_in_flight = max(largest_in_flight, largest(sent))
            total = total + sent
    size = _maximum([scale(state) for state in states.values()])
    error = largest(torch.as_tensor(total)) / size
    return Audit(error, local, epochs, largest_in_flight, problems)


def _unknown_neighbours(name: str, state: State, states: Mapping[str, State]) -> list[str]:
    """Links that were used in this epoch with clients whose state was not given."""
    problems = []
    for sender, in_link in state.into.items():
        if sender not in states and in_link.number:
            problems.append(f"link {sender} → {name}: no state of {sender} was given")
    for receiver, out_link in state.out.items():
        if receiver not in states and out_link.number:
            problems.append(f"link {name} → {receiver}: no state of {receiver} was given")
    return problems


def in_flight(out: OutLink, into: InLink | None) -> tuple[Tensor, str]:
    """Mass that the receiver has not applied, float64, and what is wrong if the ends do not match."""
    sent = out.total.double()
    if into is None:
        return sent, "the receiver does not know it" if out.number else ""
    if into.base == out.base:
        return sent - into.total.double(), ""
    if into.number != out.base:  # else the receiver has all before the base and nothing after it
        return sent, f"the sender counts from {out.base}, the receiver has {into.number}"
    return sent, ""


def _maximum(numbers: list[float]) -> float:
    """The largest number; NaN if one of them is, which `max` does not pass on."""
    return float(torch.tensor(numbers, dtype=torch.float64).max())

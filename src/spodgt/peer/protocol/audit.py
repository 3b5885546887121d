"""Whether all mass is there, from states alone, of one client or of all.

    Σ y + Σ_links (in flight) = Σ g

What is in flight on a link is the sender's total less what the receiver has taken of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spodgt.peer.protocol.client_state import State
from spodgt.peer.protocol.running_sums import InLink, OutLink
from spodgt.tensors import slices


@dataclass(frozen=True)
class Audit:
    """How far the mass is from complete, relative to the largest numbers in the sum."""

    error: float | None  # None while not all clients are in one epoch
    local: dict[str, float]  # L of each client, relative
    epochs: dict[str, int]
    in_flight: float = 0.0
    problems: list[str] = field(default_factory=list)

    def passed(self, limit: float) -> bool:
        """Whether all clients were there, in one epoch, and nothing is missing; NaN never passes."""
        numbers = [math.nan if self.error is None else self.error, *self.local.values()]
        return not self.problems and all(number <= limit for number in numbers)


def terms(state: State) -> Iterator[Tensor]:
    """The terms of L = y - g - z - Σρ + Σσ of one client, float64: zero up to rounding, whatever happened."""
    yield from (state.method.y[0], -state.method.g[0].double(), -state.z[0])
    yield from (-link.total.double() for link in state.into.values())
    yield from (link.total.double() for link in state.out.values())


def scale(state: State) -> float:
    """The largest number that took part in a client's sums; NaN if one of them is."""
    return float(torch.tensor([1e-300, *map(_largest, terms(state))], dtype=torch.float64).max())


def local_error(state: State) -> float:
    """|L| of one client, relative; NaN if a number is not finite. Large states are summed in parts."""
    vectors = [(state.method.y[0], 1.0), (state.method.g[0], -1.0), (state.z[0], -1.0)]
    vectors += [(link.total, -1.0) for link in state.into.values()]
    vectors += [(link.total, 1.0) for link in state.out.values()]
    errors: list[float] = []
    scales = [1e-300]
    for part in slices(state.z.shape[1]):
        total = torch.zeros_like(state.z[0, part])
        for vector, sign in vectors:
            term = vector[part].double()
            total.add_(term, alpha=sign)
            scales.append(_largest(term))
        errors.append(_largest(total))
    # tensors, because max() of floats does not pass NaN on
    return _largest(torch.tensor(errors, dtype=torch.float64)) / float(
        torch.tensor(scales, dtype=torch.float64).max()
    )


def audit(states: Mapping[str, State]) -> Audit:
    """The audit of all clients of a run, from their committed states."""
    local = {name: local_error(state) for name, state in states.items()}
    epochs = {name: state.epoch for name, state in states.items()}
    if len(set(epochs.values())) > 1:
        late = ", ".join(name for name, epoch in epochs.items() if epoch < max(epochs.values()))
        return Audit(
            None, local, epochs, problems=[f"not all clients have reached the newest epoch: {late}"]
        )
    problems: list[str] = []
    total = sum(state.method.y[0] - state.method.g[0].double() for state in states.values())
    flying = 0.0
    for name, state in states.items():
        for sender, link in state.into.items():
            if sender not in states and link.number:
                problems.append(f"link {sender} → {name}: no state of {sender} was given")
        for target, out in state.out.items():
            if target in states:
                sent, problem = in_flight(out, states[target].into.get(name))
                problems += [f"link {name} → {target}: {problem}"] if problem else []
                flying = max(flying, _largest(sent))
                total = total + sent
            elif out.number:  # else nobody there has taken part in this epoch
                problems.append(f"link {name} → {target}: no state of {target} was given")
    largest = torch.tensor([*map(scale, states.values())], dtype=torch.float64).max()
    error = _largest(total) / float(largest)
    return Audit(error, local, epochs, flying, problems)


def in_flight(out: OutLink, into: InLink | None) -> tuple[Tensor, str]:
    """What the receiver has not taken yet, float64, and what is wrong if the ends do not match."""
    sent = out.total.double()
    if into is None:
        return sent, "the receiver does not know it" if out.number else ""
    if into.base == out.base:
        return sent - into.total.double(), ""
    if into.number != out.base:  # else the receiver has all before the base and nothing after it
        return sent, f"the sender counts from {out.base}, the receiver has {into.number}"
    return sent, ""


def _largest(vector: Tensor | float) -> float:
    return float(torch.as_tensor(vector).abs().max())

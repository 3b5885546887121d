"""Momentum for any method that takes gradients [polyak1964some].

    m⁺ = β m + g        where a client computes; an idle client keeps its m

The method is given m in place of g. A linear filter keeps fixed points, so an exact method stays exact: in
DSGD this is [yu2019linear], in a tracker momentum tracking [takezawa2022momentum], in D² [hu2025bias], in
DFedAvg the published heavy ball. Steps are 1/(1 - β) times longer, as in torch.optim.SGD.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from spodgt.algorithms.base import State, exchanges
from spodgt.algorithms.compose.wrapper import Wrapper
from spodgt.errors import InvalidInput
from spodgt.types import Round


@dataclass
class _Filtered:
    """A round whose gradients have gone through the filter; everything else is the round's own."""

    round: Round
    beta: float
    m: Tensor

    def grad(self, x: Tensor) -> Tensor:
        computes = self.round.computes
        self.m = torch.where(computes, self.beta * self.m + self.round.grad(x), self.m)
        return torch.where(computes, self.m, torch.zeros_like(self.m))

    def __getattr__(self, name: str) -> object:
        return getattr(self.round, name)


@cache
def _with_momentum(inner: type[State]) -> Any:
    """The state's type with one field more: flat, so that it is cut, stored and shown like any other."""
    wider = namedtuple("Wider", [*inner._fields, "momentum"])  # type: ignore[misc]
    return type(f"{inner.__name__}WithMomentum", (wider,), {"inner": inner, "__slots__": ()})


@dataclass(frozen=True)
class Momentum(Wrapper):
    """`base` with heavy-ball momentum β on every client's gradients."""

    name = "momentum"
    beta: float = 0.9  # β

    def __post_init__(self) -> None:
        beta = self.beta
        if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta < 1:
            raise InvalidInput(
                f"momentum of {self.base.name} must be in [0, 1), got {beta!r}; use momentum=0.9."
            )
        self.declares("momentum", "momentum")

    def init(self, x: Tensor, round: Round) -> Any:
        filtered = _Filtered(round, self.beta, x.new_zeros(x.shape))
        state = self.base.init(x, cast(Round, filtered))
        return _with_momentum(cast(Hashable, type(state)))(*state, filtered.m)

    def step(self, state: Any, round: Round) -> Any:
        *inner, m = state
        if self.traits.momentum == "restarted" and self.local_steps is not None:
            m = torch.where(exchanges(round.k, self.local_steps), torch.zeros_like(m), m)
        filtered = _Filtered(round, self.beta, m)
        after = self.base.step(type(state).inner(*inner), cast(Round, filtered))
        return type(state)(*after, filtered.m)

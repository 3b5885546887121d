"""AB: a row-stochastic A for the models, a column-stochastic B for the trackers [xin2018linear].

    x⁺ = A x - α y
    y⁺ = B y + ∇f(x⁺) - ∇f(x)      y⁰ = ∇f(x⁰), so Σy = Σ∇f in every round

The paper has a fixed graph; the same recursion over changing links is TV-AB [saadatniaki2020decentralized].
Steps may differ between clients, because y goes to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.types import Round


class ABState(NamedTuple):
    x: Tensor
    y: Tensor
    g: Tensor


@dataclass(frozen=True)
class AB(Algorithm):
    name: ClassVar[str] = "ab"
    traits: ClassVar[Traits] = Traits(
        source="xin2018linear",
        mixing="pull+push",
        sporadic_clients="no",
        sporadic_links="yes",
        tracking=True,
        exact="yes",
        vectors=2,
        steps="per client",
    )
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: Round) -> ABState:
        g = round.grad(x)
        return ABState(x, g, g)

    def step(self, state: ABState, round: Round) -> ABState:
        x = round.pull(state.x) - self.step_size * state.y
        g = round.grad(x)
        y = round.push(state.y) + g - state.g
        return ABState(x, y, g)

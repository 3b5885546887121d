"""Push-Pull gradient tracking over directed graphs [pu2020push].

    x⁺ = R (x - α y)               models are pulled, the step is taken before
    y⁺ = C y + ∇F(x⁺) - ∇F(x)      trackers are pushed; y⁰ = ∇F(x⁰)

R is our A and C our B. α is a number or, as in the paper, one per client. The paper has a fixed graph;
over changing links it is AB/Push-Pull [nedic2025ab].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from torch import Tensor

from spodgt.algorithms.ab import AB
from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.types import Round


class PushPullState(NamedTuple):
    x: Tensor
    y: Tensor
    g: Tensor


@dataclass(frozen=True)
class PushPull(Algorithm):
    name: ClassVar[str] = "push-pull"
    traits: ClassVar[Traits] = replace(AB.traits, source="pu2020push")
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: Round) -> PushPullState:
        g = round.grad(x)
        return PushPullState(x, g, g)

    def step(self, state: PushPullState, round: Round) -> PushPullState:
        x = round.pull(state.x - self.step_size * state.y)
        g = round.grad(x)
        y = round.push(state.y) + g - state.g
        return PushPullState(x, y, g)

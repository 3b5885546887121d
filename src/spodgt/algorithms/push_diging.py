"""Push-DIGing: gradient tracking with push-sum over changing directed graphs [nedic2017achieving].

    u⁺ = C (u - α y)
    v⁺ = C v                       v⁰ = 1: the push-sum weights
    x⁺ = u⁺ / v⁺
    y⁺ = C y + ∇f(x⁺) - ∇f(x)      u⁰ = x⁰, y⁰ = ∇f(x⁰)

C is our B. Only out-degrees are needed.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from spodgt.algorithms.ab import AB
from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor


class PushDIGingState(NamedTuple):
    x: Tensor
    y: Tensor
    g: Tensor
    u: Tensor
    v: Tensor  # (clients, 1)


@dataclass(frozen=True)
class PushDIGing(Algorithm[PushDIGingState]):
    name = "push-diging"
    traits = replace(
        AB.traits,
        source="nedic2017achieving",
        mixing="push",
        mixed_fields=(("push", "v"), ("push", "y")),
    )
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: Round) -> PushDIGingState:
        g = round.grad(x)
        return PushDIGingState(x, g, g, x, x.new_ones(len(x), 1))

    def step(self, state: PushDIGingState, round: Round) -> PushDIGingState:
        u = round.push(state.u - self.step_size * state.y)
        v = round.push(state.v)
        x = u / v
        g = round.grad(x)
        y = round.push(state.y) + g - state.g
        return PushDIGingState(x, y, g, u, v)

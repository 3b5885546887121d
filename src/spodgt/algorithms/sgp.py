"""SGP, stochastic gradient push [assran2019stochastic].

    x½ = x - γ ∇F(z)         x is the paper's, here u; its z is our model x
    x⁺ = P x½
    w⁺ = P w                 w⁰ = 1, here s
    z⁺ = x⁺ / w⁺

In our letters: u⁺ = B (u - γ g), s⁺ = B s, x⁺ = u⁺/s⁺. The step precedes the mixing, unlike in
subgradient-push.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor
from spodgt.algorithms.subgradient_push import SubgradientPush


class SGPState(NamedTuple):
    x: Tensor
    g: Tensor
    u: Tensor
    s: Tensor  # (clients, 1)


@dataclass(frozen=True)
class SGP(Algorithm[SGPState]):
    name = "sgp"
    traits = replace(
        SubgradientPush.traits, source="assran2019stochastic", mixed_fields=(("push", "s"),)
    )
    step_size: Rate = 0.01  # γ

    def init(self, x: Tensor, round: Round) -> SGPState:
        return SGPState(x, round.grad(x), x, x.new_ones(len(x), 1))

    def step(self, state: SGPState, round: Round) -> SGPState:
        u = round.push(state.u - self.step_size * state.g)
        s = round.push(state.s)
        x = u / s
        return SGPState(x, round.grad(x), u, s)

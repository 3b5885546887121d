"""Subgradient-push: push-sum consensus, then a local step [nedic2014distributed].

    w⁺ = B x                 x is the paper's, here u; its z is our model x
    y⁺ = B y                 y⁰ = 1, here s
    z⁺ = w⁺ / y⁺
    x⁺ = w⁺ - α g(z⁺)

In our letters: w = B u, s⁺ = B s, x⁺ = w/s⁺, u⁺ = w - α g(x⁺). The first round only mixes. With a
decaying α, as in the paper, the limit is exact; with a constant α a bias remains.
"""

from dataclasses import dataclass
from typing import NamedTuple

from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor, Traits


class SubgradientPushState(NamedTuple):
    x: Tensor
    u: Tensor
    s: Tensor  # (clients, 1)


@dataclass(frozen=True)
class SubgradientPush(Algorithm[SubgradientPushState]):
    name = "subgradient-push"
    traits = Traits(
        source="nedic2014distributed",
        mixing="push",
        sporadic_clients="no",
        sporadic_links="yes",
        mixed_fields=(("push", "u"), ("push", "s")),
        compiled="linear",
    )
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: Round) -> SubgradientPushState:
        return SubgradientPushState(x, x, x.new_ones(len(x), 1))

    def step(self, state: SubgradientPushState, round: Round) -> SubgradientPushState:
        w = round.push(state.u)
        s = round.push(state.s)
        x = w / s
        u = w - self.step_size * round.grad(x)
        return SubgradientPushState(x, u, s)

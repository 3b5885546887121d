"""EXTRA: an exact first-order algorithm [shi2015extra].

    d = (W - I) x
    x⁺ = x + d - α ∇f(x) - s
    s⁺ = s - d/2                  s⁰ = 0

The difference of two rounds is the published x^{k+2} = (I + W) x^{k+1} - W̃ x^k - α (∇f(x^{k+1}) -
∇f(x^k)) with W̃ = (I + W)/2. Exactness requires Σs = 0, and errors in that sum are never corrected.
So d is a sum of weighted differences: x - W x in single precision has an error of the same sign in
every round. The step must be one constant: a sum cannot be rescaled.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from spodgt.algorithms.base import Algorithm, Rate, Tensor
from spodgt.algorithms.dsgd import DSGD
from spodgt.algorithms.rounds import GossipRound


class ExtraState(NamedTuple):
    x: Tensor
    g: Tensor
    s: Tensor


@dataclass(frozen=True)
class Extra(Algorithm[ExtraState, GossipRound]):
    name = "extra"
    traits = replace(
        DSGD.traits, source="shi2015extra", sporadic_links="no", tracking=True, exact="yes",
        steps="constant", direction=False,
    )  # fmt: skip
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: GossipRound) -> ExtraState:
        return ExtraState(x, round.grad(x), x.new_zeros(x.shape))

    def step(self, state: ExtraState, round: GossipRound) -> ExtraState:
        d = round.gossip_difference(state.x)
        x = state.x + d - self.step_size * state.g - state.s
        return ExtraState(x, round.grad(x), state.s - d / 2)

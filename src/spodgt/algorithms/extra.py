"""EXTRA: an exact first-order algorithm [shi2015extra].

    x¹ = W x⁰ - α ∇f(x⁰)
    x^{k+2} = (I + W) x^{k+1} - W̃ x^k - α (∇f(x^{k+1}) - ∇f(x^k))      W̃ = (I + W)/2

`h` keeps W̃ x^k, so one vector is sent in a round; h = x⁰ and g₋ = 0 give the first line. The step must be
one constant: what has been summed up cannot be rescaled.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor
from spodgt.algorithms.dsgd import DSGD


class ExtraState(NamedTuple):
    x: Tensor
    g: Tensor
    h: Tensor
    g_before: Tensor


@dataclass(frozen=True)
class Extra(Algorithm[ExtraState]):
    name = "extra"
    traits = replace(
        DSGD.traits, source="shi2015extra", sporadic_links="no", tracking=True, exact="yes", steps="constant",
        direction=False
    )  # fmt: skip
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: Round) -> ExtraState:
        return ExtraState(x, round.grad(x), x, x.new_zeros(x.shape))

    def step(self, state: ExtraState, round: Round) -> ExtraState:
        both = state.x + round.gossip(state.x)  # (I + W) x
        x = both - state.h - self.step_size * (state.g - state.g_before)
        return ExtraState(x, round.grad(x), both / 2, state.g)

"""GT-DSGD: stochastic gradient tracking, adapt then combine [xin2021improved].

    y⁺ = W (y + g - g₋)            y⁰ = g₋ = 0, g the gradient at x of its own mini-batch
    x⁺ = W (x - α y⁺)

The two exchanges of a round are sequential. Σy is the sum of the gradients of the previous round.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor
from spodgt.algorithms.diging import DIGing


class GTDSGDState(NamedTuple):
    x: Tensor
    y: Tensor
    new: Tensor  # g
    old: Tensor  # g₋


@dataclass(frozen=True)
class GTDSGD(Algorithm[GTDSGDState]):
    name = "gt-dsgd"
    traits = replace(DIGing.traits, source="xin2021improved", sporadic_links="no", mixed_fields=())
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: Round) -> GTDSGDState:
        zero = x.new_zeros(x.shape)
        return GTDSGDState(x, zero, round.grad(x), zero)

    def step(self, state: GTDSGDState, round: Round) -> GTDSGDState:
        y = round.gossip(state.y + state.new - state.old)
        x = round.gossip(state.x - self.step_size * y)
        return GTDSGDState(x, y, round.grad(x), state.new)

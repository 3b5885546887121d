"""EXTRA: an exact first-order algorithm [shi2015extra].

    x⁺ = W x - α ∇f(x) - s
    s⁺ = s + (x - W x)/2          s⁰ = 0

Subtract two rounds and it is the published x^{k+2} = (I + W) x^{k+1} - W̃ x^k - α (∇f(x^{k+1}) - ∇f(x^k)) with
W̃ = (I + W)/2. Exactness rests on Σs = 0, and nothing corrects an error in that sum. So models are mixed in
double precision whatever their own: x - W x in single precision has an error of the same sign in every round.
The step must be one constant: what has been summed up cannot be rescaled.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor
from spodgt.algorithms.dsgd import DSGD
from spodgt.tensors import widened

_DOUBLE = 8  # bytes of a number in a message


class ExtraState(NamedTuple):
    x: Tensor
    g: Tensor
    s: Tensor


@dataclass(frozen=True)
class Extra(Algorithm[ExtraState]):
    name = "extra"
    traits = replace(
        DSGD.traits, source="shi2015extra", sporadic_links="no", mixes=(), tracking=True, exact="yes",
        steps="constant", direction=False, compiled=None
    )  # fmt: skip
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: Round) -> ExtraState:
        return ExtraState(x, round.grad(x), x.new_zeros(x.shape))

    def step(self, state: ExtraState, round: Round) -> ExtraState:
        x = widened(state.x)
        mixed = round.gossip(x)
        s = (state.s + (x - mixed) / 2).to(state.x)
        x = (mixed - self.step_size * state.g - state.s).to(state.x)
        return ExtraState(x, round.grad(x), s)

    def message(self, columns: int, item: int) -> int:
        return self.traits.vectors * columns * _DOUBLE

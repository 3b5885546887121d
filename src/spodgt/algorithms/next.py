"""NEXT: in-network nonconvex optimization by successive convex approximation [di2016next].

    x̃ = argmin f̃(·; x) + π̃·(· - x),  π̃ = m y - ∇f(x)
    z = x + α (x̃ - x)
    x⁺ = W z
    y⁺ = W y + ∇f(x⁺) - ∇f(x)      y⁰ = ∇f(x⁰)

Chosen here: the linearised surrogate f̃ = ∇f(x)·(· - x) + τ/2 |· - x|² and no regulariser, so that
x̃ = x - η y with η = m/τ. The paper lets α decay; a constant one is exact for smooth problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.network import Network
from spodgt.participation.availability import two_way
from spodgt.types import Availability, Round


class NextState(NamedTuple):
    x: Tensor
    y: Tensor
    g: Tensor


@dataclass(frozen=True)
class Next(Algorithm):
    name: ClassVar[str] = "next"
    traits: ClassVar[Traits] = Traits(
        "di2016next", "gossip", "no", "yes", tracking=True, exact="yes", vectors=2, steps="per client"
    )
    step_size: Rate = 0.01  # η
    averaging: Rate = 1.0  # α

    def uses(self, availability: Availability, network: Network) -> Availability:
        return two_way(availability, network)

    def init(self, x: Tensor, round: Round) -> NextState:
        g = round.grad(x)
        return NextState(x, g, g)

    def step(self, state: NextState, round: Round) -> NextState:
        best = state.x - self.step_size * state.y  # x̃
        x = round.gossip(state.x + self.averaging * (best - state.x))
        g = round.grad(x)
        return NextState(x, round.gossip(state.y) + g - state.g, g)

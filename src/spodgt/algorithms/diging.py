"""DIGing: gradient tracking over changing undirected graphs [nedic2017achieving].

    x⁺ = W x - α y
    y⁺ = W y + ∇f(x⁺) - ∇f(x)      y⁰ = ∇f(x⁰)

Links may come and go, one draw for each pair. Steps that differ between clients are allowed
[nedic2017geometrically].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.network import Network
from spodgt.participation.availability import two_way
from spodgt.types import Availability, Round


class DIGingState(NamedTuple):
    x: Tensor
    y: Tensor
    g: Tensor


@dataclass(frozen=True)
class DIGing(Algorithm):
    name: ClassVar[str] = "diging"
    traits: ClassVar[Traits] = Traits(
        "nedic2017achieving", "gossip", "no", "yes", tracking=True, exact="yes", vectors=2, steps="per client"
    )
    step_size: Rate = 0.01  # α

    def uses(self, availability: Availability, network: Network) -> Availability:
        return two_way(availability, network)

    def init(self, x: Tensor, round: Round) -> DIGingState:
        g = round.grad(x)
        return DIGingState(x, g, g)

    def step(self, state: DIGingState, round: Round) -> DIGingState:
        x = round.gossip(state.x) - self.step_size * state.y
        g = round.grad(x)
        y = round.gossip(state.y) + g - state.g
        return DIGingState(x, y, g)

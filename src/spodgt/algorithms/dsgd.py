"""DSGD, also D-PSGD: mix with the neighbours, step with the own gradient [lian2017can].

    x⁺ = W x - γ g(x)

Over changing links (Ŵ, one draw for each pair) it is [koloskova2020unified]. With a constant step and
different clients it stops a distance of order γ from the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.network import Network
from spodgt.participation.availability import two_way
from spodgt.types import Availability, Round


class DSGDState(NamedTuple):
    x: Tensor
    g: Tensor


@dataclass(frozen=True)
class DSGD(Algorithm):
    name: ClassVar[str] = "dsgd"
    traits: ClassVar[Traits] = Traits("lian2017can", "gossip", "no", "yes")
    step_size: Rate = 0.01  # γ

    def uses(self, availability: Availability, network: Network) -> Availability:
        return two_way(availability, network)

    def init(self, x: Tensor, round: Round) -> DSGDState:
        return DSGDState(x, round.grad(x))

    def step(self, state: DSGDState, round: Round) -> DSGDState:
        x = round.gossip(state.x) - self.step_size * state.g
        return DSGDState(x, round.grad(x))

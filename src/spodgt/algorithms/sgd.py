"""SGD on one machine that holds all data [robbins1951stochastic]: the ceiling.

    x⁺ = x - η mean_i g_i(x)       x⁰ = mean_i x_i⁰

Every row holds the same model, and a step uses the mini-batches of all clients at once. The machine is
never idle: a round costs one gradient at p = 1 and no message, whatever the participation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.network import Network
from spodgt.participation.availability import Served
from spodgt.types import Availability, Round


class SGDState(NamedTuple):
    x: Tensor
    g: Tensor


@dataclass(frozen=True)
class SGD(Algorithm):
    name: ClassVar[str] = "sgd"
    traits: ClassVar[Traits] = Traits("robbins1951stochastic", "none", "yes", "yes", exact="yes")
    step_size: Rate = 0.01  # η

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Served(availability, alone=True)

    def init(self, x: Tensor, round: Round) -> SGDState:
        x = round.average(x)
        return SGDState(x, round.average(round.grad(x)))

    def step(self, state: SGDState, round: Round) -> SGDState:
        x = state.x - self.step_size * state.g
        return SGDState(x, round.average(round.grad(x)))

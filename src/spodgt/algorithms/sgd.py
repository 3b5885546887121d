"""SGD on one machine that computes for all clients [robbins1951stochastic]: an upper bound.

    x⁺ = x - η mean_i g_i(x)       x⁰ = mean_i x_i⁰

Every row is the same model, and a step uses the mini-batches of all clients. The machine is never
idle: a round costs one gradient at p = 1 and no message. The objective is that of all methods, the
mean of the clients' losses; with the problem's client_weights="samples", the mean loss of all
samples.
"""

from dataclasses import dataclass

from spodgt.algorithms.base import Algorithm, GradientState, Rate, Tensor, Traits
from spodgt.algorithms.rounds import ServerRound
from spodgt.network import Network
from spodgt.participation.availability import NoLinks
from spodgt.types import Availability


@dataclass(frozen=True)
class SGD(Algorithm[GradientState, ServerRound]):
    name = "sgd"
    traits = Traits(
        source="robbins1951stochastic",
        mixing="none",
        sporadic_clients="yes",
        sporadic_links="yes",
        exact="yes",
    )
    step_size: Rate = 0.01  # η

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        return NoLinks(availability, alone=True)

    def init(self, x: Tensor, round: ServerRound) -> GradientState:
        x = round.average(x)
        return GradientState(x, round.average(round.grad(x)))

    def step(self, state: GradientState, round: ServerRound) -> GradientState:
        x = state.x - self.step_size * state.g
        return GradientState(x, round.average(round.grad(x)))

"""AD-PSGD: a client that has its gradient averages with one neighbour, then steps [lian2018asynchronous].

    x_i⁺ = (x_i + x_j)/2 - γ g_i(x̂_i)       j: a neighbour, drawn uniformly
    x_j⁺ = (x_i + x_j)/2                    x̂_i: the model of i when its gradient was begun

Others may have averaged with i since x̂_i. In rounds one client wakes in each; in virtual time a client wakes
when its gradient is there and the neighbour's answer has come.
"""

from dataclasses import dataclass

import torch

from spodgt.algorithms.base import Algorithm, GradientState, Rate, Round, Tensor, Traits


@dataclass(frozen=True)
class ADPSGD(Algorithm[GradientState]):
    name = "ad-psgd"
    traits = Traits(
        source="lian2018asynchronous",
        mixing="gossip",
        sporadic_clients="waits",
        sporadic_links="waits",
        mixed_fields=(("gossip", "x"),),
        activation="edge-initiator",
        asynchronous=True,
    )
    step_size: Rate = 0.01  # γ

    def init(self, x: Tensor, round: Round) -> GradientState:
        return GradientState(x, round.grad(x))

    def step(self, state: GradientState, round: Round) -> GradientState:
        x = round.gossip(state.x) - self.step_size * (round.computes * state.g)
        g = torch.where(round.computes, round.grad(x), state.g)
        return GradientState(x, g)

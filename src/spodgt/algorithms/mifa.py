"""MIFA: a server with the last gradient of every client [gu2021fast], one local step (K = 1).

    G_i⁺ = ∇L_i(w) if client i computes, else G_i       G_i = 0 before a client's first gradient
    w⁺ = w - η mean_i G_i⁺                              w⁰ = mean_i x_i⁰

An upper bound for memory: the gradients of `spod-gt-memory`, summed by a server instead of over
links. No link of the network is used, and the clock charges gradients only. In the paper all
clients compute in the first round; here clients join with their first gradient. Every row is w. L_i
includes the weight of client i in the objective, the problem's `client_weights`: equal by default.
"""

from dataclasses import dataclass

import torch

from spodgt.algorithms.base import Algorithm, GradientState, Rate, Tensor, Traits
from spodgt.algorithms.rounds import ServerRound


@dataclass(frozen=True)
class MIFA(Algorithm[GradientState, ServerRound]):
    name = "mifa"
    traits = Traits(
        source="gu2021fast",
        mixing="server",
        sporadic_clients="yes",
        sporadic_links="yes",
        exact="yes",
    )
    step_size: Rate = 0.01  # η

    def init(self, x: Tensor, round: ServerRound) -> GradientState:
        x = round.average(x)
        return GradientState(x, round.grad(x))

    def step(self, state: GradientState, round: ServerRound) -> GradientState:
        x = state.x - self.step_size * round.average(state.g)
        return GradientState(x, torch.where(round.computes, round.grad(x), state.g))

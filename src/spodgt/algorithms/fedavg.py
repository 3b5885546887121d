"""FedAvg: a server averages the models after every K local steps [mcmahan2017communication].

    z ← z - η g(z)                 one local step is one round; an idle client takes none
    every K rounds: z = mean_i z_i

An upper bound: what perfect communication would bring. No link of the network is used, and the clock
charges gradients only; 2 messages per client go to the server and back in every K rounds. All clients
weigh the same, whatever they hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.algorithms.base import Count, GradientState, Rate, Traits
from spodgt.algorithms.shared import LocalSteps, exchanges
from spodgt.types import Round


@dataclass(frozen=True)
class FedAvg(LocalSteps[GradientState]):
    name = "fedavg"
    traits = Traits(
        source="mcmahan2017communication",
        mixing="server",
        sporadic_clients="yes",
        sporadic_links="yes",
        state=GradientState._fields,
        local_steps=True,
        momentum="restarted",
    )
    step_size: Rate = 0.01  # η
    local_steps: Count = 5  # K

    def init(self, x: Tensor, round: Round) -> GradientState:
        return GradientState(x, round.grad(x))

    def step(self, state: GradientState, round: Round) -> GradientState:
        z = state.x - self.step_size * state.g
        if (exchange := exchanges(round.k, self.local_steps)).any():
            z = torch.where(exchange, round.average(z), z)
        return GradientState(z, round.grad(z))

"""DFedAvg: K local steps, then one exchange with the neighbours [sun2022decentralized].

    z ← z - η g(z)                 one local step is one round
    every K rounds: x⁺ = W z;  z = x⁺

With `momentum=θ` it is DFedAvgM: z ← z - η g(z) + θ (z - z₋), started anew after every exchange.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.algorithms.base import Count, GradientState, Rate, Traits
from spodgt.algorithms.shared import LocalSteps, exchanges
from spodgt.types import Round


@dataclass(frozen=True)
class DFedAvg(LocalSteps[GradientState]):
    name = "dfedavg"
    traits = Traits(
        source="sun2022decentralized",
        mixing="gossip",
        sporadic_clients="no",
        sporadic_links="no",
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
            z = torch.where(exchange, round.gossip(z), z)
        return GradientState(z, round.grad(z))

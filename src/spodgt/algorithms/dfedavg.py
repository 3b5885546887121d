"""DFedAvg: K local steps, then one exchange with the neighbours [sun2022decentralized].

    z ← z - η g(z)                 one local step is one round
    every K rounds: x⁺ = W z;  z = x⁺

With `momentum=θ` it is DFedAvgM: z ← z - η g(z) + θ (z - z₋), reset after every exchange.
"""

from dataclasses import dataclass, replace

import torch

from spodgt.algorithms.base import Count, GradientState, LocalSteps, Rate, Round, exchanges
from spodgt.algorithms.dsgd import DSGD


@dataclass(frozen=True)
class DFedAvg(LocalSteps[GradientState], DSGD):
    name = "dfedavg"
    traits = replace(
        DSGD.traits,
        source="sun2022decentralized",
        sporadic_links="no",
        mixed_fields=(),
        local_steps=True,
        momentum="restarted",
    )
    step_size: Rate = 0.01  # η
    local_steps: Count = 5  # K

    def step(self, state: GradientState, round: Round) -> GradientState:
        z = state.x - self.step_size * state.g
        exchange = exchanges(round.k, self.local_steps)
        if exchange.any():
            z = torch.where(exchange, round.gossip(z), z)
        return GradientState(z, round.grad(z))

"""FedAvg: a server averages the models after every K local steps [mcmahan2017communication].

    z ← z - η g(z)                 one local step is one round; an idle client takes none
    every K rounds: z = mean_i z_i

An upper bound: what perfect communication would bring. No link of the network is used, and the clock
charges gradients only; 2 messages per client go to the server and back in every K rounds. All clients
weigh the same, whatever they hold.
"""

from dataclasses import dataclass, replace

import torch

from spodgt.algorithms.base import GradientState, Round, exchanges
from spodgt.algorithms.dfedavg import DFedAvg


@dataclass(frozen=True)
class FedAvg(DFedAvg):
    name = "fedavg"
    traits = replace(
        DFedAvg.traits,
        source="mcmahan2017communication",
        mixing="server",
        sporadic_clients="yes",
        sporadic_links="yes",
        compiled=None,
    )

    def step(self, state: GradientState, round: Round) -> GradientState:
        z = state.x - self.step_size * state.g
        if (exchange := exchanges(round.k, self.local_steps)).any():
            z = torch.where(exchange, round.average(z), z)
        return GradientState(z, round.grad(z))

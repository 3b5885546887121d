"""FedAvg: a server averages the models after every K local steps [mcmahan2017communication].

    z ← z - η g(z)                 one local step is one round; an idle client takes none
    every K rounds: z = Σ_i w_i z_i / Σ_i w_i

An upper bound, with perfect communication. No link of the network is used, and the clock
charges gradients only; every K rounds there are 2 messages per client, to the server and back. w
are the problem's `client_weights`: equal by default; with "samples", the number of samples as in
the paper.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch

from spodgt.algorithms.base import GradientState, Round, exchanges
from spodgt.algorithms.dfedavg import DFedAvg
from spodgt.algorithms.rounds import ServerRound


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
        server = cast(ServerRound, round)
        w = server.client_weight  # with mean 1; g is scaled by it
        z = state.x - self.step_size * (state.g / w)
        exchange = exchanges(round.k, self.local_steps)
        if exchange.any():
            z = torch.where(exchange, server.average(w * z), z)
        return GradientState(z, round.grad(z))

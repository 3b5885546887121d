"""FedAvg: a server averages the models after every K local steps [mcmahan2017communication].

    z ← z - η g(z)                 one local step is one round; an idle client takes none
    every K rounds: z = mean_i z_i

A ceiling: what perfect communication would bring. No link of the network is used, and the clock charges
the gradients only; 2 messages for every client in every K rounds go to the server and back. All clients
weigh the same, whatever they hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.network import Network
from spodgt.participation.availability import Served
from spodgt.types import Availability, Round


class FedAvgState(NamedTuple):
    x: Tensor
    g: Tensor


@dataclass(frozen=True)
class FedAvg(Algorithm):
    name: ClassVar[str] = "fedavg"
    traits: ClassVar[Traits] = Traits(
        "mcmahan2017communication", "server", "yes", "yes", local_steps=True, momentum="restarted"
    )
    step_size: Rate = 0.01  # η
    local_steps: int = 5  # K

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Served(availability)

    def init(self, x: Tensor, round: Round) -> FedAvgState:
        return FedAvgState(x, round.grad(x))

    def step(self, state: FedAvgState, round: Round) -> FedAvgState:
        z = state.x - self.step_size * state.g
        exchange = (
            round.k % torch.as_tensor(self.local_steps, device=z.device) == 0
        )  # K may differ between runs
        if exchange.any():
            z = torch.where(exchange, round.average(z), z)
        return FedAvgState(z, round.grad(z))

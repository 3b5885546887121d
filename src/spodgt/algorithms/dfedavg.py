"""DFedAvg: K local steps, then one exchange with the neighbours [sun2022decentralized].

    z ← z - η g(z)                 one local step is one round
    every K rounds: x⁺ = W z;  z = x⁺

With `momentum=θ` it is DFedAvgM: z ← z - η g(z) + θ (z - z₋), started anew after every exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.network import Network
from spodgt.participation.availability import Overlay
from spodgt.types import Availability, Round


class DFedAvgState(NamedTuple):
    x: Tensor
    g: Tensor


@dataclass(frozen=True)
class DFedAvg(Algorithm):
    name: ClassVar[str] = "dfedavg"
    traits: ClassVar[Traits] = Traits(
        "sun2022decentralized", "gossip", "no", "no", local_steps=True, momentum="restarted"
    )
    step_size: Rate = 0.01  # η
    local_steps: int = 5  # K

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Overlay(availability, every=self.local_steps)

    def init(self, x: Tensor, round: Round) -> DFedAvgState:
        return DFedAvgState(x, round.grad(x))

    def step(self, state: DFedAvgState, round: Round) -> DFedAvgState:
        z = state.x - self.step_size * state.g
        exchange = (
            round.k % torch.as_tensor(self.local_steps, device=z.device) == 0
        )  # K may differ between runs
        if exchange.any():
            z = torch.where(exchange, round.gossip(z), z)
        return DFedAvgState(z, round.grad(z))

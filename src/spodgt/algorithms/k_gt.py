"""K-GT: K local steps between exchanges, with gradient tracking [liu2025decentralized].

    z ← z - η (∇L(z) + c)            one local step is one round
    every K rounds: d = (x - z)/(Kη);  c⁺ = c - d + B d;  x⁺ = A (x - η_s K η d);  z = x⁺

With A = B = W it is the published method. The state's x is z, `anchor` is x. K = ⌈mean(1/p)⌉ by default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.ab_push_pull import ABPushPull
from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.network import Network
from spodgt.participation.availability import Overlay
from spodgt.types import Availability, Round


class KGTState(NamedTuple):
    x: Tensor
    g: Tensor
    anchor: Tensor
    c: Tensor


@dataclass(frozen=True)
class KGT(Algorithm):
    name: ClassVar[str] = "k-gt"
    traits: ClassVar[Traits] = replace(
        ABPushPull.traits, source="liu2025decentralized", local_steps=True, mixes=(), rule=None, compiled=None
    )
    step_size: Rate = 0.01  # η
    local_steps: Any = None  # K
    server_step: float = 1.0  # η_s

    def fit(self, availability: Availability) -> KGT:
        K = int(np.ceil(min(np.mean(1 / availability.p), 2.0**53)))  # p may be next to nothing
        return replace(self, local_steps=self.local_steps or K)

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Overlay(availability, all_clients=True, all_links=True, every=self.local_steps or 1)

    def init(self, x: Tensor, round: Round) -> KGTState:
        return KGTState(x, round.grad(x), x, x.new_zeros(x.shape))

    def step(self, state: KGTState, round: Round) -> KGTState:
        K, eta = self.local_steps, self.step_size
        z, x, c = state.x - eta * (state.g + state.c), state.anchor, state.c
        exchange = round.k % torch.as_tensor(K, device=z.device) == 0  # K may differ between runs
        if exchange.any():
            d = (x - z) / K / eta
            c = torch.where(exchange, c - d + round.push(d), c)
            x = torch.where(exchange, round.pull(x - self.server_step * (eta * (K * d))), x)
            z = torch.where(exchange, x, z)
        return KGTState(z, round.grad(z), x, c)

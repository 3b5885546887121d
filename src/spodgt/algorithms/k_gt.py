"""K-GT: K local steps between exchanges, with gradient tracking [liu2025decentralized].

    z ← z - η (∇L(z) + c)            one local step is one round
    s ← s + ∇L(z) + c
    every K rounds: d = s/K;  c⁺ = c - d + B d;  x⁺ = A (x - η_s K η d);  z = x⁺;  s = 0

With A = B = W it is the published method: d = (x - z)/(Kη), for any η > 0. The state's x is z,
`anchor` is x. K = ⌈mean(1/p)⌉ by default.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.ab import AB
from spodgt.algorithms.base import Count, LocalSteps, Positive, Rate, Round, exchanges
from spodgt.types import Availability


class KGTState(NamedTuple):
    x: Tensor
    g: Tensor
    anchor: Tensor
    c: Tensor
    s: Tensor


@dataclass(frozen=True)
class KGT(LocalSteps[KGTState]):
    name = "k-gt"
    traits = replace(
        AB.traits, source="liu2025decentralized", sporadic_clients="waits", sporadic_links="waits",
        mixed_fields=(), local_steps=True, direction=False
    )  # fmt: skip
    step_size: Rate = 0.01  # η
    local_steps: Count | None = None  # K
    server_step: Positive = 1.0  # η_s

    def fit(self, availability: Availability) -> "KGT":
        K = math.ceil(min(float(np.mean(1 / availability.p)), 2.0**53))  # p may be tiny
        return replace(self, local_steps=self.local_steps or K)

    def init(self, x: Tensor, round: Round) -> KGTState:
        return KGTState(x, round.grad(x), x, x.new_zeros(x.shape), x.new_zeros(x.shape))

    def step(self, state: KGTState, round: Round) -> KGTState:
        z, g, x, c, s = state
        K = self.local_steps
        assert K is not None, "`fit` sets K"
        z = z - self.step_size * (g + c)
        s = s + (g + c)
        exchange = exchanges(round.k, K)
        if exchange.any():
            d = s / K
            c = torch.where(exchange, c - d + round.push(d), c)
            x = torch.where(exchange, round.pull(x - self.server_step * (self.step_size * s)), x)
            z = torch.where(exchange, x, z)
            s = torch.where(exchange, torch.zeros_like(s), s)
        return KGTState(z, round.grad(z), x, c, s)

"""SCAFFOLD: local steps with control variates and a server [karimireddy2020scaffold].

    z ← z - η (g(z) + c - c_i)                one local step is one round; an idle client takes none
    every K rounds, for clients i that computed: c_i = mean of their gradients g(z)
    z = Σ_i w_i z_i / Σ_i w_i over these clients; c = Σ_i w_i c_i / Σ_i w_i over all

With SGD the mean of the gradients is the paper's option II, c_i - c + (x - z)/(Kη). Its server step
is 1. An upper bound for `local-gt`, with perfect communication: no link of the network is used, and
the clock charges gradients only. w are the problem's `client_weights`: equal by default.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from spodgt.algorithms.base import Count, LocalSteps, Rate, Round, Tensor, Traits, exchanges
from spodgt.algorithms.rounds import ServerRound


class SCAFFOLDState(NamedTuple):
    x: Tensor  # z
    gradient: Tensor
    active: Tensor  # (clients, 1) 1 if `gradient` is one, 0 if the client was idle
    own: Tensor  # c_i
    c: Tensor
    s: Tensor  # sum of the gradients since the last exchange
    h: Tensor  # (clients, 1) their number


@dataclass(frozen=True)
class SCAFFOLD(LocalSteps[SCAFFOLDState]):
    name = "scaffold"
    traits = Traits(
        source="karimireddy2020scaffold", mixing="server", sporadic_clients="yes",
        sporadic_links="yes", tracking=True, local_steps=True, exact="yes", vectors=2,
        idle_steps=False,
    )  # fmt: skip
    step_size: Rate = 0.01  # η
    local_steps: Count = 5  # K

    def init(self, x: Tensor, round: Round) -> SCAFFOLDState:
        zero = x.new_zeros(x.shape)
        active = round.computes.to(x)
        h = torch.zeros_like(active)
        return SCAFFOLDState(x, round.grad(x), active, zero, zero, zero, h)

    def step(self, state: SCAFFOLDState, round: Round) -> SCAFFOLDState:
        z, gradient, active, own, c, s, h = state
        server = cast(ServerRound, round)
        w = server.client_weight  # with mean 1; gradients are scaled by it
        g = gradient / w
        z = torch.where(active > 0, z - self.step_size * (g + c - own), z)
        s = s + g
        h = h + active
        exchange = exchanges(round.k, self.local_steps)
        if exchange.any():
            weight = w * (h > 0)
            share = server.average(weight)
            mean = server.average(weight * z) / share.clamp(min=1e-30)
            z = torch.where(exchange & (share > 0), mean, z)
            own = torch.where(exchange & (h > 0), s / h.clamp(min=1), own)
            c = torch.where(exchange, server.average(w * own), c)
            s = torch.where(exchange, torch.zeros_like(s), s)
            h = torch.where(exchange, torch.zeros_like(h), h)
        return SCAFFOLDState(z, round.grad(z), round.computes.to(z), own, c, s, h)

"""G-Push-Pull proper: push-pull by random gossip over directed graphs [pu2020push].

    client i wakes, pulls from an in-neighbour j and pushes to an out-neighbour l
    x⁺ = R̂ x - α c⊙y                     R̂: x_i meets x_j halfway
    y⁺ = Ĉ y + g⁺ - g                     Ĉ: half of y_i goes to l
    g⁺ = where(c, ∇f(x⁺), g)              c = 1 for i, j and l: only they step

Chosen here, the paper's listing not being at hand: one neighbour each way, weights of one half, and j
steps as well, though its model does not move. `g-push-pull` is what the Spod-GT paper compares with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from spodgt.algorithms.ab import AB, ABState
from spodgt.algorithms.base import Traits
from spodgt.network import Network
from spodgt.participation.availability import Woken
from spodgt.types import Availability, Round


@dataclass(frozen=True)
class GossipPushPull(AB):
    name: ClassVar[str] = "gossip-push-pull"
    traits: ClassVar[Traits] = replace(
        AB.traits,
        source="pu2020push",
        sporadic_clients="waits",
        sporadic_links="waits",
        vectors=1,
        talks="client",
    )

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Woken(availability, network)

    def weighs(self, network: Network) -> Network:
        return replace(network, a=np.full(network.links, 0.5), b=np.full(network.links, 0.5))

    def step(self, state: ABState, round: Round) -> ABState:
        x = round.pull(state.x) - self.step_size * (round.computes * state.y)
        g = torch.where(round.computes, round.grad(x), state.g)
        y = round.push(state.y) + g - state.g
        return ABState(x, y, g)

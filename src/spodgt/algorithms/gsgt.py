"""GSGT: gradient tracking by gossip, one random pair in a round [pu2021distributed].

    for the pair i, j that meets:  x_i⁺ = (x_i + x_j)/2 - α y_i
                                   y_i⁺ = (y_i + y_j)/2 + g_i(x_i⁺) - g_i(x_i)
    and the same for j; nothing changes elsewhere, and old gradients are kept, not redrawn

Chosen here, the paper's listing not being at hand: who wakes always meets a neighbour, drawn uniformly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, Rate, Traits
from spodgt.algorithms.gossip_push_pull import GossipPushPull
from spodgt.network import Network
from spodgt.participation.availability import Woken
from spodgt.types import Availability, Round


class GSGTState(NamedTuple):
    x: Tensor
    y: Tensor
    g: Tensor


@dataclass(frozen=True)
class GSGT(Algorithm):
    name: ClassVar[str] = "gsgt"
    traits: ClassVar[Traits] = replace(
        GossipPushPull.traits, source="pu2021distributed", mixing="gossip", vectors=2, talks="pair"
    )
    step_size: Rate = 0.01  # α

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Woken(availability, network, pairs=True)

    def weighs(self, network: Network) -> Network:
        return replace(network, w=np.full(network.links, 0.5))

    def init(self, x: Tensor, round: Round) -> GSGTState:
        g = round.grad(x)
        return GSGTState(x, g, g)

    def step(self, state: GSGTState, round: Round) -> GSGTState:
        x = round.gossip(state.x) - self.step_size * (round.computes * state.y)
        g = torch.where(round.computes, round.grad(x), state.g)
        y = round.gossip(state.y) + g - state.g
        return GSGTState(x, y, g)

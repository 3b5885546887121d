"""Randomized gossip: averaging alone, one random pair in a round [boyd2006randomized].

    x_i⁺ = x_j⁺ = (x_i + x_j)/2      client i is activated and draws a neighbour j

There are no gradients: the models tend to the average of the x⁰. A reference for mixing.
"""

from dataclasses import dataclass
from typing import NamedTuple

from spodgt.algorithms.base import Algorithm, Round, Tensor, Traits


class GossipState(NamedTuple):
    x: Tensor


@dataclass(frozen=True)
class Gossip(Algorithm[GossipState]):
    name = "gossip"
    traits = Traits(
        source="boyd2006randomized",
        mixing="gossip",
        sporadic_clients="waits",
        sporadic_links="waits",
        mixed_fields=(("gossip", "x"),),
        activation="edge",
        steps="none",
        momentum="none",
        direction=False,
    )

    def init(self, x: Tensor, round: Round) -> GossipState:
        return GossipState(x)

    def step(self, state: GossipState, round: Round) -> GossipState:
        return GossipState(round.gossip(state.x))

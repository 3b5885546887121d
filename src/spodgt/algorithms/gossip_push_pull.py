"""A gossip form of push-pull over directed graphs, after [pu2020push], but not its listing.

    client i is activated, pulls from an in-neighbour j and pushes to an out-neighbour l
    x⁺ = R̂ x - α c⊙y                     R̂: x_i becomes the mean of x_i and x_j
    y⁺ = Ĉ y + g⁺ - g                     Ĉ: half of y_i is sent to l
    g⁺ = where(c, ∇f(x⁺), g)              c = 1 for i, j and l: only they step

From the paper: push-pull's recursion with random R̂ and Ĉ, where few clients act in a round. Ours:
the neighbours (one each way, drawn uniformly), the weights of one half, and the step of j.
`g-push-pull` is the baseline of the Spod-GT paper.
"""

from dataclasses import dataclass, replace

import torch

from spodgt.algorithms.ab import AB
from spodgt.algorithms.base import Round, TrackingState


@dataclass(frozen=True)
class GossipPushPull(AB):
    name = "gossip-push-pull"
    traits = replace(
        AB.traits,
        source="pu2020push",
        sporadic_clients="waits",
        sporadic_links="waits",
        vectors=1,
        activation="node",
    )

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        x = round.pull(state.x) - self.step_size * (round.computes * state.y)
        g = torch.where(round.computes, round.grad(x), state.g)
        y = round.push(state.y) + g - state.g
        return TrackingState(x, y, g)

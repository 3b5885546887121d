"""Gradient tracking by pairwise gossip, after GSGT [pu2021distributed], but not its listing.

    for the active pair i, j:      x_i⁺ = (x_i + x_j)/2 - α y_i
                                   y_i⁺ = (y_i + y_j)/2 + g_i(x_i⁺) - g_i(x_i)
    and the same for j; nothing changes elsewhere, and old gradients are kept, not redrawn

From the paper: stochastic gradient tracking where one random pair averages in a round. Ours: the
active client draws its neighbour uniformly, and both step along the tracker of before the exchange.
"""

from dataclasses import dataclass, replace

import torch

from spodgt.algorithms.base import Round, TrackingState
from spodgt.algorithms.diging import DIGing


@dataclass(frozen=True)
class GSGT(DIGing):
    name = "gsgt"
    traits = replace(
        DIGing.traits,
        source="pu2021distributed",
        sporadic_clients="waits",
        sporadic_links="waits",
        activation="edge",
    )

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        x = round.gossip(state.x) - self.step_size * (round.computes * state.y)
        g = torch.where(round.computes, round.grad(x), state.g)
        y = round.gossip(state.y) + g - state.g
        return TrackingState(x, y, g)

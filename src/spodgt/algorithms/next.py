"""NEXT: in-network nonconvex optimization by successive convex approximation [di2016next].

    x̃ = argmin f̃(·; x) + π̃·(· - x),  π̃ = m y - ∇f(x)
    z = x + α (x̃ - x)
    x⁺ = W z
    y⁺ = W y + ∇f(x⁺) - ∇f(x)      y⁰ = ∇f(x⁰)

Chosen here: the linearised surrogate f̃ = ∇f(x)·(· - x) + τ/2 |· - x|² and no regulariser, so that
x̃ = x - η y with η = m/τ. In the paper α decays; a constant one is exact for smooth problems.
"""

from dataclasses import dataclass, replace

from spodgt.algorithms.base import Rate, Round, Share, TrackingState
from spodgt.algorithms.diging import DIGing


@dataclass(frozen=True)
class Next(DIGing):
    name = "next"
    traits = replace(DIGing.traits, source="di2016next", mixed_fields=(("gossip", "y"),))
    step_size: Rate = 0.01  # η
    averaging: Share = 1.0  # α

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        best = state.x - self.step_size * state.y  # x̃
        x = round.gossip(state.x + self.averaging * (best - state.x))
        g = round.grad(x)
        y = round.gossip(state.y) + g - state.g
        return TrackingState(x, y, g)

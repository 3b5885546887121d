"""DIGing: gradient tracking over changing undirected graphs [nedic2017achieving].

    x⁺ = W x - α y
    y⁺ = W y + ∇f(x⁺) - ∇f(x)      y⁰ = ∇f(x⁰)

Links may be sporadic, with one draw for each pair. Steps may differ between clients
[nedic2017geometrically].
"""

from dataclasses import dataclass, replace

from spodgt.algorithms.ab import AB
from spodgt.algorithms.base import Round, TrackingState


@dataclass(frozen=True)
class DIGing(AB):
    name = "diging"
    traits = replace(
        AB.traits,
        source="nedic2017achieving",
        mixing="gossip",
        mixed_fields=(("gossip", "x"), ("gossip", "y")),
    )

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        x = round.gossip(state.x) - self.step_size * state.y
        g = round.grad(x)
        y = round.gossip(state.y) + g - state.g
        return TrackingState(x, y, g)

"""ASY-SONATA: asynchronous gradient tracking with running sums [tian2020achieving].

    v⁺ = x - γ z                            z: the part of the tracker that is not sent
    x⁺ = w_ii v⁺ + Σ_j w_ij v_j             v_j: the last one received from neighbour j
    z½ = z + Σ_j (ρ_ij - ρ̃_ij) + ∇f(x⁺) - ∇f(x)
    z⁺ = a_ii z½,  ρ_ji⁺ = ρ_ji + a_ji z½,  ρ̃_ij⁺ = ρ_ij

ρ are running sums, ρ̃ the parts received, so late and lost messages lose nothing. In our letters y
is z½, and Σy + messages in flight = Σg: x⁺ = A (x - γ diag(B̂) y), y⁺ = B̂ y + g⁺ - g. Designed for
virtual time. In rounds all clients act together, and the weight of an inactive link remains at the
receiver.

R-FAST [zhu2023rfast] has the same recursion with stochastic gradients, of which the old one is
kept, not drawn again; `r-fast` is an alias. Its paper allows different graphs for W and A, if two
spanning trees in them share a root; here both are the network's.
"""

from dataclasses import dataclass, replace
from typing import cast

from spodgt.algorithms.ab import AB
from spodgt.algorithms.base import Round, TrackingState
from spodgt.algorithms.rounds import PushRound


@dataclass(frozen=True)
class AsySONATA(AB):
    name = "asy-sonata"
    traits = replace(
        AB.traits,
        source="tian2020achieving",
        mixed_fields=(("push", "y"),),
        steps="common",
        asynchronous=True,
        uses_stale_models=True,
        compiled=None,
    )

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        v = state.x - self.step_size * (cast(PushRound, round).push_self_weight * state.y)
        x = round.pull(v)
        g = round.grad(x)
        y = round.push(state.y) + g - state.g
        return TrackingState(x, y, g)

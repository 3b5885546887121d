"""Push-Pull gradient tracking over directed graphs [pu2020push].

    x⁺ = R (x - α y)               models are pulled after the step
    y⁺ = C y + ∇F(x⁺) - ∇F(x)      trackers are pushed; y⁰ = ∇F(x⁰)

R is our A and C our B. α is a number or, as in the paper, one per client. The paper has a fixed
graph; over changing links it is AB/Push-Pull [nedic2025ab].
"""

from dataclasses import dataclass, replace

from spodgt.algorithms.ab import AB
from spodgt.algorithms.base import Round, TrackingState


@dataclass(frozen=True)
class PushPull(AB):
    name = "push-pull"
    traits = replace(AB.traits, source="pu2020push", mixed_fields=(("push", "y"),))

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        x = round.pull(state.x - self.step_size * state.y)
        g = round.grad(x)
        y = round.push(state.y) + g - state.g
        return TrackingState(x, y, g)

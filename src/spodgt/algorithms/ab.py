"""AB: a row-stochastic A for the models, a column-stochastic B for the trackers [xin2018linear].

    x⁺ = A x - α y
    y⁺ = B y + ∇f(x⁺) - ∇f(x)      y⁰ = ∇f(x⁰), so Σy = Σ∇f in every round

The paper has a fixed graph; the same recursion over changing links is TV-AB
[saadatniaki2020decentralized]. Steps may differ between clients, because y tends to zero.
"""

from dataclasses import dataclass

from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor, TrackingState, Traits


@dataclass(frozen=True)
class AB(Algorithm[TrackingState]):
    name = "ab"
    traits = Traits(
        source="xin2018linear",
        mixing="pull+push",
        sporadic_clients="no",
        sporadic_links="yes",
        mixed_fields=(("pull", "x"), ("push", "y")),
        tracking=True,
        exact="yes",
        vectors=2,
        steps="per client",
        compiled="linear",
    )
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: Round) -> TrackingState:
        g = round.grad(x)
        return TrackingState(x, g, g)

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        x = round.pull(state.x) - self.step_size * state.y
        g = round.grad(x)
        y = round.push(state.y) + g - state.g
        return TrackingState(x, y, g)

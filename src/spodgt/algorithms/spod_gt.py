"""Sporadic gradient tracking over directed graphs [zehtabi2026sporadic].

    y½ = B̂ y                trackers are pushed over active links
    x⁺ = Â x - η y½         models are pulled over the same links
    y⁺ = y½ + g⁺ - g        g⁺ = v⁺ ⊙ ∇L(x⁺): the gradient of an idle client is zero

Columns of B̂ sum to one, so Σy = Σg in every round, for any participation. Idle clients are
under-weighted: the method converges to a neighbourhood of the minimiser of Σ p_i F_i.
"""

from dataclasses import dataclass

from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor, TrackingState, Traits


@dataclass(frozen=True)
class SpodGT(Algorithm[TrackingState]):
    name = "spod-gt"
    traits = Traits(
        source="zehtabi2026sporadic",
        mixing="pull+push",
        sporadic_clients="yes",
        sporadic_links="yes",
        mixed_fields=(("push", "y"), ("pull", "x")),
        tracking=True,
        exact="all active",
        vectors=2,
        steps="per client",
        rule="zero",
        compiled="gradient-tracking",
        asynchronous=True,
    )
    step_size: Rate = 0.01  # η

    def gradient(self, x: Tensor, g: Tensor, round: Round) -> Tensor:
        """g⁺ at the new models x; g is that of the last round, zero in round 0."""
        return round.grad(x)

    def init(self, x: Tensor, round: Round) -> TrackingState:
        g = self.gradient(x, x.new_zeros(x.shape), round)
        return TrackingState(x, g, g)

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        y = round.push(state.y)
        x = round.pull(state.x) - self.step_size * y
        g = self.gradient(x, state.g, round)
        return TrackingState(x, y + g - state.g, g)

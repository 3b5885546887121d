"""DSGD, also D-PSGD: mix with the neighbours, step along the own gradient [lian2017can].

    x⁺ = W x - γ g(x)

Over changing links (Ŵ, one draw for each pair) it is [koloskova2020unified]. With a constant step
and heterogeneous clients it stops at a distance of order γ from the optimum; a decaying one,
`step_size=InverseSqrt(0.1)`, makes the limit exact. With full gradients it is DGD
[nedic2009distributed]; `dgd` is an alias.
"""

from dataclasses import dataclass

from spodgt.algorithms.base import Algorithm, GradientState, Rate, Round, Tensor, Traits


@dataclass(frozen=True)
class DSGD(Algorithm[GradientState]):
    name = "dsgd"
    traits = Traits(
        source="lian2017can",
        mixing="gossip",
        sporadic_clients="no",
        sporadic_links="yes",
        mixed_fields=(("gossip", "x"),),
        compiled="linear",
    )
    step_size: Rate = 0.01  # γ

    def init(self, x: Tensor, round: Round) -> GradientState:
        return GradientState(x, round.grad(x))

    def step(self, state: GradientState, round: Round) -> GradientState:
        x = round.gossip(state.x) - self.step_size * state.g
        return GradientState(x, round.grad(x))

"""Local SGD over directed graphs: averaging of models after blocks of local steps [stich2019local].

    x⁺ = Â (x - η g)              an idle client takes no step; links are used at the end of blocks

Receivers weight, so A is row-stochastic. Clients have the weights of its Perron vector φ (φᵀÂ = φᵀ
in the mean) and of their numbers of local steps: even for η → 0 the limit is not the minimiser of
the average, but near that of Σ φ_i p_i F_i. The paper has a server; `local-sgp` removes φ by
push-sum. Blocks as in `local-gt`.
"""

from dataclasses import dataclass
from typing import Annotated

from spodgt.algorithms.base import GradientState, Rate, Round, Tensor, Traits
from spodgt.algorithms.block_steps import BlockSteps
from spodgt.participation.local_blocks import BlockLengths, check_block_lengths


@dataclass(frozen=True)
class LocalSGD(BlockSteps[GradientState]):
    name = "local-sgd"
    traits = Traits(
        source="stich2019local",
        mixing="pull",
        sporadic_clients="yes",
        sporadic_links="yes",
        local_steps=True,
        asynchronous=True,
    )
    step_size: Rate = 0.01  # η
    local_steps: Annotated[BlockLengths, check_block_lengths] = 5

    def init(self, x: Tensor, round: Round) -> GradientState:
        return GradientState(x, round.grad(x))

    def step(self, state: GradientState, round: Round) -> GradientState:
        x = round.pull(state.x - self.step_size * state.g)
        return GradientState(x, round.grad(x))

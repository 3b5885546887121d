"""Local SGP: push-sum averaging after blocks of local steps, after SGP [assran2019stochastic].

    u⁺ = B̂ (u - η g)              an idle client takes no step; links are used at the end of blocks
    s⁺ = B̂ s                      s⁰ = 1
    x⁺ = u⁺/s⁺

As in SGP the sum of the u moves along the sum of the gradients, whatever the graph. Clients that
take more local steps weigh more, and a constant step leaves a bias of order ηK. Blocks as in
`local-gt`.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from spodgt.algorithms.base import Rate, Round, Tensor
from spodgt.algorithms.block_steps import BlockSteps
from spodgt.algorithms.sgp import SGP, SGPState
from spodgt.participation.local_blocks import BlockLengths, check_block_lengths


@dataclass(frozen=True)
class LocalSGP(BlockSteps[SGPState]):
    name = "local-sgp"
    traits = replace(
        SGP.traits,
        sporadic_clients="yes",
        local_steps=True,
        asynchronous=True,
        compiled=None,
    )
    step_size: Rate = 0.01  # η
    local_steps: Annotated[BlockLengths, check_block_lengths] = 5

    def init(self, x: Tensor, round: Round) -> SGPState:
        return SGPState(x, round.grad(x), x, x.new_ones(len(x), 1))

    def step(self, state: SGPState, round: Round) -> SGPState:
        u = round.push(state.u - self.step_size * state.g)
        s = round.push(state.s)
        x = u / s
        return SGPState(x, round.grad(x), u, s)

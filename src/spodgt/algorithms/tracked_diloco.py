"""DiLoCo without a server: pseudo-gradients of blocks, tracked by push-pull [spodgt].

    z  = x - η g                      local step; an idle client has z = x
    at the end of a block with gradients, a: the model at its start
    c⁺ = a - z                        the pseudo-gradient
    m⁺ = β m + y½                     y½ = y + c⁺ - c
    a½ = a - γ (y½ + β m⁺)            outer step γ with Nesterov momentum β
    a⁺ = Â a½,  y⁺ = B̂ y½             at the end of blocks, over active links
    x⁺ = a⁺ at the end of a block, else z + a⁺ - a

In DiLoCo [douillard2023diloco] a server averages the pseudo-gradients. Σy = Σc holds as in
`local-gt`, but the limit has Σ (a_i - z_i) = 0 instead of Σ∇F_i = 0: a bias of order ηK, and of
block lengths, step sizes and inner optimizers. A baseline for `local-gt`; blocks as there.
"""

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch

from spodgt.algorithms.base import Fraction, Positive, Rate, Tensor
from spodgt.algorithms.block_steps import BlockSteps
from spodgt.algorithms.local_gt import LocalGT
from spodgt.algorithms.rounds import BlockRound
from spodgt.participation.local_blocks import BlockLengths, check_block_lengths


class TrackedDilocoState(NamedTuple):
    x: Tensor
    y: Tensor
    c: Tensor
    gradient: Tensor
    a: Tensor
    m: Tensor
    h: Tensor  # (clients, 1) gradients in the block
    active: Tensor  # (clients, 1) 1 if `gradient` is one, 0 if the client was idle


@dataclass(frozen=True)
class TrackedDiloco(BlockSteps[TrackedDilocoState, BlockRound]):
    name = "tracked-diloco"
    traits = replace(LocalGT.traits, source="spodgt", exact="no")
    step_size: Rate = 0.01  # η
    local_steps: Annotated[BlockLengths, check_block_lengths] = 5
    outer_step: Positive = 1.0  # γ
    nesterov: Fraction = 0.0  # β

    def init(self, x: Tensor, round: BlockRound) -> TrackedDilocoState:
        zero = x.new_zeros(x.shape)
        active = round.computes.to(x)
        h = torch.zeros_like(active)
        return TrackedDilocoState(x, zero, zero, round.grad(x), x, zero, h, active)

    def step(self, state: TrackedDilocoState, round: BlockRound) -> TrackedDilocoState:
        x, y, c, g, a, m, h, active = state
        z = x - self.step_size * g
        h = h + active
        ends = round.block_ends & (h > 0)
        new_c = torch.where(ends, a - z, c)
        y = y + (new_c - c)
        m = torch.where(ends, self.nesterov * m + y, m)
        outer = torch.where(ends, a - self.outer_step * (y + self.nesterov * m), a)
        a = round.pull(outer)
        x = torch.where(ends, a, z + (a - outer))
        h = torch.where(ends, torch.zeros_like(h), h)
        y = round.push(y)
        active = round.computes.to(x)
        return TrackedDilocoState(x, y, new_c, round.grad(x), a, m, h, active)

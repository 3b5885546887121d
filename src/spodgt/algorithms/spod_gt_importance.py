"""Spod-GT with importance weights: gradients of client i are scaled by 1/p_i.

    g⁺ = v⁺ ⊙ ∇L(x⁺) / p

Unbiased, so it converges to a neighbourhood of the true optimum; but the gradient noise of rarely
active clients grows as 1/p_i.
"""

from dataclasses import dataclass, replace

import torch

from spodgt.algorithms.base import Round, Tensor
from spodgt.algorithms.spod_gt import SpodGT


@dataclass(frozen=True)
class SpodGTImportance(SpodGT):
    name = "spod-gt-importance"
    traits = replace(SpodGT.traits, source="spodgt", rule="importance")

    def gradient(self, x: Tensor, g: Tensor, round: Round) -> Tensor:
        new = round.grad(x)
        return torch.where(round.computes, new / round.p, new)  # a tiny p may be 0 in float32

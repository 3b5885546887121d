"""Spod-GT with memory: an idle client keeps its last gradient instead of dropping it.

    g⁺ = where(v⁺, ∇L(x⁺), g)     g = 0 before a client's first gradient

The rest is Spod-GT. Σy = Σg still holds, and Σg is now the sum over *all* clients, with stale
gradients of idle ones. (x = x*, y = 0, g_i = ∇F_i(x*)) is a fixed point for every pattern of links
and clients, so Spod-GT's bias due to idle clients vanishes. Up to the order of mixing and stepping
it is push-pull with device sampling [hsieh2023push], which takes gradients at Âx instead of x.
"""

from dataclasses import dataclass, replace

import torch

from spodgt.algorithms.base import Round, Tensor
from spodgt.algorithms.spod_gt import SpodGT


@dataclass(frozen=True)
class SpodGTMemory(SpodGT):
    name = "spod-gt-memory"
    traits = replace(SpodGT.traits, source="hsieh2023push", exact="yes", rule="memory")

    def gradient(self, x: Tensor, g: Tensor, round: Round) -> Tensor:
        return torch.where(round.computes, round.grad(x), g)

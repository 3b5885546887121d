"""Momentum for any method that takes gradients [polyak1964some].

    m⁺ = β m + g        for active clients; an idle client keeps its m

The method gets m instead of g. A linear filter does not change fixed points, so an exact method
stays exact: in DSGD this is [yu2019linear], in a tracker momentum tracking [takezawa2022momentum],
in D² [hu2025bias], in DFedAvg the published heavy ball. Steps are 1/(1 - β) times longer, as in
torch.optim.SGD.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.algorithms.base import S, exchanges, fraction
from spodgt.algorithms.compose.gradient_layer import GradientLayer
from spodgt.algorithms.compose.wrapper import Memory
from spodgt.types import Round


@dataclass(frozen=True)
class Momentum(GradientLayer[S]):
    """`base` with heavy-ball momentum `beta` (β, in [0, 1)) on the gradients of every client."""

    name = "momentum"
    key = "momentum"
    example = "0.9"
    beta: float = 0.9

    def __post_init__(self) -> None:
        if not fraction(self.beta):
            raise self.invalid("in [0, 1)", self.beta)
        self.set_traits("momentum", "momentum", compiled=self.compiled_name)

    def initial_memory(self, x: Tensor) -> Memory:
        return (x.new_zeros(x.shape),)

    def memory_of_round(self, memory: Memory, round: Round) -> Memory:
        if self.traits.momentum != "restarted" or self.local_steps is None:
            return memory
        (m,) = memory
        return (torch.where(exchanges(round.k, self.local_steps), torch.zeros_like(m), m),)

    def transform(self, g: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        m = self.beta * memory[0] + g
        return m, (m,)

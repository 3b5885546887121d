"""Adam on the direction of a step [kingma2015adam]; on a tracker it is GTAdam [carnevale2023gtadam].

    m⁺ = β₁ m + (1 - β₁) y
    v⁺ = β₂ v + (1 - β₂) y²
    step along  (m⁺/(1 - β₁^k)) / (√(v⁺/(1 - β₂^k)) + ε)      k counts the client's own steps

Every client has its own m and v and sends neither; Σy = Σg is untouched. y = 0 stays a fixed point, but
near it a constant step is as long as before, because v falls with y: plain Adam ends in a ball of the
order of η. With `amsgrad` [reddi2018convergence] the largest v so far stands below the root; steps then
shrink with y, and an exact method stays exact. GTAdam bounds v from below by ε instead, has no 1 - β^k, and
is exact for η of the order of ε.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.algorithms.base import S, fraction, positive
from spodgt.algorithms.compose.wrapper import DirectionLayer, Memory


@dataclass(frozen=True)
class Adam(DirectionLayer[S]):
    """`base` stepping along its direction divided by the root of the mean of its squares."""

    name = "adam"
    key, example = "adam", "True"
    beta1: float = 0.9  # β₁
    beta2: float = 0.999  # β₂
    epsilon: float = 1e-8  # ε
    amsgrad: bool = False

    def __post_init__(self) -> None:
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not fraction(beta):
                raise self.refuse(f"with {name} in [0, 1)", beta)
        if not isinstance(self.amsgrad, bool):
            raise self.refuse("with amsgrad true or false", self.amsgrad)
        positive(self.epsilon, f"epsilon of {self.base.name}+adam")
        names = ("adam_m", "adam_v", "adam_left", *(("adam_top",) if self.amsgrad else ()))
        self.declares("adam", *names, rule=None, **({} if self.amsgrad else {"exact": "no"}))

    def begin(self, x: Tensor) -> Memory:
        zero = x.new_zeros(x.shape)
        return (zero, zero, x.new_ones(len(x), 2), *((zero,) if self.amsgrad else ()))

    def turned(self, y: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        m, v, left, *top = memory
        m = self.beta1 * m + (1 - self.beta1) * y
        v = self.beta2 * v + (1 - self.beta2) * y.square()
        left = left * left.new_tensor(
            [self.beta1, self.beta2]
        )  # β^k: a power's last digit is the platform's
        top = [torch.maximum(each, v) for each in top]
        below = ((top[0] if top else v) / (1 - left[:, 1:])).sqrt() + self.epsilon
        return m / (1 - left[:, :1]) / below, (m, v, left, *top)

"""Adam on the direction of a step [kingma2015adam]; on a tracker: GTAdam [carnevale2023gtadam].

    m⁺ = β₁ m + (1 - β₁) y
    v⁺ = β₂ v + (1 - β₂) y²
    step along  (m⁺/(1 - β₁^k)) / (√(v⁺/(1 - β₂^k)) + ε)      k: number of the client's steps

Every client has its own m and v and does not send them; Σy = Σg is unchanged. y = 0 is a fixed
point, but near it a constant step does not become shorter, because v decreases with y: plain Adam
ends in a ball of the order of η. With `amsgrad` [reddi2018convergence] the root is that of the
largest v so far; steps then shrink with y, and an exact method stays exact. GTAdam bounds v from
below by ε instead, has no 1 - β^k, and is exact for η of the order of ε.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.algorithms.base import S, fraction, positive
from spodgt.algorithms.compose.direction_layer import DirectionLayer
from spodgt.algorithms.compose.wrapper import Memory


@dataclass(frozen=True)
class Adam(DirectionLayer[S]):
    """`base` with steps along its direction divided by the root of its mean square.

    Args:
        beta1: β₁, decay of the mean, in [0, 1).
        beta2: β₂, decay of the mean square, in [0, 1).
        epsilon: ε, added to the root.
        amsgrad: Divide by the root of the largest mean square so far.
    """

    name = "adam"
    key = "adam"
    example = "True"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    amsgrad: bool = False

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not fraction(getattr(self, name)):
                raise self.invalid(f"with {name} in [0, 1)", getattr(self, name))
        if not isinstance(self.amsgrad, bool):
            raise self.invalid("with amsgrad true or false", self.amsgrad)
        positive(self.epsilon, f"epsilon of {self.base.name}+adam")
        memory_names = ["adam_m", "adam_v", "adam_left"]
        exact = "no"
        if self.amsgrad:
            memory_names.append("adam_top")
            exact = self.base.traits.exact
        self.set_traits("adam", *memory_names, rule=None, exact=exact)

    def initial_memory(self, x: Tensor) -> Memory:
        zero = x.new_zeros(x.shape)
        memory = (zero, zero, x.new_ones(len(x), 2))
        return (*memory, zero) if self.amsgrad else memory

    def transform(self, y: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        m, v, powers, *largest = memory
        m = self.beta1 * m + (1 - self.beta1) * y
        v = self.beta2 * v + (1 - self.beta2) * y.square()
        # β^k as a product: the last digit of a power depends on the platform
        powers = powers * powers.new_tensor([self.beta1, self.beta2])
        largest = [torch.maximum(before, v) for before in largest]
        second_moment = largest[0] if self.amsgrad else v
        root = (second_moment / (1 - powers[:, 1:])).sqrt()
        direction = m / (1 - powers[:, :1]) / (root + self.epsilon)
        return direction, (m, v, powers, *largest)

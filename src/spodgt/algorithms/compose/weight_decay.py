"""Weight decay: in the gradient, or decoupled from it as in AdamW [loshchilov2019decoupled].

    g ← g + λ x                the gradient of every client: l2
    x⁺ = … - η (y + λ x)       added to the direction: weight_decay

With `l2` trackers contain the decay: an exact method reaches the minimiser of Σ F_i + (λ/2)|x|².
`weight_decay` is not divided by Adam's root and is not in the trackers, so methods end near that
minimiser, at a distance of order η if clients have different weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spodgt.algorithms.base import S, positive
from spodgt.algorithms.compose.direction_layer import DirectionLayer
from spodgt.algorithms.compose.gradient_layer import GradientLayer
from spodgt.algorithms.compose.wrapper import Memory


@dataclass(frozen=True)
class L2(GradientLayer[S]):
    """`base` on the loss plus (λ/2)|x|², with λ = `rate`."""

    name = "l2"
    key = "l2"
    example = "0.0001"
    rate: float = 1e-4

    def __post_init__(self) -> None:
        positive(self.rate, f"{self.key} of {self.base.name}")
        self.set_traits("l2", exact="no", compiled=self.compiled_name)

    def transform(self, g: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return g + self.rate * x, memory


@dataclass(frozen=True)
class WeightDecay(DirectionLayer[S]):
    """`base` with models that shrink by the factor 1 - ηλ in every step, with λ = `rate`."""

    name = "weight-decay"
    key = "weight_decay"
    example = "0.01"
    rate: float = 0.01

    def __post_init__(self) -> None:
        positive(self.rate, f"{self.key} of {self.base.name}")
        self.set_traits("weight-decay", rule=None, exact="no")

    def transform(self, y: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return y + self.rate * x, memory

"""Weight decay: through the gradient, or apart from it as in AdamW [loshchilov2019decoupled].

    g ← g + λ x                of every client's gradient: l2
    x⁺ = … - η (y + λ x)       a step of its own beside the direction: weight_decay

`l2` trains Σ F_i + (λ/2)|x|² with trackers that know of it: an exact method reaches the minimiser of that
sum. `weight_decay` is not divided by Adam's root; trackers do not know of it, so it ends near that minimiser,
at a distance of order η where clients weigh differently.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spodgt.algorithms.base import S, positive
from spodgt.algorithms.compose.wrapper import DirectionLayer, GradientLayer, Memory


@dataclass(frozen=True)
class L2(GradientLayer[S]):
    """`base` on the loss plus (λ/2)|x|²."""

    name = "l2"
    key, example = "l2", "0.0001"
    rate: float = 1e-4  # λ

    def __post_init__(self) -> None:
        positive(self.rate, f"{self.key} of {self.base.name}")
        self.declares("l2", exact="no", compiled=self.traced)

    def changed(self, g: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return g + self.rate * x, memory


@dataclass(frozen=True)
class WeightDecay(DirectionLayer[S]):
    """`base` whose models shrink by ηλ with every step."""

    name = "weight-decay"
    key, example = "weight_decay", "0.01"
    rate: float = 0.01  # λ

    def __post_init__(self) -> None:
        positive(self.rate, f"{self.key} of {self.base.name}")
        self.declares("weight-decay", rule=None, exact="no")

    def turned(self, y: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return y + self.rate * x, memory

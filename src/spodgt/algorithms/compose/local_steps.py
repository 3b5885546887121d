"""Local steps: links are used in every K-th round only.

In the rounds between, Â and B̂ are the identity: clients step along their trackers and keep these up to date
with their own gradients, x⁺ = x - η y, y⁺ = y + g⁺ - g. Nothing else changes, so Σy = Σg holds, and a method
that is exact over sporadic links stays exact. With memory, idle clients may be idle in any of these rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from spodgt.algorithms.base import Availability, Network, S, positive
from spodgt.algorithms.compose.wrapper import LinkLayer
from spodgt.participation.availability import AvailabilityOverride


@dataclass(frozen=True)
class Local(LinkLayer[S]):
    """`base` with an exchange in every K-th round."""

    name = "local"
    key, example, off = "local_steps", "5", 1
    every: int = 5  # K

    def __post_init__(self) -> None:
        positive(self.every, f"{self.key} of {self.base.name}", whole=True)
        # the step is the base's own, so a compiled one does it, too
        self.declares("local", local_steps=True, compiled=self.base.traits.compiled)

    @property
    def local_steps(self) -> int:
        return self.every

    @property
    def period(self) -> int:
        return self.every

    def unfit(self) -> str | None:
        traits = self.base.traits
        alone = traits.mixing in ("none", "server") or traits.activation != "all"
        trees = traits.root or traits.two_way  # their weights change with the rounds
        if alone or trees or traits.sporadic_links == "no":
            return "needs its links in every round; drop local_steps, or use spod-gt-memory or dfedavg."
        return None

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        return AvailabilityOverride(
            self.base.adapt_availability(availability, network), every=self.every
        )

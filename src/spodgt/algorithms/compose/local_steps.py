"""Local steps: links are used in every K-th round only, or at the end of blocks of drawn lengths.

In the rounds between, Â and B̂ are the identity: x⁺ = x - η y, y⁺ = y + g⁺ - g. So Σy = Σg holds,
and a method that is exact over sporadic links stays exact. With memory, clients may be idle in any
round. With one K per client, or "1-20", a client sends at the end of its own blocks
(`local_blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass

from spodgt.algorithms.base import Availability, Network, S
from spodgt.algorithms.compose.wrapper import LinkLayer
from spodgt.participation.availability import AvailabilityOverride
from spodgt.participation.local_blocks import (
    BlockLengths,
    check_block_lengths,
    with_local_blocks,
)


@dataclass(frozen=True)
class LocalStepsLayer(LinkLayer[S]):
    """`base` with an exchange in every K-th round.

    `every` is K, one K per client, or a range such as "1-20".
    """

    name = "local"
    key = "local_steps"
    example = "5"
    off = 1
    every: BlockLengths = 5

    def __post_init__(self) -> None:
        lengths = check_block_lengths(self.every, f"{self.key} of {self.base.name}")
        object.__setattr__(self, "every", lengths)
        # the step is that of `base`, and so is its compiled form
        self.set_traits("local", local_steps=True, compiled=self.base.traits.compiled)

    @property
    def local_steps(self) -> int | None:
        return self.every if isinstance(self.every, int) else None

    @property
    def period(self) -> int:
        return self.local_steps or 1

    def why_incompatible(self) -> str | None:
        traits = self.base.traits
        has_sporadic_links = traits.uses_links and traits.sporadic_links != "no"
        # weights of trees change with the rounds
        if has_sporadic_links and traits.activation == "all" and not traits.uses_trees:
            return None
        return "needs its links in every round; drop local_steps, or use spod-gt-memory or dfedavg."

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        adapted = self.base.adapt_availability(availability, network)
        if isinstance(self.every, int):
            return AvailabilityOverride(adapted, every=self.every)
        name = f"{self.key} of {self.base.name}"
        return with_local_blocks(adapted, network, self.every, name)

"""Base of methods with blocks of local steps, with lengths that may differ per client and block."""

from __future__ import annotations

from spodgt.algorithms.base import Algorithm, Availability, Network, R, S
from spodgt.participation.local_blocks import BlockLengths, with_local_blocks


class BlockSteps(Algorithm[S, R]):
    """A method in which a client sends at the end of a block of its rounds.

    `local_steps` are the rounds in a block: K, one K per client, or "1-20" for lengths drawn anew
    for each block. Idle rounds count.
    """

    local_steps: BlockLengths

    @property
    def period(self) -> int:
        return self.local_steps if isinstance(self.local_steps, int) else 1

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        base = super().adapt_availability(availability, network)
        return with_local_blocks(base, network, self.local_steps, f"local_steps of {self.name}")

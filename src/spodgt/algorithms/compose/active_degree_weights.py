"""Mixing weights by the number of active links in each round.

    â_ij = 1/(1 + active in-links of i)        b̂_ij = 1/(1 + active out-links of j)

With fixed degree weights, a client with one of nine in-links active gives that model the weight
1/10; here 1/2. Rows of Â and columns of B̂ sum to one in every round, so Σy = Σg holds and a method
that is exact over sporadic links stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from spodgt.algorithms.base import Availability, Network, S
from spodgt.algorithms.compose.wrapper import LinkLayer
from spodgt.participation.availability import ActiveDegreeWeights


@dataclass(frozen=True)
class ActiveDegreeLayer(LinkLayer[S]):
    """`base` with `weights="working"`: mixing weights by active links."""

    name = "working"
    key = "weights"
    example = "'working'"
    rule: str = "working"

    def __post_init__(self) -> None:
        if self.rule != "working":
            raise self.invalid("'working' (other weights are the network's)", self.rule)
        self.set_traits("working", rule=None, degree_reweighting=True)

    def why_incompatible(self) -> str | None:
        traits = self.base.traits
        if not traits.uses_links:
            return "uses no links, so there are none to weigh; drop weights, or use spod-gt-memory."
        uses_gossip = any(mixing == "gossip" for mixing, _ in traits.mixed_fields)
        has_own_weights = traits.uses_trees or traits.activation != "all" or uses_gossip
        if has_own_weights or traits.sporadic_links == "no":
            return "has weights of its own; drop weights, or use spod-gt-memory."
        return None

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        return ActiveDegreeWeights(self.base.adapt_availability(availability, network), network)

"""Weights by the links that work in a round.

    â_ij = 1/(1 + in-links of i that work)        b̂_ij = 1/(1 + out-links of j that work)

With weights by all links a client that hears one of its nine neighbours gives it a tenth; here it gives a
half. Rows of Â and columns of B̂ sum to one in every round, so Σy = Σg holds and a method that is exact over
sporadic links stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from spodgt.algorithms.base import Availability, Network, S
from spodgt.algorithms.compose.wrapper import LinkLayer
from spodgt.participation.availability import ActiveDegreeWeights


@dataclass(frozen=True)
class Working(LinkLayer[S]):
    """`base` with weights that follow the links that work."""

    name = "working"
    key, example = "weights", "'working'"
    rule: str = "working"

    def __post_init__(self) -> None:
        if self.rule != "working":
            raise self.refuse("'working' (other weights are the network's)", self.rule)
        self.declares("working", rule=None, degree_reweighting=True)

    def unfit(self) -> str | None:
        traits = self.base.traits
        if traits.mixing in ("none", "server"):
            return "uses no links, so there are none to weigh; drop weights, or use spod-gt-memory."
        mixes = {how for how, _ in traits.mixed_fields}
        own = (
            traits.root
            or traits.two_way
            or traits.activation != "all"
            or not mixes <= {"pull", "push"}
        )
        if own or traits.sporadic_links == "no":
            return "has weights of its own; drop weights, or use spod-gt-memory."
        return None

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        return ActiveDegreeWeights(self.base.adapt_availability(availability, network), network)

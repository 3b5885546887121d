"""AB/Push-Pull [nedic2025ab]: every client and every link is active in every round.

The step is Spod-GT's; only the participation differs, and every use of a client or link is paid for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from spodgt.algorithms.base import Traits
from spodgt.algorithms.spod_gt import SpodGT
from spodgt.network import Network
from spodgt.participation.availability import Overlay
from spodgt.types import Availability


@dataclass(frozen=True)
class ABPushPull(SpodGT):
    name: ClassVar[str] = "ab-push-pull"
    traits: ClassVar[Traits] = replace(
        SpodGT.traits, source="nedic2025ab", sporadic_clients="waits", sporadic_links="waits", exact="yes"
    )

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Overlay(availability, all_clients=True, all_links=True)

"""Sporadic K-GT [zehtabi2026sporadic]: every link is used in every round, clients are sporadic.

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
class SporadicKGT(SpodGT):
    name: ClassVar[str] = "sporadic-k-gt"
    traits: ClassVar[Traits] = replace(SpodGT.traits, sporadic_links="waits")

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Overlay(availability, all_links=True)

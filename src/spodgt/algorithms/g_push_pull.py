"""G-Push-Pull as the paper compares with it [pu2020push]: every client computes, links are sporadic.

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
class GPushPull(SpodGT):
    name: ClassVar[str] = "g-push-pull"
    traits: ClassVar[Traits] = replace(
        SpodGT.traits, source="pu2020push", sporadic_clients="waits", exact="yes"
    )

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Overlay(availability, all_clients=True)

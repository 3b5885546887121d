"""Sporadic K-GT [zehtabi2026sporadic]: Spod-GT's step with all links and sporadic clients."""

from dataclasses import dataclass, replace

from spodgt.algorithms.spod_gt import SpodGT


@dataclass(frozen=True)
class SporadicKGT(SpodGT):
    name = "sporadic-k-gt"
    traits = replace(SpodGT.traits, sporadic_links="waits")

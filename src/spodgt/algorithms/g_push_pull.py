"""G-Push-Pull, the baseline of the Spod-GT paper [pu2020push]: all clients, sporadic links.

The gossip form of that source is `gossip-push-pull`.
"""

from dataclasses import dataclass, replace

from spodgt.algorithms.spod_gt import SpodGT


@dataclass(frozen=True)
class GPushPull(SpodGT):
    name = "g-push-pull"
    traits = replace(SpodGT.traits, source="pu2020push", sporadic_clients="waits", exact="yes")

"""AB/Push-Pull [nedic2025ab]: Spod-GT's step with all clients and links in every round.

The clock charges every client and link in every round.
"""

from dataclasses import dataclass, replace

from spodgt.algorithms.spod_gt import SpodGT


@dataclass(frozen=True)
class ABPushPull(SpodGT):
    name = "ab-push-pull"
    traits = replace(
        SpodGT.traits,
        source="nedic2025ab",
        sporadic_clients="waits",
        sporadic_links="waits",
        exact="yes",
    )

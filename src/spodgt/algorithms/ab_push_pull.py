"""AB/Push-Pull [nedic2025ab]: Spod-GT's step with every client and every link active in every round.

Each use of a client or a link is charged.
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

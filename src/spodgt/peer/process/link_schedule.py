"""Which links a local round uses, and after how many rounds without a message a client waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from spodgt import rng
from spodgt.peer.process.membership import Membership
from spodgt.peer.protocol.node import Node


@dataclass(eq=False)
class LinkSchedule:
    """The use of links by a peer's local rounds."""

    node: Node
    membership: Membership

    def max_alone(self) -> int | None:
        """Local rounds without a message after which the client waits; None: it never waits."""
        max_alone = self.membership.manifest.max_alone
        if not max_alone or self.node.state.into.keys() <= self.node.state.ended:
            return None
        exchange_every = self.node.method_step.exchange_every
        return max(max_alone, 2 * exchange_every)  # at least one exchange falls into them

    def is_alone(self) -> bool:
        """Whether no message has arrived for so many rounds that the client should wait.

        Convergence requires bounded delays: a client without messages drifts towards its own data.
        """
        limit = self.max_alone()
        state = self.node.state
        return limit is not None and state.k - state.last_received_round >= limit

    def active_links(self, k: int) -> list[str]:
        """The out-links drawn for round k.

        The last exchange before the client waits uses all of them. Otherwise a run could stop for ever:
        all messages acknowledged, and every client waiting for a message of another.
        """
        node = self.node
        exchange_every = node.method_step.exchange_every
        if k % exchange_every:
            return []
        limit = self.max_alone()
        rounds_alone = k - node.state.last_received_round
        if limit is not None and rounds_alone + exchange_every >= limit:
            return list(node.state.out)
        manifest = self.membership.manifest
        probabilities = manifest.probabilities(node.topology.name)
        return active_links(probabilities, manifest.seed, node.member.client_index, k)


def active_links(
    probabilities: Mapping[str, float], seed: int, client_index: int, k: int
) -> list[str]:
    """The out-links drawn for local round k, from p̂ of each."""
    if all(p_hat >= 1 for p_hat in probabilities.values()):
        return list(probabilities)
    key = rng.key(seed, "peer-links")
    draws = rng.uniform(key, k, client_index, np.arange(len(probabilities)))
    pairs = zip(probabilities.items(), draws, strict=True)
    return [name for (name, p_hat), draw in pairs if draw < p_hat]

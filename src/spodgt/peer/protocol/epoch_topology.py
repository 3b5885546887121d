"""The topology of the epochs of one manifest: the weights of links and, with a root, two spanning trees.

Without a root every client does the same. With one, gradients go up a tree to the root, and models come down
another. The costs 1/p̂ of links and the root are in the signed manifest, so every client computes the same
trees. Nothing that a member sends changes the root or the trees: that takes another version of the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from spodgt.network import Network
from spodgt.network.spanning_trees import SpanningTrees, cheapest_trees
from spodgt.peer.protocol.running_sums import NO_ROOT
from spodgt.types import Floats


class EpochRole(NamedTuple):
    """The links that one client uses in an epoch, by the neighbour's name."""

    out: Mapping[str, float]  # b of every out-link, 0 where it carries no mass
    into: Mapping[str, float]  # a of every in-link, 0 if its models are not used
    used_out: frozenset[str]  # the out-links in use
    used_in: frozenset[str]  # the in-links in use
    step_weight: float = 1.0  # of its gradient


@dataclass(frozen=True, eq=False)
class EpochTopology:
    """The network as one client sees it, under one manifest.

    Args:
        name: The client.
        client_indices: Numbers of the clients with links, by name, in the order of `network`.
        network: The links, with the weights of methods without a root.
        link_costs: (links,) cost 1/p̂ of each use of a link; None: the method has no root.
        manifest_root: The root's name in the manifest; "": the best one.
    """

    name: str
    client_indices: Mapping[str, int]
    network: Network
    link_costs: Floats | None = None
    manifest_root: str = ""

    @cached_property
    def root(self) -> str:
        """The name of the root; "" if the method has none."""
        if self.link_costs is None:
            return ""
        if self.manifest_root in self.client_indices:
            return self.manifest_root
        all_clients = np.ones(len(self.client_indices), bool)
        trees = cheapest_trees(self.network, self.link_costs, all_clients)
        return list(self.client_indices)[trees.root]

    @property
    def root_index(self) -> int:
        """The number of the root client, which every frame repeats; NO_ROOT if the method has none."""
        return self.client_indices[self.root] if self.root else NO_ROOT

    @cached_property
    def role(self) -> EpochRole:
        """The client's links in every epoch of the manifest."""
        network = self.network
        if self.link_costs is None:
            a = network.a
            b = network.b
            used = np.ones(network.links, bool)
            step_weight = 1.0
        else:
            trees = self._trees(self.link_costs)
            a = trees.down.astype(float)
            b = trees.up.astype(float)
            used = trees.up | trees.down
            step_weight = 1 / int(trees.members.sum()) if self.root == self.name else 0.0
        names = list(self.client_indices)
        out = {}
        into = {}
        used_out = set()
        used_in = set()
        ends = zip(network.senders, network.receivers, strict=True)
        for link, (sender_index, receiver_index) in enumerate(ends):
            sender = names[sender_index]
            receiver = names[receiver_index]
            if sender == self.name:
                out[receiver] = float(b[link])
                if used[link]:
                    used_out.add(receiver)
            elif receiver == self.name:
                into[sender] = float(a[link])
                if used[link]:
                    used_in.add(sender)
        return EpochRole(out, into, frozenset(used_out), frozenset(used_in), step_weight)

    def _trees(self, link_costs: Floats) -> SpanningTrees:
        """The trees that connect all clients with the root."""
        all_clients = np.ones(len(self.client_indices), bool)
        is_root = np.array([name == self.root for name in self.client_indices])
        return cheapest_trees(self.network, link_costs, all_clients, eligible_roots=is_root)

"""What changes around a running client: its manifest, its certificate, its address, its connections."""

from __future__ import annotations

import asyncio

from spodgt.errors import InvalidInput
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.membership import Membership, Terms
from spodgt.peer.protocol.node import Node
from spodgt.peer.transport.links import Transport

_CHECK_SECONDS = 10.0  # between two checks of the server's connections, and for a newer manifest


class Upkeep:
    """Applies changes to a node and its links. Called between two rounds, in their thread.

    Args:
        node: The client.
        transport: Its links.
        membership: Its certificate and manifest.
        journal: Its log.
        listen: host:port to listen on; None: as in the manifest.
    """

    def __init__(
        self,
        node: Node,
        transport: Transport,
        membership: Membership,
        journal: Journal,
        listen: str | None = None,
    ) -> None:
        self.node = node
        self.transport = transport
        self.membership = membership
        self.journal = journal
        self.listen = listen
        self._checked = journal.host.clock.monotonic()  # time of the last of these checks

    def adopt_manifest(self) -> Terms | None:
        """Request the newer manifest of a neighbour; adopt one that has arrived: other links, a new epoch.

        Returns:
            The new terms, which the caller commits; None if there are none.

        Raises:
            InvalidInput: The client was removed from the run.
        """
        node = self.node
        neighbour = node.newer_manifest
        if neighbour is not None:
            node.newer_manifest = None
            self.membership.request_manifest(neighbour, self.transport.loop)
        if self.membership.removal_notice:
            raise InvalidInput(self.membership.removal_notice)
        terms = self.membership.adopt()
        if terms is None:
            return None
        manifest = terms.manifest
        node.last_epoch = manifest.last_epoch
        node.member = terms.member
        node.relink(terms.topology, manifest.epoch)
        text = f"version {manifest.version} with {len(manifest.clients)} clients"
        self.journal.event("manifest", text)
        neighbours = manifest.neighbours(node.topology.name)
        self.transport.loop.call_soon_threadsafe(self.transport.relink, *neighbours)
        return terms

    def check(self) -> None:
        """Look for a renewed certificate and another address; less often check connections and manifest."""
        transport = self.transport
        renewed = self.membership.check_folder()
        if renewed is not None:
            transport.loop.call_soon_threadsafe(transport.renew, renewed)
        manifest = self.membership.manifest
        address = self.listen or manifest.client(self.node.topology.name).address
        if address != transport.listener.address:
            asyncio.run_coroutine_threadsafe(transport.listener.move(address), transport.loop)
        now = self.journal.host.clock.monotonic()
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            asyncio.run_coroutine_threadsafe(transport.listener.check_full(), transport.loop)
            self._request_without_links()

    def _request_without_links(self) -> None:
        """Request the manifest of any member if this client has no links, as in quarantine.

        No frame brings it a newer version, and neighbours cannot open new links if it has no address.
        """
        name = self.node.topology.name
        manifest = self.membership.manifest
        if any(manifest.neighbours(name)):
            return
        others = [other for other in manifest.clients if other.address and other.name != name]
        if others:
            other = self.journal.host.random.choice(others)
            self.membership.request_manifest(other.name, self.transport.loop)

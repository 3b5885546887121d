"""The address at which a client listens, and its limit of connections."""

from __future__ import annotations

from spodgt.peer.host.interfaces import Server
from spodgt.peer.transport.connection import LocalClient
from spodgt.peer.transport.grpc_wire import NO_CONNECTION
from spodgt.peer.transport.in_links import InLinks
from spodgt.peer.transport.incoming_calls import IncomingCalls

CONNECTIONS = 256  # beyond those of the links: connections of strangers are limited


class Listener:
    """Accepts connections at one address, which may change."""

    def __init__(self, local: LocalClient, in_links: InLinks, calls: IncomingCalls) -> None:
        self.local = local
        self.in_links = in_links
        self.calls = calls
        self.server: Server | None = None
        self.address = ""  # where it listens
        self.port = 0
        self.is_full = False  # no more connections are accepted

    @property
    def max_connections(self) -> int:
        return 2 * len(self.in_links.traffic) + CONNECTIONS

    async def listen(self, address: str) -> None:
        """Open the server at `address`, then close the one before; RuntimeError if it cannot be opened."""
        server = await self.local.host.wire.serve(
            address, lambda: self.local.identity, self.calls.handlers, self.max_connections
        )
        before = self.server
        self.server = server
        self.address = address
        self.port = server.port
        if before is not None:
            await before.stop()

    async def move(self, address: str) -> None:
        """Listen at another address; if it cannot be used, the old one is kept."""
        try:
            await self.listen(address)
            self.local.notify("address", f"listening at {address or 'no address'}")
        except RuntimeError:
            self.local.notify(
                "failed", f"cannot listen at {address}; still at {self.address or 'none'}"
            )

    async def check_full(self) -> bool:
        """Whether the server accepts no more connections, by a connection to itself."""
        if not self.address:
            return False
        local = self.local
        host = self.address.rpartition(":")[0]
        own_address = f"{host}:{self.port}"
        reason = await local.host.wire.probe(local.identity, own_address, local.context.name)
        self.is_full = NO_CONNECTION in reason
        return self.is_full

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()

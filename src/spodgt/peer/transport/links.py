"""All links of a client: one stream for each directed link.

The sender writes messages, and acknowledgements come back. One end opens the stream, as the manifest says:
the sender calls Talk, or the receiver calls Fetch, so a client behind NAT needs outgoing connections only.
Only the newest message of a link is ever kept, and two may be on their way, so nothing grows when a link is
slow. A message is sent once on a stream; until it is acknowledged, its header is repeated every second.
Then a header without a message is sent every 3 s: a link that is rarely used is not silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from spodgt.peer.membership.certificates import Identity
from spodgt.peer.protocol.running_sums import Ack, Message
from spodgt.peer.transport.access_control import AccessControl
from spodgt.peer.transport.connection import LocalClient, Traffic
from spodgt.peer.transport.in_links import InLinks
from spodgt.peer.transport.incoming_calls import IncomingCalls
from spodgt.peer.transport.link_dialer import LinkDialer, close_changed
from spodgt.peer.transport.listener import Listener
from spodgt.peer.transport.out_links import OutLinkDialer


class Transport:
    """All links of one client, and the server for those that neighbours connect."""

    def __init__(self, local: LocalClient) -> None:
        self.local = local
        self.access = AccessControl(local.host.clock.monotonic)
        self.out: dict[str, OutLinkDialer] = {}
        self.in_links = InLinks(local, self.access)
        self.calls = IncomingCalls(local, self.out, self.in_links, self.access)
        self.listener = Listener(local, self.in_links, self.calls)

    async def start(self, address: str, out: Mapping[str, str], into: Mapping[str, str]) -> int:
        """Listen at `address`, and take up the links as in `relink`; returns the port."""
        self.loop = asyncio.get_running_loop()
        self.in_links.traffic = {name: Traffic() for name in into}  # the limit counts them
        await self.listener.listen(address)
        self.relink(out, into)
        return self.listener.port

    def renew(self, identity: Identity) -> None:
        """Use another certificate for new connections; open ones are kept."""
        self.local.identity = identity

    def relink(self, out: Mapping[str, str], into: Mapping[str, str]) -> None:
        """Take the links of a manifest: open new ones, close removed ones, follow changed addresses.

        Args:
            out: Receivers, with the address to connect to; "" if the receiver connects.
            into: Senders, in the same way.
        """
        close_changed(self.out, out)
        for name, address in out.items():
            if name not in self.out:
                self.out[name] = OutLinkDialer(self.local, name, address)
        own = self.local.context.name
        connected_by_others = {(own, name) for name, address in out.items() if not address}
        connected_by_others |= {(name, own) for name, address in into.items() if not address}
        self.calls.cancel_except(connected_by_others)
        self.in_links.relink(into)

    def traffic(self) -> list[tuple[str, Traffic]]:
        """The counters of each link by the neighbour's name, out-links first."""
        # copies: called from another thread while a manifest may change the links
        out = dict(self.out)
        into = dict(self.in_links.traffic)
        return [*((name, link.traffic) for name, link in out.items()), *into.items()]

    def connected(self) -> set[str]:
        """The receivers whose stream is up."""
        out = dict(self.out)  # a copy, as in `traffic`
        return {name for name, stream in out.items() if stream.traffic.state == "up"}

    async def stop(self) -> None:
        dialers: list[LinkDialer] = [*self.out.values(), *self.in_links.dialers.values()]
        for dialer in dialers:
            dialer.close()
        await asyncio.gather(*(dialer.task for dialer in dialers), return_exceptions=True)
        await self.calls.stop()  # before the server does it, which would log an error
        await self.listener.stop()

    # --- called from the thread in which rounds run ------------------------------------------------
    def send_latest(self, target: str, message: Message) -> None:
        """Send on an out-link; a message that has not left yet is replaced."""
        link = self.out.get(target)
        if link is None:
            return
        with link.lock:
            link.latest = message
        if not link.is_wake_scheduled:  # one wake-up for many rounds
            link.is_wake_scheduled = True
            self.loop.call_soon_threadsafe(link.wake.set)

    def send_ack(self, target: str, ack: Ack) -> None:
        """Answer on an in-link."""
        stream = self.in_links.streams.get(target)
        if stream is not None:
            self.loop.call_soon_threadsafe(stream.send, ack)

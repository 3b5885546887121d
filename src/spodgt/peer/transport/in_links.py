"""The receiver's ends of all in-links of a client: messages arrive, acknowledgements leave."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

from spodgt.peer.host.interfaces import Call, Stream
from spodgt.peer.protocol.running_sums import Incarnation, Message, Refused
from spodgt.peer.transport import wire_format
from spodgt.peer.transport.access_control import AccessControl
from spodgt.peer.transport.connection import SLOWEST, LocalClient, Traffic
from spodgt.peer.transport.streams import TAKEOVER_SECONDS, InStream, LinkDialer
from spodgt.peer.transport.wire_format import RepeatedHeader

HEARTBEAT_SECONDS = 2.0  # a stream without an answer for so long gets a heartbeat
FIRST_SECONDS = 10.0  # for the first whole message of a stream, beyond the time its bytes take

DialerT = TypeVar("DialerT", bound=LinkDialer)


class InLinks:
    """The in-links of the manifest, and the stream of each that is connected."""

    def __init__(self, local: LocalClient, access: AccessControl) -> None:
        self.local = local
        self.access = access
        self.traffic: dict[str, Traffic] = {}  # of every in-link, by sender
        self.dialers: dict[str, InLinkDialer] = {}  # of the links that this end connects
        self.streams: dict[str, InStream] = {}

    def relink(self, addresses: Mapping[str, str]) -> None:
        """Take the in-links of a manifest: senders, with the address to connect to, or ""."""
        close_changed(self.dialers, addresses)
        self.traffic = {name: self.traffic.get(name, Traffic()) for name in addresses}
        for name, address in addresses.items():
            if address and name not in self.dialers:
                self.dialers[name] = InLinkDialer(self, name, address)

    async def receive(self, sender: str, frames: Stream, protocol: int) -> None:
        """Receive the messages of one stream until it ends; `Refused` for a frame no honest peer sends."""
        assembler = wire_format.MessageAssembler(self.local.context, sender)
        stream: InStream | None = None
        traffic = self.traffic[sender]
        task = asyncio.current_task()
        assert task is not None
        limit = FIRST_SECONDS + 8 * self.local.context.n / SLOWEST
        first = asyncio.get_running_loop().call_later(limit, task.cancel)
        try:
            while True:
                chunk = await frames.read()
                if chunk is None:
                    break
                frame = self._assemble(assembler, chunk)
                traffic.bytes += len(chunk)
                if frame is None:
                    continue
                if stream is None:
                    first.cancel()
                    stream = self._register(sender, frame.sender, frames, protocol)
                message = frame.message if isinstance(frame, RepeatedHeader) else frame
                traffic.messages += isinstance(frame, Message)
                now = self.local.now
                traffic.last_received = now
                stream.last_received = now
                traffic.state = "up"
                traffic.why = ""
                if now - stream.last_answered > HEARTBEAT_SECONDS:
                    stream.wake.set()  # a heartbeat, however long the round takes
                if message is not None:
                    self.local.receive(sender, message)
        except asyncio.CancelledError:
            return  # the sender is down, silent or restarted, or this client ends
        finally:
            first.cancel()
            if stream is not None:
                stream.task.cancel()
                if self.streams.get(sender) is stream:
                    del self.streams[sender]
                    traffic.state = "down"

    def _assemble(
        self, assembler: wire_format.MessageAssembler, chunk: bytes
    ) -> Message | RepeatedHeader | None:
        try:
            return assembler.add(chunk)
        except Refused:
            self.access.note_invalid_frame(assembler.sender)
            raise

    def _register(
        self, sender: str, incarnation: Incarnation, frames: Stream, protocol: int
    ) -> InStream:
        """Keep one stream per sender; a later incarnation replaces an earlier one that is silent."""
        old = self.streams.get(sender)
        if old is not None:
            is_live = self.local.now - old.last_received < TAKEOVER_SECONDS
            is_other = old.incarnation != incarnation
            if (is_other and is_live) or old.incarnation.supersedes(incarnation):
                known = f"{sender} is already connected as incarnation {old.incarnation.number}"
                raise Refused(f"{known}; another process uses its name")
            old.close()
        stream = InStream(self.local, incarnation, frames, protocol)
        self.streams[sender] = stream
        return stream


class InLinkDialer(LinkDialer):
    """The receiver's end of a link that the receiver connects."""

    rpc = "Fetch"

    def __init__(self, in_links: InLinks, name: str, address: str) -> None:
        self.in_links = in_links
        super().__init__(in_links.local, name, address, in_links.traffic[name])

    @property
    def link(self) -> str:
        return f"{self.name} → {self.local.context.name}"

    async def talk(self, call: Call, protocol: int) -> None:
        await self.in_links.receive(self.name, call, protocol)


def close_changed(dialers: dict[str, DialerT], addresses: Mapping[str, str]) -> None:
    """Close and remove the ends whose link was removed or has another address."""
    for name, dialer in list(dialers.items()):
        if addresses.get(name) != dialer.address:
            dialer.close()
            del dialers[name]

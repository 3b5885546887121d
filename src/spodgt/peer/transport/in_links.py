"""The receiver's ends of all in-links of a client: messages arrive, acknowledgements leave."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from spodgt.errors import Failed
from spodgt.peer.host.fault_injection import crash_point
from spodgt.peer.host.interfaces import Call, Stream
from spodgt.peer.protocol.running_sums import Ack, Incarnation, Message, Refused
from spodgt.peer.transport import wire_format
from spodgt.peer.transport.access_control import AccessControl
from spodgt.peer.transport.connection import TAKEOVER_SECONDS, LocalClient, Traffic, current_task
from spodgt.peer.transport.link_dialer import LinkDialer, close_changed
from spodgt.peer.transport.wire_format import RepeatedHeader

HEARTBEAT_SECONDS = 2.0  # a stream without an answer for so long gets a heartbeat
FIRST_SECONDS = 10.0  # for the first whole message of a stream, beyond the time its bytes take


class InStream:
    """The receiver's end of a stream: sends the newest acknowledgement.

    Args:
        local: The client.
        sender: Incarnation of the sender.
        stream: The stream. The current task reads it, and is cancelled when it breaks.
        protocol: Of the stream.
        traffic: Counters of the link.
    """

    def __init__(
        self,
        local: LocalClient,
        sender: Incarnation,
        stream: Stream,
        protocol: int,
        traffic: Traffic,
    ) -> None:
        self.local = local
        self.context = replace(local.context, protocols=(protocol,))
        self.incarnation = sender
        self.stream = stream
        self.traffic = traffic
        self.ack: Ack | None = None  # the newest one that has not left
        self.last_received = local.now
        self.last_answered = 0.0
        self.wake = asyncio.Event()
        self.reader = current_task()
        self.writer = asyncio.create_task(self._answer())

    def close(self) -> None:
        self.writer.cancel()
        self.reader.cancel()

    def send(self, ack: Ack) -> None:
        """Send an acknowledgement; it replaces one that has not left yet."""
        self.ack = ack
        self.wake.set()

    def note_frame(self, frame: Message | RepeatedHeader) -> None:
        """Count a frame, and answer with a heartbeat if nothing was answered for long."""
        now = self.local.now
        self.last_received = now
        self.traffic.last_received = now
        self.traffic.messages += isinstance(frame, Message)
        self.traffic.state = "up"
        self.traffic.why = ""
        if now - self.last_answered > HEARTBEAT_SECONDS:
            self.wake.set()  # a heartbeat, however long the round takes

    async def _answer(self) -> None:
        try:
            while True:
                await self.wake.wait()
                self.wake.clear()
                ack = self.ack
                self.ack = None
                self.last_answered = self.local.now
                if ack is None:
                    await self.stream.write(b"")  # the heartbeat
                else:
                    await self.stream.write(wire_format.pack_ack(self.context, ack))
                    crash_point("ack sent")
        except Exception:  # the stream has ended, with any error; the sender reconnects
            self.reader.cancel()


class InLinks:
    """The in-links of the manifest, and the stream of each that is connected."""

    def __init__(self, local: LocalClient, access: AccessControl) -> None:
        self.local = local
        self.access = access
        self.traffic: dict[str, Traffic] = {}  # of every in-link, by sender
        self.dialers: dict[str, InLinkDialer] = {}  # of the links that this end connects
        self.streams: dict[str, InStream] = {}  # of the links that are connected, by sender
        self._failures: dict[str, str] = {}  # why there is no vector for messages, by sender

    def relink(self, addresses: Mapping[str, str]) -> None:
        """Take the in-links of a manifest: senders, with the address to connect to, or ""."""
        close_changed(self.dialers, addresses)
        self.traffic = {name: self.traffic.get(name, Traffic()) for name in addresses}
        for name, address in addresses.items():
            if address and name not in self.dialers:
                self.dialers[name] = InLinkDialer(self, name, address)

    async def receive(self, sender: str, stream: Stream, protocol: int) -> None:
        """Receive the messages of one stream until it ends.

        Raises:
            Refused: A frame is none that an honest peer sends.
        """
        traffic = self.traffic[sender]
        local = self.local
        assembler = wire_format.MessageAssembler(local.context, sender, local.new_row)
        task = current_task()
        limit = FIRST_SECONDS + self.local.message_seconds
        first_deadline = asyncio.get_running_loop().call_later(limit, task.cancel)
        registered: InStream | None = None  # after the first frame
        try:
            while True:
                chunk = await stream.read()
                if chunk is None:
                    return
                try:
                    frame = self._assemble(assembler, chunk)
                except Failed as error:
                    self._note_failure(sender, str(error))
                    return
                self._failures.pop(sender, None)
                traffic.bytes += len(chunk)
                if frame is None:
                    continue
                if registered is None:
                    first_deadline.cancel()
                    registered = InStream(self.local, frame.sender, stream, protocol, traffic)
                    self._register(sender, registered)
                registered.note_frame(frame)
                message = frame.message if isinstance(frame, RepeatedHeader) else frame
                if message is not None:
                    self.local.receive(sender, message)
        except asyncio.CancelledError:
            return  # the sender is down, silent or restarted, or this client ends
        finally:
            first_deadline.cancel()
            if registered is not None:
                self._unregister(sender, registered)

    def _assemble(
        self, assembler: wire_format.MessageAssembler, chunk: bytes
    ) -> Message | RepeatedHeader | None:
        try:
            return assembler.add(chunk)
        except Refused:
            self.access.note_invalid_frame(assembler.sender)
            raise

    def _note_failure(self, sender: str, why: str) -> None:
        """Log once that there is no space for a message; the sender connects again."""
        if self._failures.get(sender) != why:
            self._failures[sender] = why
            self.local.notify("link down", why, f"{sender} → {self.local.context.name}")

    def _register(self, sender: str, stream: InStream) -> None:
        """Keep one stream per sender; a later incarnation replaces an earlier one that is silent."""
        old = self.streams.get(sender)
        if old is not None:
            is_live = self.local.now - old.last_received < TAKEOVER_SECONDS
            is_other = old.incarnation != stream.incarnation
            if (is_other and is_live) or old.incarnation.supersedes(stream.incarnation):
                known = f"{sender} is already connected as incarnation {old.incarnation.number}"
                raise Refused(f"{known}; another process uses its name")
            old.close()
        self.streams[sender] = stream

    def _unregister(self, sender: str, stream: InStream) -> None:
        stream.writer.cancel()
        if self.streams.get(sender) is stream:
            del self.streams[sender]
            stream.traffic.state = "down"


class InLinkDialer(LinkDialer):
    """The receiver's end of a link that the receiver connects."""

    rpc = "Fetch"

    def __init__(self, in_links: InLinks, name: str, address: str) -> None:
        self.in_links = in_links
        super().__init__(in_links.local, name, address, in_links.traffic[name])

    @property
    def link(self) -> str:
        return f"{self.name} → {self.local.context.name}"

    async def use(self, call: Call, protocol: int) -> None:
        await self.in_links.receive(self.name, call, protocol)

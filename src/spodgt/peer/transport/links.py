"""All links of a client: one stream for each directed link.

The sender writes messages, and acknowledgements come back. One end opens the stream, as the manifest says:
the sender calls Talk, or the receiver calls Fetch, so a client behind NAT needs outgoing connections only.
Only the newest message of a link is ever kept, and two may be on their way, so nothing grows when a link is
slow. A message is sent once on a stream; until it is acknowledged, its header is repeated every second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace

from spodgt.peer.host.interfaces import Call, IncomingCall, Server, Stream
from spodgt.peer.membership.certificates import Identity, seconds_left
from spodgt.peer.protocol.running_sums import Ack, Incarnation, Message, Refused
from spodgt.peer.transport import wire_format
from spodgt.peer.transport.access_control import AccessControl
from spodgt.peer.transport.connection import (
    CHUNK_SECONDS,
    SLOWEST,
    TEXT,
    LocalClient,
    Traffic,
    agree_on_protocol,
    own_headers,
)
from spodgt.peer.transport.grpc_wire import NO_CONNECTION
from spodgt.peer.transport.streams import TAKEOVER_SECONDS, InStream, LinkDialer, OutStream
from spodgt.peer.transport.wire_format import RepeatedHeader

HEARTBEAT_SECONDS = 2.0  # a stream without an answer for so long gets a heartbeat
FIRST_SECONDS = 10.0  # for the first whole message of a stream, beyond the time its bytes take
FILE_CHUNK = 2**16  # bytes: even at the slowest rate each arrives within the seconds for an answer
CONNECTIONS = 256  # beyond those of the links: connections of strangers are limited

Serve = Callable[[str, Stream, int], Awaitable[None]]  # neighbour, stream, protocol
Answer = Callable[[str], bytes | None]  # to a client, by its name; None: it has no access


class Transport:
    """All links of one client.

    Args:
        local: The client.
        manifest: Answers requests for the manifest.
        status: Answers requests for the status.
    """

    def __init__(
        self,
        local: LocalClient,
        manifest: Answer = lambda name: None,
        status: Answer = lambda name: None,
    ) -> None:
        self.local = local
        self.manifest = manifest
        self.status = status
        # called with the name of a neighbour that opens a link which is not in the manifest
        self.on_unknown_link: Callable[[str], None] = lambda name: None
        self.out: dict[str, OutStream] = {}
        self.into: dict[str, Traffic] = {}
        self.in_dialers: dict[str, InLinkDialer] = {}  # the in-links that this end connects
        self.streams: dict[str, InStream] = {}
        # the streams that others have opened, also before their first message, with their links
        self.handlers: dict[asyncio.Task[None], str] = {}
        self.access = AccessControl(local.host.clock.monotonic)
        self.server: Server | None = None
        self.address = ""  # where it listens
        self.port = 0
        self.is_full = False  # no more connections are accepted

    async def start(self, address: str, out: Mapping[str, str], into: Mapping[str, str]) -> int:
        """Listen at `address`, and take up the links as in `relink`; returns the port."""
        self.loop = asyncio.get_running_loop()
        self.into = {name: Traffic() for name in into}
        port = await self._listen(address)
        self.relink(out, into)
        return port

    @property
    def max_connections(self) -> int:
        return 2 * len(self.into) + CONNECTIONS

    async def check_full(self) -> bool:
        """Whether the server accepts no more connections, by a connection to itself; logged if so."""
        if not self.address:
            return False
        local = self.local
        host = self.address.rpartition(":")[0]
        own_address = f"{host}:{self.port}"
        found = await local.host.wire.probe(local.identity, own_address, local.context.name)
        was_full = self.is_full
        self.is_full = NO_CONNECTION in found
        if self.is_full and not was_full:
            text = (
                f"all {self.max_connections} are in use: a neighbour that restarts cannot connect"
            )
            local.notify(
                "connections", f"{text}; limit new connections per address in the firewall"
            )
        return self.is_full

    async def _listen(self, address: str) -> int:
        """Open the server at `address`, then close the one before; RuntimeError if it cannot be opened."""
        handlers = {
            "Talk": self._talk,
            "Fetch": self._fetch,
            "Manifest": self._manifest,
            "Status": self._status,
        }
        server = await self.local.host.wire.serve(
            address, lambda: self.local.identity, handlers, self.max_connections
        )
        before = self.server
        self.server = server
        self.address = address
        self.port = server.port
        if before is not None:
            await before.stop()
        return self.port

    async def move(self, address: str) -> None:
        """Listen at another address; if it cannot be used, the old one is kept."""
        try:
            await self._listen(address)
            self.local.notify("address", f"listening at {address or 'no address'}")
        except RuntimeError:
            self.local.notify(
                "failed", f"cannot listen at {address}; still at {self.address or 'none'}"
            )

    def renew(self, identity: Identity) -> None:
        """Use another certificate for new connections; open ones are kept."""
        self.local = replace(self.local, identity=identity)
        for stream in (*self.out.values(), *self.in_dialers.values()):
            stream.local = self.local

    def relink(self, out: Mapping[str, str], into: Mapping[str, str]) -> None:
        """Take the links of a manifest: open new ones, close removed ones, follow changed addresses.

        Args:
            out: Receivers, with the address to connect to; "" if the receiver connects.
            into: Senders, in the same way.
        """
        for streams, addresses in ((self.out, out), (self.in_dialers, into)):
            for name, stream in list(streams.items()):
                if addresses.get(name) != stream.address:
                    stream.close()
                    del streams[name]
        for name, address in out.items():
            if name not in self.out:
                self.out[name] = OutStream(self.local, name, address)
        self.into = {name: self.into.get(name, Traffic()) for name in into}
        served = {self._link_to(name) for name, address in out.items() if not address}
        served |= {self._link_from(name) for name, address in into.items() if not address}
        for handler, link in list(self.handlers.items()):
            if link not in served:
                handler.cancel()
        for name, address in into.items():
            if address and name not in self.in_dialers:
                self.in_dialers[name] = InLinkDialer(self, name, address)

    def traffic(self) -> list[tuple[str, Traffic]]:
        """The counters of each link by the neighbour's name, out-links first."""
        # copies: called from another thread while a manifest may change the links
        out = dict(self.out)
        into = dict(self.into)
        return [*((name, stream.traffic) for name, stream in out.items()), *into.items()]

    async def stop(self) -> None:
        streams: list[LinkDialer] = [*self.out.values(), *self.in_dialers.values()]
        for stream in streams:
            stream.close()
        await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
        for handler in self.handlers:  # before the server does it, which would log an error
            handler.cancel()
        if self.handlers:
            await asyncio.wait(self.handlers, timeout=1)
        if self.server is not None:
            await self.server.stop()

    # --- called from the thread in which rounds run ------------------------------------------------
    def send_latest(self, target: str, message: Message) -> None:
        """Send on an out-link; a message that has not left yet is replaced."""
        stream = self.out.get(target)
        if stream is not None:
            stream.latest = message
            if not stream.is_wake_scheduled:  # one wake-up for many rounds
                stream.is_wake_scheduled = True
                self.loop.call_soon_threadsafe(stream.wake.set)

    def send_ack(self, target: str, ack: Ack) -> None:
        """Answer on an in-link."""
        stream = self.streams.get(target)
        if stream is not None:
            stream.ack = ack
            self.loop.call_soon_threadsafe(stream.wake.set)

    # --- streams that others open ------------------------------------------------------------------
    async def _talk(self, call: IncomingCall) -> None:
        """Serve a sender that has connected."""
        name = call.caller
        traffic = None if name in self.in_dialers else self.into.get(name)
        await self._serve(call, traffic, self._link_from(name), self.receive)

    async def _fetch(self, call: IncomingCall) -> None:
        """Serve a receiver that has connected."""
        name = call.caller
        stream = self.out.get(name)
        traffic = None if stream is None or stream.address else stream.traffic
        serve = self.receive if stream is None else stream.serve
        await self._serve(call, traffic, self._link_to(name), serve)

    def _link_to(self, name: str) -> str:
        return f"{self.local.context.name} → {name}"

    def _link_from(self, name: str) -> str:
        return f"{name} → {self.local.context.name}"

    async def _serve(
        self, call: IncomingCall, traffic: Traffic | None, link: str, serve: Serve
    ) -> None:
        """Accept a link of the manifest and agree on a protocol (handshake), or refuse with the reason."""
        name = call.caller
        if traffic is None:
            self.on_unknown_link(name)
            why = f"link {link} is not in the manifest"
            self.local.notify("refused", why)
            raise Refused(why)
        handler = asyncio.current_task()
        assert handler is not None
        self.handlers[handler] = link
        try:
            with self.access.stream(name), self._until_expiry(name, call.certificate):
                protocol = agree_on_protocol(self.local.context, name, call.headers, traffic)
                await call.begin(own_headers(self.local.context))
                await serve(name, call, protocol)
        except Refused as error:
            why = str(error)[:TEXT]
            self.local.notify("refused", why, name)
            raise Refused(why) from None
        finally:
            del self.handlers[handler]

    @contextlib.contextmanager
    def _until_expiry(self, name: str, certificate: bytes) -> Iterator[None]:
        """End a stream when the certificate of either end expires; it is opened again with a new one."""
        task = asyncio.current_task()
        assert task is not None
        stop = task.cancel

        def end() -> None:
            self.local.notify("certificate", "a certificate of this stream has expired", name)
            stop()

        now = self.local.host.clock.wall()
        own = self.local.identity.certificate
        left = min(seconds_left(certificate, now), seconds_left(own, now))
        timer = self.loop.call_later(max(left, 0), end)
        try:
            yield
        finally:
            timer.cancel()

    # --- the receiver's end of a stream ------------------------------------------------------------
    async def receive(self, sender: str, frames: Stream, protocol: int) -> None:
        """Receive the messages of one stream until it ends; `Refused` for a frame no honest peer sends."""
        assembler = wire_format.MessageAssembler(self.local.context, sender)
        stream: InStream | None = None
        traffic = self.into[sender]
        task = asyncio.current_task()
        assert task is not None
        limit = FIRST_SECONDS + 8 * self.local.context.n / SLOWEST
        first = self.loop.call_later(limit, task.cancel)
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

    async def _manifest(self, call: IncomingCall) -> None:
        await self._answer(self.manifest, call)

    async def _status(self, call: IncomingCall) -> None:
        await self._answer(self.status, call)

    async def _answer(self, answer: Answer, call: IncomingCall) -> None:
        """Send a file in chunks."""
        name = call.caller
        file = answer(name)
        if file is None:
            why = f"{name} is not in the manifest"
            self.local.notify("refused", why)
            raise Refused(why)
        task = asyncio.current_task()
        assert task is not None
        # a client that does not read the answer is disconnected
        late = self.loop.call_later(CHUNK_SECONDS, task.cancel)
        try:
            with self.access.stream(f"{name} (files)"):
                for start in range(0, len(file), FILE_CHUNK):
                    await call.write(file[start : start + FILE_CHUNK])
        finally:
            late.cancel()


class InLinkDialer(LinkDialer):
    """The receiver's end of a link that the receiver connects."""

    rpc = "Fetch"

    def __init__(self, transport: Transport, name: str, address: str) -> None:
        self.transport = transport
        super().__init__(transport.local, name, address, transport.into[name])

    @property
    def link(self) -> str:
        return f"{self.name} → {self.local.context.name}"

    async def talk(self, call: Call, protocol: int) -> None:
        await self.transport.receive(self.name, call, protocol)

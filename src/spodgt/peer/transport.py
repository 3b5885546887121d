"""Sockets: gRPC over mutual TLS, one stream for each directed link.

The sender writes messages, and acknowledgements come back. One end opens the stream, as the manifest says:
the sender calls Talk, or the receiver calls Fetch, so a client behind NAT needs outgoing connections only.
Only the newest message of a link is ever kept, and two may be on their way, so nothing grows when a link is
slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import grpc

from spodgt.peer import wire
from spodgt.peer.diagnosis import cause
from spodgt.peer.faults import Hear, crash_point
from spodgt.peer.gate import Gate
from spodgt.peer.identity import Identity, seconds_left
from spodgt.peer.protocol import Ack, Incarnation, Message, Refused

SERVICE = "spodgt.peer.Links"
CONNECT_SECONDS = 5.0
CHUNK_SECONDS = 60.0  # a chunk of 1 MiB that takes longer is a dead link
RESEND_SECONDS = 1.0
SILENT_SECONDS = 10.0  # without an answer to a message, beyond the time its bytes take at the slowest rate
HEARTBEAT_SECONDS = 2.0  # a stream on which nothing was answered for so long gets a heartbeat
SLOWEST = 16_000.0  # bytes per second that a link must carry
TAKEOVER_SECONDS = 3.0  # a stream silent for so long gives way to a later incarnation of the same client
WINDOW = 2  # messages on their way before an acknowledgement is awaited
FIRST_SECONDS = 10.0  # for the first whole message of a stream, beyond the time its bytes take
STREAM_SECONDS = 86_400.0  # then a stream is opened anew, so that both ends show their certificates again
CONNECTIONS = 256  # beyond those of the links: strangers cannot use up the descriptors
ANSWER = 2**27  # bytes of a manifest at most: a complete graph of 1,000 clients
_SAID = 40  # characters of a program's version, or of its protocols
_TEXT = 300  # characters of a reason that travel back to the sender
_BACKOFF = (0.1, 3.0)
_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", wire.LIMIT),
    ("grpc.max_send_message_length", wire.LIMIT),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),  # members' keepalive is welcome
    ("grpc.http2.lookahead_bytes", 4 * wire.CHUNK),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),  # who says nothing is let go
    ("grpc.max_concurrent_streams", 8),  # of one connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3_000),
]


@dataclass
class Traffic:
    """What has happened on one link."""

    state: str = "waiting"  # waiting, up, down
    why: str = ""
    messages: int = 0
    bytes: int = 0
    heard: float = 0.0  # monotonic time
    version: str = ""  # of the neighbour's program


@dataclass(frozen=True)
class Local:
    """What the ends of all streams of one client need to know of it."""

    context: wire.Context
    identity: Identity
    hear: Hear  # takes what arrives
    notify: Callable[[str, str], None]  # takes events: kind, text


class Wires(Protocol):
    """One end of a stream, whoever has opened it."""

    async def read(self) -> bytes: ...
    async def write(self, data: bytes, /) -> None: ...


Serve = Callable[[str, Wires, int], Awaitable[None]]  # with whom, on which stream, by which protocol


Answer = Callable[[str], bytes | None]  # to whom asks, by its name; None: it may not know


class Transport:
    """All links of one client; `manifest` and `status` answer those who ask for them."""

    def __init__(
        self, local: Local, manifest: Answer = lambda name: None, status: Answer = lambda name: None
    ) -> None:
        self.local, self.manifest, self.status = local, manifest, status
        self.out: dict[str, OutStream] = {}
        self.into: dict[str, Traffic] = {}
        self.fetching: dict[str, InDialled] = {}  # the in-links that this end dials
        self.streams: dict[str, InStream] = {}
        self.gate = Gate()
        self.server: grpc.aio.Server | None = None
        self.address = ""  # where it listens

    async def start(self, address: str, out: Mapping[str, str], into: Mapping[str, str]) -> int:
        """Listen at `address`, and take up the links as in `relink`; returns the port."""
        self.loop = asyncio.get_running_loop()
        self.into = {name: Traffic() for name in into}
        port = await self._listen(address)
        self.relink(out, into)
        return port

    async def _listen(self, address: str) -> int:
        """Open the server at `address`, and only then close the one before; RuntimeError if it cannot be."""
        connections = ("grpc.max_allowed_incoming_connections", 2 * len(self.into) + CONNECTIONS)
        server, port = grpc.aio.server(options=[*_OPTIONS, connections]), 0
        handlers = {
            "Talk": grpc.stream_stream_rpc_method_handler(self._talk),
            "Fetch": grpc.stream_stream_rpc_method_handler(self._fetch),
            # as a stream the handler runs before a request is read: a half-sent one holds nothing
            "Manifest": grpc.stream_stream_rpc_method_handler(self._manifest),
            "Status": grpc.stream_stream_rpc_method_handler(self._status),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if address:
            # asked again at every handshake, so that a renewed certificate needs no restart
            credentials = grpc.dynamic_ssl_server_credentials(
                self._certificates(), self._certificates, require_client_authentication=True
            )
            port = int(server.add_secure_port(address, credentials))
        await server.start()
        before, self.server, self.address = self.server, server, address
        if before is not None:
            await before.stop(0.2)
        return port

    def _certificates(self) -> grpc.ServerCertificateConfiguration:
        own = self.local.identity
        return grpc.ssl_server_certificate_configuration([(own.key, own.certificate)], own.authority)

    async def move(self, address: str) -> None:
        """Listen elsewhere; if that cannot be, the old address is kept."""
        try:
            await self._listen(address)
            self.local.notify("address", f"listening at {address or 'no address'}")
        except RuntimeError:
            self.local.notify("failed", f"cannot listen at {address}; still at {self.address or 'none'}")

    def renew(self, identity: Identity) -> None:
        """Use another certificate for all connections from now on; open ones stay."""
        self.local = replace(self.local, identity=identity)
        for stream in (*self.out.values(), *self.fetching.values()):
            stream.local = self.local

    def relink(self, out: Mapping[str, str], into: Mapping[str, str]) -> None:
        """Take the links of a manifest: open what is new, close what is gone, follow what has moved.

        Args:
            out: receivers, with the address at which they are dialled; "" if they dial.
            into: senders, in the same way.
        """
        for streams, addresses in ((self.out, out), (self.fetching, into)):
            for name, stream in list(streams.items()):
                if addresses.get(name) != stream.address:
                    stream.close()
                    del streams[name]
        for name, address in out.items():
            if name not in self.out:
                self.out[name] = OutStream(self.local, name, address)
        self.into = {name: self.into.get(name, Traffic()) for name in into}
        for name in set(self.streams) - set(into):
            self.streams.pop(name).close()
        for name, address in into.items():
            if address and name not in self.fetching:
                self.fetching[name] = InDialled(self, name, address)

    def traffic(self) -> list[tuple[str, Traffic]]:
        """What has happened on each link, out-links first, by the neighbour's name."""
        out, into = dict(self.out), dict(self.into)  # another thread asks while a manifest may change these
        return [*((name, stream.traffic) for name, stream in out.items()), *into.items()]

    async def stop(self) -> None:
        streams: list[Dialled] = [*self.out.values(), *self.fetching.values()]
        for stream in streams:
            stream.close()
        await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
        handlers = [stream.handler for stream in self.streams.values()]
        for handler in handlers:  # before the server does it, which would log an error
            handler.cancel()
        if handlers:
            await asyncio.wait(handlers, timeout=1)
        if self.server is not None:
            await self.server.stop(0.2)

    # --- called from the thread in which rounds run ------------------------------------------------
    def send_latest(self, target: str, message: Message) -> None:
        """Send on an out-link; a message that has not left yet is replaced."""
        stream = self.out.get(target)
        if stream is not None:
            stream.latest = message
            if not stream.nudged:  # one wake-up for many rounds
                stream.nudged = True
                self.loop.call_soon_threadsafe(stream.wake.set)

    def send_ack(self, target: str, ack: Ack) -> None:
        """Answer on an in-link."""
        stream = self.streams.get(target)
        if stream is not None:
            stream.ack = ack
            self.loop.call_soon_threadsafe(stream.wake.set)

    # --- streams that others open ------------------------------------------------------------------
    async def _talk(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        """A sender has come."""
        name = await _certified_name(context)
        traffic = None if name in self.fetching else self.into.get(name)
        await self._serve(name, traffic, f"{name} → {self.local.context.name}", self.receive, context)

    async def _fetch(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        """A receiver has come."""
        name = await _certified_name(context)
        stream = self.out.get(name)
        traffic = None if stream is None or stream.address else stream.traffic
        serve = self.receive if stream is None else stream.serve
        await self._serve(name, traffic, f"{self.local.context.name} → {name}", serve, context)

    async def _serve(
        self, name: str, traffic: Traffic | None, link: str, serve: Serve, context: grpc.aio.ServicerContext
    ) -> None:
        """Let in what the manifest knows, agree on a protocol, and tell a neighbour why it is refused."""
        if traffic is None:
            why = f"link {link} is not in the manifest"
            self.local.notify("refused", why)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
            return
        try:
            with self.gate.stream(name), self._until_expiry(name, context):
                protocol = _agreed(self.local.context, name, context.invocation_metadata(), traffic)
                await context.send_initial_metadata(_spoken(self.local.context))
                await serve(name, context, protocol)
        except Refused as error:
            why = str(error)[:_TEXT]
            self.local.notify("refused", f"{name}: {why}")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)

    @contextlib.contextmanager
    def _until_expiry(self, name: str, context: grpc.aio.ServicerContext) -> Iterator[None]:
        """End a stream with the certificate of either end; the dialling end comes again with its new one."""
        task = asyncio.current_task()
        assert task is not None
        stop = task.cancel

        def end() -> None:
            self.local.notify(
                "certificate", f"{name}: a certificate of this stream has ended, and so does it"
            )
            stop()

        left = min(seconds_left(_certificate(context)), seconds_left(self.local.identity.certificate))
        timer = self.loop.call_later(max(left, 0), end)
        try:
            yield
        finally:
            timer.cancel()

    # --- the receiver's end of a stream ------------------------------------------------------------
    async def receive(self, sender: str, wires: Wires, protocol: int) -> None:
        """Take the messages of one stream until it ends; `Refused` for a frame no honest peer sends."""
        assembler = wire.Assembler(self.local.context, sender)
        stream: InStream | None = None
        traffic = self.into[sender]
        task = asyncio.current_task()
        assert task is not None
        limit = FIRST_SECONDS + 8 * self.local.context.n / SLOWEST
        first = self.loop.call_later(limit, task.cancel)
        try:
            while (chunk := await wires.read()) is not grpc.aio.EOF:
                message = self._assemble(assembler, chunk)
                traffic.bytes += len(chunk)
                if message is None:
                    continue
                if stream is None:
                    first.cancel()
                    stream = self._register(sender, message.sender, wires, protocol)
                traffic.messages += 1
                traffic.heard = stream.heard = time.monotonic()
                traffic.state, traffic.why = "up", ""
                if time.monotonic() - stream.answered > HEARTBEAT_SECONDS:
                    stream.wake.set()  # tell the sender we are alive, however long the round takes
                self.local.hear(sender, message)
        except asyncio.CancelledError:
            return  # the sender went away or says nothing, a later incarnation of it has come, or we end
        finally:
            first.cancel()
            if stream is not None:
                stream.task.cancel()
                if self.streams.get(sender) is stream:
                    del self.streams[sender]
                    traffic.state = "down"

    def _assemble(self, assembler: wire.Assembler, chunk: bytes) -> Message | None:
        try:
            return assembler.add(chunk)
        except Refused:
            self.gate.bad_frame(assembler.sender)
            raise

    def _register(self, sender: str, incarnation: Incarnation, wires: Wires, protocol: int) -> InStream:
        """One stream for each sender; a later incarnation replaces an earlier one that has fallen silent."""
        old = self.streams.get(sender)
        if old is not None:
            lively = old.incarnation != incarnation and time.monotonic() - old.heard < TAKEOVER_SECONDS
            if lively or old.incarnation.supersedes(incarnation):
                known = f"{sender} is already connected as incarnation {old.incarnation.number}"
                raise Refused(f"{known}; another process uses its name")
            old.close()
        stream = InStream(replace(self.local.context, protocols=(protocol,)), incarnation, wires)
        self.streams[sender] = stream
        return stream

    async def _manifest(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        await self._answer(self.manifest, context)

    async def _status(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        await self._answer(self.status, context)

    async def _answer(self, answer: Answer, context: grpc.aio.ServicerContext) -> None:
        """Send a file in chunks."""
        name = await _certified_name(context)
        file = answer(name)
        if file is None:
            why = f"{name} is not in the manifest"
            self.local.notify("refused", why)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
            return
        task = asyncio.current_task()
        assert task is not None
        late = self.loop.call_later(CHUNK_SECONDS, task.cancel)  # who asks and does not read is let go
        try:
            with self.gate.stream(f"{name} (files)"):
                for start in range(0, len(file), wire.CHUNK):
                    await context.write(file[start : start + wire.CHUNK])
        except Refused as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            late.cancel()


async def _certified_name(context: grpc.aio.ServicerContext) -> str:
    names = [name.decode() for name in context.auth_context().get("x509_subject_alternative_name", [])]
    if len(names) != 1:
        why = f"the certificate must hold one name, it has {names}"
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
    if seconds_left(_certificate(context)) < 0:  # of a connection that was made before
        why = f"the certificate of {names[0]} has expired"
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
    return str(names[0])


def _certificate(context: grpc.aio.ServicerContext) -> bytes:
    (certificate,) = context.auth_context()["x509_pem_cert"]
    return bytes(certificate)


def _spoken(own: wire.Context) -> tuple[tuple[str, str], ...]:
    """What a stream begins with at both ends, as metadata of the call."""
    return (("spodgt-protocols", " ".join(map(str, own.protocols))), ("spodgt-version", own.version or "?"))


def _agreed(
    own: wire.Context, name: str, metadata: Iterable[tuple[str, str | bytes]] | None, traffic: Traffic
) -> int:
    """The protocol of a stream, from what the other end `name` says that it speaks; notes its version."""
    said = {key: str(value)[:_SAID] for key, value in metadata or ()}
    traffic.version = said.get("spodgt-version", "")
    theirs = [int(word) for word in said.get("spodgt-protocols", "1").split() if word.isdecimal()]
    return wire.agree(own, theirs, name, traffic.version)


async def fetch(what: str, identity: Identity, address: str, name: str) -> bytes:
    """Ask the client `name` for its "Manifest", not yet verified, or its "Status" as JSON."""
    file = bytearray()
    async with secure_channel(identity, address, name) as channel:
        await asyncio.wait_for(channel.channel_ready(), CONNECT_SECONDS)
        call = channel.stream_stream(f"/{SERVICE}/{what}")(timeout=CHUNK_SECONDS)
        await call.done_writing()
        while (chunk := await call.read()) is not grpc.aio.EOF:
            file += chunk
            if len(file) > ANSWER:
                raise Refused(f"the answer of {name} has more than {ANSWER} bytes")
    return bytes(file)


class InStream:
    """The receiver's end of a stream: answers with the newest acknowledgement."""

    def __init__(self, own: wire.Context, sender: Incarnation, wires: Wires) -> None:
        self.own, self.incarnation, self.wires = own, sender, wires
        self.ack: Ack | None = None
        self.heard = time.monotonic()
        self.answered = 0.0
        self.wake = asyncio.Event()
        handler = asyncio.current_task()
        assert handler is not None
        self.handler = handler  # the stream's own task
        self.task = asyncio.create_task(self._answer())

    def close(self) -> None:
        self.task.cancel()
        self.handler.cancel()

    async def _answer(self) -> None:
        try:
            while True:
                await self.wake.wait()
                self.wake.clear()
                ack, self.ack = self.ack, None
                self.answered = time.monotonic()
                # nothing to acknowledge: an empty frame, the heartbeat
                await self.wires.write(b"" if ack is None else wire.pack_ack(self.own, ack))
                if ack is not None:
                    crash_point("ack sent")
        except Exception:  # the stream has ended, whatever gRPC calls it; the sender connects again
            self.handler.cancel()


class Dialled:
    """An end of a link that connects to the other end, and connects again for ever."""

    rpc = ""

    def __init__(self, local: Local, name: str, address: str, traffic: Traffic) -> None:
        self.local, self.name, self.address, self.traffic = local, name, address, traffic
        self.closed = False
        self._begin()

    @property
    def link(self) -> str:
        return f"{self.local.context.name} → {self.name}"

    async def talk(self, call: grpc.aio.StreamStreamCall, protocol: int) -> None:
        """Use a stream until it breaks."""
        raise NotImplementedError

    def _begin(self) -> None:
        if not self.closed:
            self.task = asyncio.create_task(self._run())
            self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A link ends when it is closed, and for no other reason."""
        if self.closed:
            return
        why = "cancelled" if task.cancelled() else repr(task.exception())
        self.local.notify("failed", f"{self.link}: {why}")
        self.task.get_loop().call_later(_BACKOFF[1], self._begin)

    def close(self) -> None:
        self.closed = True
        self.task.cancel()

    async def _run(self) -> None:
        pause = _BACKOFF[0]
        while True:
            begun = time.monotonic()
            self.down(await self._attempt())
            pause = _BACKOFF[0] if time.monotonic() - begun > 10 else min(2 * pause, _BACKOFF[1])
            await asyncio.sleep(pause * random.uniform(0.5, 1))

    def down(self, why: str) -> None:
        self.traffic.why = why
        if self.traffic.state != "down":
            self.traffic.state = "down"
            self.local.notify("link down", f"{self.link}: {why}")

    async def _attempt(self) -> str:
        """Connect and talk until it breaks; returns why, whatever it was that broke."""
        # a task of its own: gRPC cancels what waits on a call that ends, and that must not end the link
        attempt = asyncio.create_task(self._connect())
        try:
            await asyncio.wait({attempt})
        finally:
            attempt.cancel()
        error = None if attempt.cancelled() else attempt.exception()
        if isinstance(error, Refused):
            self.local.notify("refused", f"{self.name}: {error}"[:_TEXT])
            return str(error)[:_TEXT]
        try:
            return await cause(error, self.local.identity, self.address, self.name)
        except Exception as failure:
            return f"{type(failure).__name__}: {failure}"[:_TEXT]

    async def _connect(self) -> None:
        own, person = self.local.context, self.local.identity
        async with secure_channel(person, self.address, self.name) as channel:
            await asyncio.wait_for(channel.channel_ready(), CONNECT_SECONDS)
            call = channel.stream_stream(f"/{SERVICE}/{self.rpc}")(metadata=_spoken(own))
            # a dialling end is not told the other's certificate: it asks for it again now and then
            left = max(0.0, min(seconds_left(person.certificate), STREAM_SECONDS))
            last = asyncio.get_running_loop().call_later(left, call.cancel)
            try:
                answer = await asyncio.wait_for(call.initial_metadata(), CONNECT_SECONDS)
                if "spodgt-protocols" in dict(answer):  # else it refuses, and says why in a moment
                    await self.talk(call, _agreed(own, self.name, answer, self.traffic))
                await call.read()
            finally:
                last.cancel()
                call.cancel()


class InDialled(Dialled):
    """The receiver's end of a link that the receiver dials."""

    rpc = "Fetch"

    def __init__(self, transport: Transport, name: str, address: str) -> None:
        self.transport = transport
        super().__init__(transport.local, name, address, transport.into[name])

    @property
    def link(self) -> str:
        return f"{self.name} → {self.local.context.name}"

    async def talk(self, call: grpc.aio.StreamStreamCall, protocol: int) -> None:
        await self.transport.receive(self.name, call, protocol)


class OutStream(Dialled):
    """The sender's end of a link: sends the newest message; it connects, or waits for the receiver."""

    rpc = "Talk"

    def __init__(self, local: Local, name: str, address: str) -> None:
        self.latest: Message | None = None
        self.wake = asyncio.Event()
        self.answered = asyncio.Event()
        self.nudged = False
        self.under_way = 0
        self.writing = 0.0  # since when a chunk waits to leave
        self.asked = 0.0  # since when a message waits for an answer
        self.serving: asyncio.Task[None] | None = None  # the stream that the receiver has opened
        super().__init__(local, name, address, Traffic())

    async def _run(self) -> None:
        if self.address:
            await super()._run()
        self.traffic.why = f"{self.name} dials, and has not come yet"
        await asyncio.Event().wait()

    def close(self) -> None:
        super().close()
        if self.serving is not None:
            self.serving.cancel()

    async def serve(self, receiver: str, wires: Wires, protocol: int) -> None:
        """Talk on a stream that the receiver has opened; a later one replaces one that has fallen silent."""
        if self.serving is not None:
            if time.monotonic() - self.traffic.heard < TAKEOVER_SECONDS:
                raise Refused(f"{receiver} is already connected; another process uses its name")
            self.serving.cancel()
        own = self.serving = asyncio.current_task()
        try:
            await self.talk(wires, protocol)
        except asyncio.CancelledError:
            return  # the receiver went away, has come again, or we end
        except Exception as error:
            self.down(f"{type(error).__name__}: {error}"[:_TEXT])
        finally:
            if self.serving is own:
                self.serving = None
                self.down(f"{self.name} has gone; it dials")

    async def talk(self, wires: Wires, protocol: int) -> None:
        """Send and listen until one of them ends."""
        parts = [
            asyncio.create_task(part)
            for part in (self._listen(wires), self._send(wires, protocol), self._watch())
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            ended = await asyncio.gather(*parts, return_exceptions=True)
        for error in ended:
            if isinstance(error, grpc.aio.AioRpcError):  # tells more than what followed from it
                raise error
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _watch(self) -> None:
        """The deadlines of a stream; one watcher is cheaper than a timer for each chunk."""
        self.writing = self.asked = 0.0
        limit = SILENT_SECONDS + 8 * self.local.context.n / SLOWEST
        while True:
            await asyncio.sleep(1)
            now = time.monotonic()
            stuck = self.writing and now - self.writing > CHUNK_SECONDS
            if stuck or (self.asked and now - self.asked > limit):
                raise asyncio.TimeoutError

    async def _send(self, call: Wires, protocol: int) -> None:
        own = replace(self.local.context, protocols=(protocol,))
        frame, last, sent_at = 0, None, 0.0
        self.under_way = 0
        self.wake.set()  # a new stream begins with what is newest
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.wake.wait(), RESEND_SECONDS)
            self.wake.clear()
            self.nudged = False
            message = self.latest
            if message is None or (message is last and time.monotonic() - sent_at < RESEND_SECONDS):
                continue
            if self.under_way >= WINDOW:
                self.answered.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.answered.wait(), RESEND_SECONDS)
                message = self.latest or message  # what became newest while we waited
            frame += 1
            for number, chunk in enumerate(wire.pack(own, self.name, message, frame)):
                if number:
                    crash_point("half sent")
                self.writing = time.monotonic()
                await call.write(chunk)
                self.traffic.bytes += len(chunk)
            self.writing = 0.0
            crash_point("message sent")
            last, sent_at = message, time.monotonic()
            self.asked = self.asked or sent_at
            self.traffic.messages += 1
            self.under_way += 1

    async def _listen(self, call: Wires) -> None:
        while (data := await call.read()) is not grpc.aio.EOF:
            self.asked = 0.0
            if self.traffic.state != "up":
                self.traffic.state, self.traffic.why = "up", ""
                self.local.notify("link up", f"{self.local.context.name} → {self.name}")
            self.traffic.heard = time.monotonic()
            if not data:
                continue
            try:
                ack = wire.unpack_ack(self.local.context, data)
            except Refused as error:
                self.local.notify("refused", f"{self.name}: {error}")
                continue
            self.under_way = 0
            self.answered.set()
            latest = self.latest
            same = latest and (ack.epoch, ack.seen) == (latest.epoch, latest.sender)
            if latest and same and ack.number >= latest.number:
                self.latest = None  # no need to resend
            self.local.hear(self.name, ack)


def secure_channel(identity: Identity, address: str, name: str) -> grpc.aio.Channel:
    """A channel to the client `name`, and to nobody else who answers at its address."""
    credentials = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
    options = [*_OPTIONS, ("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(address, credentials, options=options)

"""Sockets: gRPC over mutual TLS, one stream for each directed link.

The sender writes messages, and acknowledgements come back. One end opens the stream, as the manifest says:
the sender calls Talk, or the receiver calls Fetch, so a client behind NAT needs outgoing connections only.
Only the newest message of a link is ever kept, and two may be on their way, so nothing grows when a link is
slow. A message is sent once on a stream; until it is acknowledged, its header is repeated every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import replace

import grpc

from spodgt.peer import wire
from spodgt.peer.channel import (
    CHUNK_SECONDS,
    IDLE_MS,
    OPTIONS,
    SERVICE,
    SLOWEST,
    TEXT,
    Local,
    Traffic,
    Wires,
    agreed,
    spoken,
)
from spodgt.peer.diagnosis import NO_CONNECTION, probe
from spodgt.peer.gate import Gate
from spodgt.peer.identity import Identity, seconds_left
from spodgt.peer.protocol import Ack, Incarnation, Message, Refused
from spodgt.peer.streams import TAKEOVER_SECONDS, Dialled, InStream, OutStream
from spodgt.peer.wire import Repeat

HEARTBEAT_SECONDS = 2.0  # a stream on which nothing was answered for so long gets a heartbeat
FIRST_SECONDS = 10.0  # for the first whole message of a stream, beyond the time its bytes take
FILE_CHUNK = 2**16  # bytes: even at the slowest rate each arrives within the seconds for an answer
CONNECTIONS = 256  # beyond those of the links: strangers cannot use up the descriptors

Serve = Callable[
    [str, Wires, int], Awaitable[None]
]  # with whom, on which stream, by which protocol
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
        self.port = 0
        self.is_full = False  # no more connections are accepted
        self.shown = local.identity  # what the server shows in handshakes

    async def start(self, address: str, out: Mapping[str, str], into: Mapping[str, str]) -> int:
        """Listen at `address`, and take up the links as in `relink`; returns the port."""
        self.loop = asyncio.get_running_loop()
        self.into = {name: Traffic() for name in into}
        port = await self._listen(address)
        self.relink(out, into)
        return port

    @property
    def most_connections(self) -> int:
        return 2 * len(self.into) + CONNECTIONS

    async def check_full(self) -> bool:
        """Whether the server accepts no more connections, by a connection to itself; logged if so."""
        if not self.address:
            return False
        local = self.local
        host = self.address.rpartition(":")[0]
        found = await asyncio.to_thread(
            probe, local.identity, f"{host}:{self.port}", local.context.name
        )
        was_full = self.is_full
        self.is_full = NO_CONNECTION in found
        if self.is_full and not was_full:
            told = (
                f"all {self.most_connections} are in use: a neighbour that restarts cannot connect"
            )
            local.notify(
                "connections", f"{told}; limit new connections per address in the firewall"
            )
        return self.is_full

    async def _listen(self, address: str) -> int:
        """Open the server at `address`, and only then close the one before; RuntimeError if it cannot be."""
        connections = ("grpc.max_allowed_incoming_connections", self.most_connections)
        idle = ("grpc.max_connection_idle_ms", IDLE_MS)
        server, port = grpc.aio.server(options=[*OPTIONS, connections, idle]), 0
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
                self._certificates(), self._renewed, require_client_authentication=True
            )
            port = int(server.add_secure_port(address, credentials))
        await server.start()
        before = self.server
        self.server = server
        self.address = address
        self.port = port
        if before is not None:
            await before.stop(0.2)
        return port

    def _certificates(self) -> grpc.ServerCertificateConfiguration:
        own = self.shown = self.local.identity
        return grpc.ssl_server_certificate_configuration(
            [(own.key, own.certificate)], own.authority
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificate for a handshake, if it is another: gRPC crashed when a flood replaced it in use."""
        return None if self.local.identity is self.shown else self._certificates()

    async def move(self, address: str) -> None:
        """Listen elsewhere; if that cannot be, the old address is kept."""
        try:
            await self._listen(address)
            self.local.notify("address", f"listening at {address or 'no address'}")
        except RuntimeError:
            self.local.notify(
                "failed", f"cannot listen at {address}; still at {self.address or 'none'}"
            )

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
        out, into = (
            dict(self.out),
            dict(self.into),
        )  # another thread asks while a manifest may change these
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
    async def _talk(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        """A sender has come."""
        name = await _certified_name(context)
        traffic = None if name in self.fetching else self.into.get(name)
        await self._serve(
            name, traffic, f"{name} → {self.local.context.name}", self.receive, context
        )

    async def _fetch(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        """A receiver has come."""
        name = await _certified_name(context)
        stream = self.out.get(name)
        traffic = None if stream is None or stream.address else stream.traffic
        serve = self.receive if stream is None else stream.serve
        await self._serve(name, traffic, f"{self.local.context.name} → {name}", serve, context)

    async def _serve(
        self,
        name: str,
        traffic: Traffic | None,
        link: str,
        serve: Serve,
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Let in what the manifest knows, agree on a protocol, and tell a neighbour why it is refused."""
        if traffic is None:
            why = f"link {link} is not in the manifest"
            self.local.notify("refused", why)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
            return
        try:
            with self.gate.stream(name), self._until_expiry(name, context):
                protocol = agreed(self.local.context, name, context.invocation_metadata(), traffic)
                await context.send_initial_metadata(spoken(self.local.context))
                await serve(name, context, protocol)
        except Refused as error:
            why = str(error)[:TEXT]
            self.local.notify("refused", f"{name}: {why}")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)

    @contextlib.contextmanager
    def _until_expiry(self, name: str, context: grpc.aio.ServicerContext) -> Iterator[None]:
        """End a stream with the certificate of either end; the dialling end comes again with its new one."""
        task = asyncio.current_task()
        assert task is not None
        stop = task.cancel

        def end() -> None:
            why = f"{name}: a certificate of this stream has ended, and so does it"
            self.local.notify("certificate", why)
            stop()

        left = min(
            seconds_left(_certificate(context)), seconds_left(self.local.identity.certificate)
        )
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
                frame = self._assemble(assembler, chunk)
                traffic.bytes += len(chunk)
                if frame is None:
                    continue
                if stream is None:
                    first.cancel()
                    stream = self._register(sender, frame.sender, wires, protocol)
                message = frame.message if isinstance(frame, Repeat) else frame
                traffic.messages += isinstance(frame, Message)
                traffic.heard = stream.heard = time.monotonic()
                traffic.state, traffic.why = "up", ""
                if time.monotonic() - stream.answered > HEARTBEAT_SECONDS:
                    stream.wake.set()  # tell the sender we are alive, however long the round takes
                if message is not None:
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

    def _assemble(self, assembler: wire.Assembler, chunk: bytes) -> Message | Repeat | None:
        try:
            return assembler.add(chunk)
        except Refused:
            self.gate.bad_frame(assembler.sender)
            raise

    def _register(
        self, sender: str, incarnation: Incarnation, wires: Wires, protocol: int
    ) -> InStream:
        """One stream for each sender; a later incarnation replaces an earlier one that has fallen silent."""
        old = self.streams.get(sender)
        if old is not None:
            lively = (
                old.incarnation != incarnation and time.monotonic() - old.heard < TAKEOVER_SECONDS
            )
            if lively or old.incarnation.supersedes(incarnation):
                known = f"{sender} is already connected as incarnation {old.incarnation.number}"
                raise Refused(f"{known}; another process uses its name")
            old.close()
        stream = InStream(replace(self.local.context, protocols=(protocol,)), incarnation, wires)
        self.streams[sender] = stream
        return stream

    async def _manifest(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        await self._answer(self.manifest, context)

    async def _status(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
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
        late = self.loop.call_later(
            CHUNK_SECONDS, task.cancel
        )  # who asks and does not read is let go
        try:
            with self.gate.stream(f"{name} (files)"):
                for start in range(0, len(file), FILE_CHUNK):
                    await context.write(file[start : start + FILE_CHUNK])
        except Refused as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            late.cancel()


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


async def _certified_name(context: grpc.aio.ServicerContext) -> str:
    names = [
        name.decode() for name in context.auth_context().get("x509_subject_alternative_name", [])
    ]
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

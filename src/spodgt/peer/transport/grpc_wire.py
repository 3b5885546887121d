"""Calls between peers by gRPC over mutual TLS, and the cause of failed ones.

gRPC reports only "unavailable", so `probe` finds the cause by a second attempt with the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from random import SystemRandom
from typing import Any

import grpc

from spodgt.peer.host.clock import SYSTEM_CLOCK
from spodgt.peer.host.files import DISK
from spodgt.peer.host.interfaces import Call, Disconnected, Ended, Handler, Headers, Host, Rejected
from spodgt.peer.membership.certificates import Identity, seconds_left
from spodgt.peer.protocol.running_sums import Refused
from spodgt.peer.transport import wire_format

SERVICE = "spodgt.peer.Links"
CONNECT_SECONDS = 5.0
IDLE_MS = 5_000  # a connection without a stream is closed: a certificate alone must not hold many
# ± 10 %, then a connection ends with its last stream: refused requests must not hold it either
AGE_MS = 9_000
NO_CONNECTION = "closes new connections before TLS begins"
OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", wire_format.LIMIT),
    ("grpc.max_send_message_length", wire_format.LIMIT),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),  # members' keepalive is welcome
    ("grpc.http2.lookahead_bytes", 4 * wire_format.CHUNK),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_concurrent_streams", 8),  # of one connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3_000),
]
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


def system_host() -> Host:
    """The host of a real process."""
    return Host(SYSTEM_CLOCK, SystemRandom(), DISK, GRPC)


def secure_channel(identity: Identity, address: str, name: str) -> grpc.aio.Channel:
    """A channel to the client `name`; a server at its address with another certificate is refused."""
    credentials = grpc.ssl_channel_credentials(
        identity.authority, identity.key, identity.certificate
    )
    options = [
        *OPTIONS,
        ("grpc.ssl_target_name_override", name),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.secure_channel(address, credentials, options=options)


class GrpcWire:
    """The `Wire` of real peers."""

    @contextlib.asynccontextmanager
    async def open(
        self, identity: Identity, address: str, name: str, procedure: str, headers: Headers
    ) -> AsyncIterator[Call]:
        async with secure_channel(identity, address, name) as channel:
            await asyncio.wait_for(channel.channel_ready(), CONNECT_SECONDS)
            method = channel.stream_stream(f"/{SERVICE}/{procedure}")
            call = method(metadata=tuple(headers.items()))
            try:
                yield GrpcCall(call)
            finally:
                call.cancel()

    async def serve(
        self,
        address: str,
        identity: Callable[[], Identity],
        handlers: Mapping[str, Handler],
        max_connections: int,
    ) -> GrpcServer:
        server = GrpcServer(identity, max_connections)
        await server.start(address, handlers)
        return server

    async def probe(self, identity: Identity, address: str, name: str) -> str:
        return await asyncio.to_thread(probe, identity, address, name)


GRPC = GrpcWire()


class GrpcCall:
    """The end of a call that made it."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self._call = call

    async def headers(self) -> Headers:
        with _own_errors():
            metadata = await asyncio.wait_for(self._call.initial_metadata(), CONNECT_SECONDS)
        return _texts(metadata)

    async def read(self) -> bytes | None:
        with _own_errors():
            data = await self._call.read()
        return None if data is grpc.aio.EOF else data

    async def write(self, data: bytes) -> None:
        with _own_errors():
            await self._call.write(data)

    async def close_writing(self) -> None:
        with _own_errors():
            await self._call.done_writing()

    def cancel(self) -> None:
        self._call.cancel()


class GrpcIncomingCall:
    """The end of a call that serves it."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        (certificate,) = context.auth_context()["x509_pem_cert"]
        self.certificate = bytes(certificate)
        names = context.auth_context().get("x509_subject_alternative_name", [])
        self.names: list[str] = [name.decode() for name in names]

    @property
    def caller(self) -> str:
        return self.names[0]

    @property
    def headers(self) -> Headers:
        return _texts(self._context.invocation_metadata())

    async def begin(self, headers: Headers) -> None:
        sending = asyncio.ensure_future(self._context.send_initial_metadata(tuple(headers.items())))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait({sending})  # gRPC cannot end a call whose headers are being sent
            raise

    async def read(self) -> bytes | None:
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def write(self, data: bytes) -> None:
        await self._context.write(data)

    def problem(self) -> str:
        """Why the caller is not authenticated; "" if it is."""
        if len(self.names) != 1:
            return f"the certificate must hold one name, it has {self.names}"
        if seconds_left(self.certificate) < 0:  # of a connection that was made before
            return f"the certificate of {self.caller} has expired"
        return ""


class GrpcServer:
    """A gRPC server with a certificate that may be renewed while it runs."""

    def __init__(self, identity: Callable[[], Identity], max_connections: int) -> None:
        self._identity = identity
        self._shown = identity()  # in handshakes
        connections = ("grpc.max_allowed_incoming_connections", max_connections)
        idle = ("grpc.max_connection_idle_ms", IDLE_MS)
        age = ("grpc.max_connection_age_ms", AGE_MS)
        self._server = grpc.aio.server(options=[*OPTIONS, connections, idle, age])
        self.port = 0

    async def start(self, address: str, handlers: Mapping[str, Handler]) -> None:
        # as a stream the handler runs before a request is read: a half-sent one holds nothing
        methods = {
            name: grpc.stream_stream_rpc_method_handler(_served(handler))
            for name, handler in handlers.items()
        }
        generic = grpc.method_handlers_generic_handler(SERVICE, methods)
        self._server.add_generic_rpc_handlers((generic,))
        if address:
            # asked again at every handshake, so that a renewed certificate needs no restart
            credentials = grpc.dynamic_ssl_server_credentials(
                self._certificates(), self.renewed, require_client_authentication=True
            )
            self.port = int(self._server.add_secure_port(address, credentials))
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0.2)

    def _certificates(self) -> grpc.ServerCertificateConfiguration:
        shown = self._identity()
        self._shown = shown
        return grpc.ssl_server_certificate_configuration(
            [(shown.key, shown.certificate)], shown.authority
        )

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificate for a handshake, if it is another: gRPC crashed when a flood replaced it in use."""
        return None if self._identity() is self._shown else self._certificates()


def _served(handler: Handler) -> Callable[[Any, grpc.aio.ServicerContext], Any]:
    async def serve(requests: object, context: grpc.aio.ServicerContext) -> None:
        call = GrpcIncomingCall(context)
        problem = call.problem()
        if problem:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, problem)
        try:
            await handler(call)
        except Refused as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    return serve


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raise errors of gRPC as those of the interface `Wire`."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.OK:
            raise Ended from None
        if error.code() in _LOST:
            raise Disconnected(error.details()) from None
        raise Rejected(error.details()) from None


def _texts(metadata: Any) -> dict[str, str]:
    return {key: str(value) for key, value in metadata or ()}


def probe(identity: Identity, address: str, name: str) -> str:
    """Connect once with the standard library; its errors contain the cause."""
    host, _, port = address.rpartition(":")
    try:
        context = _context(identity)
    except (OSError, ssl.SSLError):  # somebody is writing them, or has written something else
        return f"the stream to {name} broke, and key.pem and cert.pem in {identity.folder} are no pair now"
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), 2) as plain,
            context.wrap_socket(plain, server_hostname=name) as secure,
            contextlib.suppress(TimeoutError),
        ):
            secure.settimeout(0.3)
            secure.recv(1)  # TLS 1.3: a refusal of our certificate comes after the handshake
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {name} at {address} is not accepted: {error.verify_message}"
    except (ssl.SSLEOFError, ConnectionResetError):
        return f"{name} at {address} {NO_CONNECTION}: all are in use, it ends, or it speaks no TLS"
    except ssl.SSLError as error:
        alert = (error.reason or str(error)).lower().replace("_", " ")
        return f"{name} at {address} does not accept our certificate or speaks no TLS: {alert}"
    except ConnectionRefusedError:
        return f"nobody listens at {address}"
    except TimeoutError:
        return f"{address} does not answer"
    except (OSError, ValueError) as error:
        return f"{address} cannot be reached: {error}"
    return f"{name} at {address} answers, but the stream broke"


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.create_default_context(
        ssl.Purpose.SERVER_AUTH, cadata=identity.authority.decode()
    )
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as gRPC: on by default from Python 3.13 on
    context.set_alpn_protocols(["h2"])
    if identity.folder is not None:
        context.load_cert_chain(identity.folder / "cert.pem", identity.folder / "key.pem")
    return context

"""A connection between two clients: mutual TLS, what both ends say first, and questions with one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import grpc

from spodgt.peer import wire
from spodgt.peer.faults import Hear
from spodgt.peer.identity import Identity
from spodgt.peer.protocol import Refused
from spodgt.peer.text import printable

SERVICE = "spodgt.peer.Links"
CONNECT_SECONDS = 5.0
CHUNK_SECONDS = 60.0  # a chunk of 1 MiB that takes longer is a dead link
ANSWER_SECONDS = 5.0  # for an answer, beyond the time its bytes take at the slowest rate
SLOWEST = 16_000.0  # bytes per second that a link must carry
IDLE_MS = 5_000  # a connection without a stream is closed: whoever holds a certificate could keep all of them
TEXT = 300  # characters of a reason that travel back to the sender
ANSWER = 2**27  # bytes of a manifest at most: a complete graph of 1,000 clients
_SAID = 40  # characters of a program's version, or of its protocols
OPTIONS: list[tuple[str, int]] = [
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


def secure_channel(identity: Identity, address: str, name: str) -> grpc.aio.Channel:
    """A channel to the client `name`, and to nobody else who answers at its address."""
    credentials = grpc.ssl_channel_credentials(
        identity.authority, identity.key, identity.certificate
    )
    options = [
        *OPTIONS,
        ("grpc.ssl_target_name_override", name),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.secure_channel(address, credentials, options=options)


def spoken(own: wire.Context) -> tuple[tuple[str, str], ...]:
    """What a stream begins with at both ends, as metadata of the call."""
    return (
        ("spodgt-protocols", " ".join(map(str, own.protocols))),
        ("spodgt-version", own.version or "?"),
    )


def agreed(
    own: wire.Context,
    name: str,
    metadata: Iterable[tuple[str, str | bytes]] | None,
    traffic: Traffic,
) -> int:
    """The protocol of a stream, from what the other end `name` says that it speaks; notes its version."""
    said = {key: printable(str(value)[:_SAID]) for key, value in metadata or ()}
    traffic.version = said.get("spodgt-version", "")
    theirs = [int(word) for word in said.get("spodgt-protocols", "1").split() if word.isdecimal()]
    return wire.agree(own, theirs, name, traffic.version)


async def fetch(
    what: str, identity: Identity, address: str, name: str, limit: int = ANSWER
) -> bytes:
    """Ask the client `name` for its "Manifest", not yet verified, or its "Status" as JSON.

    `Refused` if the answer has more than `limit` bytes or comes too slowly.
    """
    file = bytearray()
    async with secure_channel(identity, address, name) as channel:
        await asyncio.wait_for(channel.channel_ready(), CONNECT_SECONDS)
        call = channel.stream_stream(f"/{SERVICE}/{what}")()
        begun = asyncio.get_running_loop().time()
        try:
            await call.done_writing()
            while True:
                deadline = begun + ANSWER_SECONDS + len(file) / SLOWEST
                left = deadline - asyncio.get_running_loop().time()
                chunk = await asyncio.wait_for(call.read(), max(left, 0.0))
                if chunk is grpc.aio.EOF:
                    return bytes(file)
                file += chunk
                if len(file) > limit:
                    raise Refused(f"the answer of {name} has more than {limit} bytes")
        except asyncio.TimeoutError:
            raise Refused(f"{name} answers too slowly: {len(file)} bytes so far") from None
        finally:
            call.cancel()

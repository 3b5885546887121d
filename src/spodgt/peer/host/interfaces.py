"""Interfaces of what a peer uses of its host: clocks, random numbers, a disk and a wire.

All of it is passed in. `grpc_wire.system_host` makes the host of a real process; tests pass a simulated one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import Protocol

from spodgt.peer.host.clock import Clock
from spodgt.peer.host.files import Files
from spodgt.peer.membership.certificates import Identity

Headers = Mapping[str, str]  # sent by both ends at the beginning of a call


class WireError(Exception):
    """A call failed, or the other end has ended it."""


class Disconnected(WireError):
    """The connection was lost or cannot be made."""


class Ended(WireError):
    """The other end has ended the call, without a reason."""


class Rejected(WireError):
    """The other end has ended the call, and gives a reason."""


class Stream(Protocol):
    """One end of a call: frames in both directions, in order, without loss."""

    async def read(self) -> bytes | None:
        """The next frame; None: the other end has closed its side."""
        ...

    async def write(self, data: bytes, /) -> None: ...


class Call(Stream, Protocol):
    """The end that made the call."""

    async def headers(self) -> Headers:
        """The headers that the other end has sent."""
        ...

    async def close_writing(self) -> None: ...

    def cancel(self) -> None: ...


class IncomingCall(Stream, Protocol):
    """The end that serves a call, with an authenticated caller."""

    @property
    def caller(self) -> str:
        """The name in the caller's certificate."""
        ...

    @property
    def certificate(self) -> bytes:
        """The caller's, as PEM."""
        ...

    @property
    def headers(self) -> Headers:
        """The headers that the caller has sent."""
        ...

    async def begin(self, headers: Headers) -> None:
        """Accept the call: send the own headers."""
        ...


Handler = Callable[[IncomingCall], Awaitable[None]]  # may raise `Refused`: the caller gets its text


class Server(Protocol):
    """A peer that listens."""

    @property
    def port(self) -> int: ...

    async def stop(self) -> None: ...


class Wire(Protocol):
    """Mutually authenticated calls between peers."""

    def open(
        self, identity: Identity, address: str, name: str, procedure: str, headers: Headers
    ) -> AbstractAsyncContextManager[Call]:
        """Call a procedure of the client `name`; a server with another certificate is not accepted.

        Raises:
            asyncio.TimeoutError: no connection in time.
        """
        ...

    async def serve(
        self,
        address: str,
        identity: Callable[[], Identity],
        handlers: Mapping[str, Handler],
        max_connections: int,
    ) -> Server:
        """Listen at `address` (host:port, or "" for nowhere).

        Raises:
            RuntimeError: the address cannot be used.
        """
        ...

    async def probe(self, identity: Identity, address: str, name: str) -> str:
        """One sentence on why a connection to `name` fails or breaks."""
        ...


@dataclass(frozen=True)
class Host:
    """The clocks, random numbers, disk and wire of one peer."""

    clock: Clock
    random: Random
    files: Files
    wire: Wire

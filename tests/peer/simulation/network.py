"""A simulated network: connections that are slow, lossy, cut in one or both directions, or reset."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, Protocol

from cryptography import x509

from spodgt.peer.host.clock import Clock
from spodgt.peer.host.interfaces import Call, Disconnected, Handler, Headers, Rejected, WireError
from spodgt.peer.membership.certificates import Identity
from spodgt.peer.protocol.running_sums import Refused
from tests.peer.simulation.checks import Content
from tests.peer.simulation.virtual import VirtualLoop

CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 10.0  # a connection over a cut link is closed after so long
WINDOW = 8  # frames of a stream on their way, then `write` waits


@dataclass
class Path:
    """The way from one host to another."""

    delay: tuple[float, float] = (0.005, 0.05)  # seconds, uniform
    loss: float = 0.0  # of a packet, which is sent again after `RETRY` seconds
    seconds_per_frame: float = 0.0  # of a slow link
    is_cut: bool = False


RETRY = 0.3
HEALTHY = Path()


class Process(Protocol):
    """What the network needs of a process."""

    name: str

    @property
    def clock(self) -> Clock: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    def sends(self, data: bytes, sent: set[Content]) -> bytes:
        """Called before a frame leaves; the process may crash here."""
        ...


@dataclass(eq=False)
class Pipe:
    """One direction of a connection: frames arrive in order, late, and all of them, or it breaks."""

    network: Network
    ends: tuple[str, str]
    frames: deque[bytes] = field(default_factory=deque)  # that have arrived
    sent: deque[bytes] = field(default_factory=deque)  # that have not arrived yet
    free_at: float = 0.0  # when the last frame on its way arrives
    broken: WireError | None = None
    is_closed: bool = False
    contents: set[Content] = field(default_factory=set)  # of the messages that were written
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, data: bytes) -> None:
        while len(self.sent) >= WINDOW and self.broken is None:
            self.room.clear()
            await self.room.wait()
        if self.broken is not None:
            raise self.broken
        loop = self.network.loop
        path = self.network.path(*self.ends)
        random = self.network.random
        seconds = random.uniform(*path.delay) + path.seconds_per_frame
        while path.loss and random.random() < path.loss:
            seconds += RETRY
        self.free_at = max(self.free_at, loop.now) + (path.seconds_per_frame or 1e-6)
        self.free_at = max(self.free_at, loop.now + seconds)
        self.sent.append(data)
        loop.call_at(self.free_at, self._arrive)

    def _arrive(self) -> None:
        """Deliver the oldest frame on its way: each frame has one call, frames do not overtake others."""
        if self.broken is not None:
            return
        if self.network.path(*self.ends).is_cut:  # it is sent again until the path is back
            self.network.loop.call_later(RETRY, self._arrive)
            return
        self.frames.append(self.sent.popleft())
        self.room.set()
        self.wake.set()

    async def read(self) -> bytes | None:
        while not self.frames:
            if self.broken is not None:
                raise self.broken
            if self.is_closed and not self.sent:
                return None
            self.wake.clear()
            await self.wake.wait()
        return self.frames.popleft()

    def close(self) -> None:
        self.is_closed = True
        self.network.loop.call_at(max(self.free_at, self.network.loop.now) + 1e-3, self.wake.set)

    def fail(self, error: WireError) -> None:
        self.broken = self.broken or error
        self.wake.set()
        self.room.set()

    def fail_after_delivery(self, error: WireError) -> None:
        """The writer is dead: what it has sent still arrives, then the reader sees an error."""
        arrival = max(self.free_at, self.network.loop.now) + 1e-3
        self.network.loop.call_at(arrival, self.fail, error)


class Connection:
    """A call between two processes: the caller's end (`Call`), with the server's beside it."""

    def __init__(
        self, network: Network, caller: Process, identity: Identity, listener: Listener
    ) -> None:
        self.network = network
        self.caller = caller
        self.identity = identity
        self.listener = listener
        self.up = Pipe(network, (caller.name, listener.process.name))
        self.down = Pipe(network, (listener.process.name, caller.name))
        self.accepted: asyncio.Future[Headers] = network.loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self.is_lost = False  # one of its processes was killed

    def begin(self, procedure: str, headers: Headers) -> None:
        self.network.connections[self] = None
        self.task = self.listener.process.spawn(self._serve(procedure, headers))

    async def _serve(self, procedure: str, headers: Headers) -> None:
        handler = self.listener.handlers[procedure]
        try:
            await handler(Incoming(self, headers))
            self.down.close()
        except Refused as error:
            await asyncio.sleep(0)
            self.network.loop.call_at(
                max(self.down.free_at, self.network.loop.now) + 1e-3,
                self.down.fail,
                Rejected(str(error)),
            )
        except asyncio.CancelledError:
            if not self.is_lost:
                self.down.fail(Disconnected("cancelled by the server"))
        finally:
            self.up.fail(Disconnected("the server has ended the call"))
            self.network.connections.pop(self, None)
            if not self.accepted.done():
                self.accepted.set_result({})

    def reset(self) -> None:
        """The connection is gone: both ends see an error."""
        if self.is_lost:
            return
        self.network.connections.pop(self, None)
        for pipe in (self.up, self.down):
            pipe.fail(Disconnected("connection reset"))
        if not self.accepted.done():
            self.accepted.set_exception(Disconnected("connection reset"))
            self.accepted.exception()  # it may be that nobody waits for it
        if self.task is not None:
            self.task.cancel()

    def lose(self, process: Process) -> None:
        """One of its processes was killed."""
        self.is_lost = True
        self.network.connections.pop(self, None)
        reset = Disconnected("connection reset")
        if process is self.caller:
            self.up.fail_after_delivery(reset)
            self.down.fail(reset)
        else:
            self.down.fail_after_delivery(reset)
            self.up.fail(reset)
            if self.task is not None:
                self.task.cancel()
        if not self.accepted.done():
            self.accepted.set_exception(reset)
            self.accepted.exception()  # it may be that nobody waits for it

    # --- the caller's end --------------------------------------------------------------------------
    async def headers(self) -> Headers:
        return await asyncio.wait_for(asyncio.shield(self.accepted), CONNECT_SECONDS)

    async def read(self) -> bytes | None:
        return await self.down.read()

    async def write(self, data: bytes) -> None:
        await self.up.write(self.caller.sends(data, self.up.contents))

    async def close_writing(self) -> None:
        self.up.close()

    def cancel(self) -> None:
        self.reset()


class Incoming:
    """The server's end of a connection."""

    def __init__(self, connection: Connection, headers: Headers) -> None:
        self.connection = connection
        self.headers = headers
        self.caller = certificate_name(connection.identity.certificate)
        self.certificate = connection.identity.certificate

    async def begin(self, headers: Headers) -> None:
        if not self.connection.accepted.done():
            self.connection.accepted.set_result(headers)

    async def read(self) -> bytes | None:
        return await self.connection.up.read()

    async def write(self, data: bytes) -> None:
        pipe = self.connection.down
        await pipe.write(self.connection.listener.process.sends(data, pipe.contents))


@dataclass(eq=False)
class Listener:
    """A process that listens at an address."""

    network: Network
    process: Process
    address: str
    identity: Callable[[], Identity]
    handlers: Mapping[str, Handler]
    port: int = 7000

    async def stop(self) -> None:
        if self.network.listeners.get(self.address) is self:
            del self.network.listeners[self.address]
        for connection in list(self.network.connections):
            if connection.listener is self:
                connection.reset()


class Network:
    """All hosts, by name, and the paths between them."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.paths: dict[tuple[str, str], Path] = {}
        self.listeners: dict[str, Listener] = {}  # by address
        self.connections: dict[Connection, None] = {}  # in the order of their beginning

    def path(self, sender: str, receiver: str) -> Path:
        return self.paths.get((sender, receiver), HEALTHY)

    def is_cut(self, one: str, other: str) -> bool:
        return self.path(one, other).is_cut or self.path(other, one).is_cut

    def set_path(self, sender: str, receiver: str, path: Path) -> None:
        self.paths[sender, receiver] = path
        if path.is_cut:
            self.loop.call_later(KEEPALIVE_SECONDS, self._close_cut, sender, receiver)

    def _close_cut(self, sender: str, receiver: str) -> None:
        if not self.path(sender, receiver).is_cut:
            return
        for connection in list(self.connections):
            if set(connection.up.ends) == {sender, receiver}:
                connection.reset()

    def heal(self) -> None:
        self.paths.clear()

    def process_ended(self, process: Process) -> None:
        """Its connections break after the frames that have left it, and its addresses are free."""
        for address, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[address]
        for connection in list(self.connections):
            if process in (connection.caller, connection.listener.process):
                connection.lose(process)


class ProcessWire:
    """The network as one process uses it: `spodgt.peer.host.interfaces.Wire`."""

    def __init__(self, network: Network, process: Process) -> None:
        self.network = network
        self.process = process

    @contextlib.asynccontextmanager
    async def open(
        self, identity: Identity, address: str, name: str, procedure: str, headers: Headers
    ) -> AsyncIterator[Call]:
        listener = await asyncio.wait_for(self._reach(identity, address, name), CONNECT_SECONDS)
        connection = Connection(self.network, self.process, identity, listener)
        connection.begin(procedure, headers)
        try:
            yield connection
        finally:
            connection.cancel()

    async def _reach(self, identity: Identity, address: str, name: str) -> Listener:
        """Connect as often as it takes: a path may be cut, a process may not have started."""
        pause = 0.1
        while True:
            await asyncio.sleep(self.network.random.uniform(*HEALTHY.delay))
            listener = self.network.listeners.get(address)
            if listener is not None and not self._refusal(identity, listener, name):
                return listener
            await asyncio.sleep(pause)
            pause = min(2 * pause, 3.0)

    def _refusal(self, identity: Identity, listener: Listener, name: str) -> str:
        """Why a handshake fails; "" if it does not."""
        if self.network.is_cut(self.process.name, listener.process.name):
            return "does not answer"
        shown = listener.identity()
        if certificate_name(shown.certificate) != name or shown.authority != identity.authority:
            return "its certificate is not accepted"
        if not is_valid(shown.certificate, self.process.clock.wall()):
            return "its certificate has expired or is not valid yet"
        if not is_valid(identity.certificate, listener.process.clock.wall()):
            return "it does not accept our certificate"
        return ""

    async def serve(
        self,
        address: str,
        identity: Callable[[], Identity],
        handlers: Mapping[str, Handler],
        max_connections: int,
    ) -> Listener:
        if address in self.network.listeners:
            raise RuntimeError(f"{address} is in use")
        listener = Listener(self.network, self.process, address, identity, handlers)
        if address:
            self.network.listeners[address] = listener
        return listener

    async def probe(self, identity: Identity, address: str, name: str) -> str:
        await asyncio.sleep(self.network.random.uniform(*HEALTHY.delay))
        listener = self.network.listeners.get(address)
        if listener is None:
            return f"nobody listens at {address}"
        return self._refusal(identity, listener, name) or f"{name} answers, but the stream broke"


@lru_cache(maxsize=1000)
def _certificate(pem: bytes) -> tuple[str, float, float]:
    """The name in a certificate, and its first and last second."""
    loaded = x509.load_pem_x509_certificate(pem)
    extension = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    (name,) = extension.value.get_values_for_type(x509.DNSName)
    begin = loaded.not_valid_before_utc.timestamp()
    end = loaded.not_valid_after_utc.timestamp()
    return name, begin, end


def certificate_name(pem: bytes) -> str:
    return _certificate(pem)[0]


def is_valid(pem: bytes, now: float) -> bool:
    _, begin, end = _certificate(pem)
    return begin <= now <= end

"""Common parts of both ends of a stream: counters, headers, and requests with one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from spodgt.peer.host.events import Notify
from spodgt.peer.host.interfaces import Ended, Headers, Host, Rejected, Wire, WireError
from spodgt.peer.host.text import printable
from spodgt.peer.membership.certificates import Identity
from spodgt.peer.protocol.inbox import Receive
from spodgt.peer.protocol.running_sums import Refused
from spodgt.peer.transport import wire_format
from spodgt.peer.transport.grpc_wire import GRPC, system_host
from spodgt.tensors import NewRow, new_row

CHUNK_SECONDS = 60.0  # a chunk of 1 MiB that takes longer is a dead link
ANSWER_SECONDS = 5.0  # for an answer, beyond the time its bytes take at the slowest rate
SLOWEST = 16_000.0  # bytes per second that a link must carry at least
TAKEOVER_SECONDS = 3.0  # a stream silent for so long is replaced by a new one of the same client
TEXT = 300  # characters of a reason that travel back to the sender
ANSWER = 2**24  # bytes of a manifest; of a run with a larger one, `GROWTH` times as much
GROWTH = 4
_HEADER = 40  # characters of a program's version, or of its protocols
PROTOCOLS = "spodgt-protocols"
VERSION = "spodgt-version"


@dataclass
class Traffic:
    """State and counters of one link."""

    state: str = "waiting"  # waiting, up, down
    why: str = ""
    messages: int = 0
    bytes: int = 0
    last_received: float = 0.0  # monotonic time
    version: str = ""  # of the neighbour's program
    protocol: int = 0  # of the stream

    def last_sign(self, now: float) -> float:
        """Monotonic time until which the neighbour is known to be up.

        Protocol 1 has no frames for a link without messages: there, an open stream is the only sign.
        """
        if self.state == "up" and self.protocol < wire_format.REPEATS:
            return now
        return self.last_received


@dataclass
class LocalClient:
    """The client, as the ends of all its streams share it; `identity` changes when it is renewed."""

    context: wire_format.Context
    identity: Identity
    receive: Receive  # takes the frames that arrive: `Node.receive`, set in `startup.make_links`
    notify: Notify
    host: Host = field(default_factory=system_host)
    # called with a neighbour's name after one end has refused a link: the manifests may differ
    on_refused_link: Callable[[str], None] = lambda name: None
    new_row: NewRow = new_row  # makes the vectors of messages that arrive

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self.host.clock.monotonic()

    @property
    def message_seconds(self) -> float:
        """Seconds that a message takes at the slowest rate."""
        return 8 * self.context.n / SLOWEST

    async def cause(self, error: BaseException | None, address: str, name: str) -> str:
        """One sentence on why the link to `name` is down."""
        if isinstance(error, Ended):
            return f"{name} ended the stream"
        if isinstance(error, Rejected):
            return f"{name} refuses: {error}"[:TEXT]
        cause = await self.host.wire.probe(self.identity, address, name)
        if error is None or isinstance(error, WireError):
            return cause
        if isinstance(error, asyncio.TimeoutError):
            return f"{cause}: no answer in time"[:TEXT]
        return f"{cause}: {type(error).__name__}: {error}"[:TEXT]


def current_task() -> asyncio.Task[None]:
    """The running task, by which a stream can be ended."""
    task = asyncio.current_task()
    assert task is not None
    return task


def own_headers(own: wire_format.Context) -> Headers:
    """The headers that a stream begins with at both ends."""
    return {PROTOCOLS: " ".join(map(str, own.protocols)), VERSION: own.version or "?"}


def agree_on_protocol(
    own: wire_format.Context, name: str, headers: Headers, traffic: Traffic
) -> int:
    """The protocol of a stream, from the headers of the other end `name`; it is noted with the version."""
    traffic.version = printable(headers.get(VERSION, "")[:_HEADER])
    words = headers.get(PROTOCOLS, "1")[:_HEADER].split()
    theirs = [int(word) for word in words if word.isdecimal()]
    traffic.protocol = wire_format.choose_protocol(own, theirs, name, traffic.version)
    return traffic.protocol


async def fetch(
    what: str,
    identity: Identity,
    address: str,
    name: str,
    limit: int = ANSWER,
    through: Wire = GRPC,
) -> bytes:
    """Request the "Manifest" of the client `name`, not yet verified, or its "Status" as JSON.

    Raises:
        Refused: the answer has more than `limit` bytes, or arrives too slowly.
    """
    file = bytearray()
    async with through.open(identity, address, name, what, {}) as call:
        begun = asyncio.get_running_loop().time()
        try:
            await call.close_writing()
            while True:
                deadline = begun + ANSWER_SECONDS + len(file) / SLOWEST
                left = deadline - asyncio.get_running_loop().time()
                chunk = await asyncio.wait_for(call.read(), max(left, 0.0))
                if chunk is None:
                    return bytes(file)
                file += chunk
                if len(file) > limit:
                    raise Refused(f"the answer of {name} has more than {limit} bytes")
        except TimeoutError:
            raise Refused(f"{name} answers too slowly: {len(file)} bytes so far") from None

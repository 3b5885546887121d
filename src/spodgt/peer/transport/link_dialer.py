"""The end of a link that opens its stream, and opens it anew with exponential backoff."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeVar

from spodgt.peer.host.interfaces import Call, Rejected
from spodgt.peer.host.text import printable
from spodgt.peer.membership.certificates import seconds_left
from spodgt.peer.protocol.running_sums import Refused
from spodgt.peer.transport import connection
from spodgt.peer.transport.connection import TEXT, LocalClient, Traffic

FIRST_PAUSE = 0.1  # seconds before a reconnection; doubled by each attempt that fails
LONGEST_PAUSE = 3.0
STABLE_SECONDS = 10.0  # after a stream that lasted longer the pause is the first one again
STREAM_SECONDS = 86_400.0  # then a stream is opened anew, so that certificates are checked again


class LinkDialer(ABC):
    """An end of a link that connects to the other end, and reconnects until it is closed.

    The constructor starts to connect: it needs a running event loop.

    Args:
        local: The client.
        name: The neighbour.
        address: host:port of the neighbour; "" if the neighbour connects.
        traffic: Counters of the link.
    """

    rpc = ""

    def __init__(self, local: LocalClient, name: str, address: str, traffic: Traffic) -> None:
        self.local = local
        self.name = name
        self.address = address
        self.traffic = traffic
        self.closed = False
        self._start()

    @property
    def link(self) -> str:
        """Sender and receiver, for the log."""
        return f"{self.local.context.name} → {self.name}"

    @abstractmethod
    async def use(self, call: Call, protocol: int) -> None:
        """Exchange frames on a stream until it breaks."""

    def _start(self) -> None:
        if not self.closed:
            self.task = asyncio.create_task(self._run())
            self.task.add_done_callback(self._restart)

    def _restart(self, task: asyncio.Task[None]) -> None:
        """Start again after a task that has ended although the link is not closed."""
        if self.closed:
            return
        why = "cancelled" if task.cancelled() else repr(task.exception())
        self.local.notify("failed", why, self.link)
        self.task.get_loop().call_later(LONGEST_PAUSE, self._start)

    def close(self) -> None:
        self.closed = True
        self.task.cancel()

    async def _run(self) -> None:
        """Connect again and again."""
        pause = FIRST_PAUSE
        while True:
            begun = self.local.now
            self.down(await self._attempt())
            pause = min(2 * pause, LONGEST_PAUSE)
            if self.local.now - begun > STABLE_SECONDS:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause * self.local.host.random.uniform(0.5, 1))

    def down(self, why: str) -> None:
        """Note that the link is down; logged if it was not."""
        self.traffic.why = printable(why[:TEXT])  # it may hold what the other end has written
        if self.traffic.state != "down":
            self.traffic.state = "down"
            self.local.notify("link down", why, self.link)

    async def _attempt(self) -> str:
        """Connect and exchange frames until the stream breaks; returns why."""
        # a task of its own: gRPC cancels what waits on a call that ends, which must not end the link
        attempt = asyncio.create_task(self._connect())
        try:
            await asyncio.wait({attempt})
        finally:
            attempt.cancel()
        error = None if attempt.cancelled() else attempt.exception()
        if isinstance(error, Refused):
            self.local.notify("refused", str(error)[:TEXT], self.name)
            return str(error)[:TEXT]
        if isinstance(error, Rejected):
            self.local.on_refused_link(self.name)
        try:
            return await self.local.cause(error, self.address, self.name)
        except Exception as failure:
            return f"{type(failure).__name__}: {failure}"[:TEXT]

    async def _connect(self) -> None:
        """Open a stream, agree on a protocol, and use the stream until it breaks.

        Raises:
            Refused: The ends have no protocol in common, or the other end broke the protocol.
            WireError: The stream ended at the other end.
        """
        context = self.local.context
        identity = self.local.identity
        host = self.local.host
        headers = connection.own_headers(context)
        async with host.wire.open(identity, self.address, self.name, self.rpc, headers) as call:
            # this end does not get the other's certificate: TLS checks it at each new connection
            certificate_seconds = seconds_left(identity.certificate, host.clock.wall())
            seconds = max(0.0, min(certificate_seconds, STREAM_SECONDS))
            expiry = asyncio.get_running_loop().call_later(seconds, call.cancel)
            try:
                answer = await call.headers()
                if connection.PROTOCOLS in answer:
                    protocol = connection.agree_on_protocol(
                        context, self.name, answer, self.traffic
                    )
                    await self.use(call, protocol)
                await call.read()  # raises the reason if the other end has refused the stream
            finally:
                expiry.cancel()


DialerT = TypeVar("DialerT", bound=LinkDialer)


def close_changed(dialers: dict[str, DialerT], addresses: Mapping[str, str]) -> None:
    """Close and remove the ends whose link was removed or has another address."""
    for name, dialer in list(dialers.items()):
        if addresses.get(name) != dialer.address:
            dialer.close()
            del dialers[name]

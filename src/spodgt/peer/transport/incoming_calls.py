"""Calls that other clients make: streams of links, and requests for the manifest and the status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping

from spodgt.peer.host.interfaces import Handler, IncomingCall, Stream
from spodgt.peer.membership.certificates import seconds_left
from spodgt.peer.options import Ends
from spodgt.peer.protocol.running_sums import Refused
from spodgt.peer.transport.access_control import AccessControl
from spodgt.peer.transport.connection import (
    CHUNK_SECONDS,
    TEXT,
    LocalClient,
    Traffic,
    agree_on_protocol,
    current_task,
    own_headers,
)
from spodgt.peer.transport.in_links import InLinks
from spodgt.peer.transport.out_links import OutLinkDialer

FILE_CHUNK = 2**16  # bytes: even at the slowest rate each arrives within the seconds for an answer

Serve = Callable[[str, Stream, int], Awaitable[None]]  # neighbour, stream, protocol
Answer = Callable[[str], bytes | None]  # to a client, by its name; None: it has no access


class IncomingCalls:
    """Serves the calls of authenticated clients.

    Args:
        local: The client.
        out: Its out-links, by receiver; kept up to date by the caller.
        in_links: Its in-links.
        access: Limits the streams of each caller.
    """

    def __init__(
        self,
        local: LocalClient,
        out: Mapping[str, OutLinkDialer],
        in_links: InLinks,
        access: AccessControl,
    ) -> None:
        self.local = local
        self.out = out
        self.in_links = in_links
        self.access = access
        self.manifest: Answer = lambda name: None
        self.status: Answer = lambda name: None
        # the streams that others have opened, also before their first message, with their links
        self.tasks: dict[asyncio.Task[None], Ends] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        """The procedures that other clients can call."""
        return {
            "Talk": self._talk,
            "Fetch": self._fetch,
            "Manifest": self._manifest,
            "Status": self._status,
        }

    def cancel_except(self, links: set[Ends]) -> None:
        """End the streams of all links but these."""
        for task, link in list(self.tasks.items()):
            if link not in links:
                task.cancel()

    async def stop(self) -> None:
        """End all streams."""
        self.cancel_except(set())
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=1)

    async def _talk(self, call: IncomingCall) -> None:
        """Serve a sender that has connected."""
        link = (call.caller, self.local.context.name)
        traffic = self.in_links.traffic.get(call.caller)
        if traffic is None or call.caller in self.in_links.dialers:
            raise self._unknown_link(call.caller, link)
        await self._serve(call, traffic, link, self.in_links.receive)

    async def _fetch(self, call: IncomingCall) -> None:
        """Serve a receiver that has connected."""
        link = (self.local.context.name, call.caller)
        out_link = self.out.get(call.caller)
        if out_link is None or out_link.address:
            raise self._unknown_link(call.caller, link)
        await self._serve(call, out_link.traffic, link, out_link.serve)

    def _unknown_link(self, caller: str, link: Ends) -> Refused:
        """Log a link that is not in the manifest; returns the refusal to raise."""
        self.local.on_refused_link(caller)
        why = f"link {link[0]} → {link[1]} is not in the manifest"
        self.local.notify("refused", why)
        return Refused(why)

    async def _serve(self, call: IncomingCall, traffic: Traffic, link: Ends, serve: Serve) -> None:
        """Agree on a protocol (handshake) and use the stream until it ends.

        Args:
            call: The stream.
            traffic: Counters of the link.
            link: Sender and receiver.
            serve: Uses the stream.

        Raises:
            Refused: The caller has too many streams, is banned, has no protocol in common, or sent
                an invalid frame.
        """
        name = call.caller
        task = current_task()
        self.tasks[task] = link
        try:
            with self.access.stream(name), self._until_expiry(name, call.certificate):
                protocol = agree_on_protocol(self.local.context, name, call.headers, traffic)
                await call.begin(own_headers(self.local.context))
                await serve(name, call, protocol)
        except Refused as error:
            why = str(error)[:TEXT]
            self.local.notify("refused", why, name)
            raise Refused(why) from None
        except asyncio.CancelledError:
            return  # gRPC ends the call of a handler that returns, not of one that is cancelled
        finally:
            del self.tasks[task]

    @contextlib.contextmanager
    def _until_expiry(self, name: str, certificate: bytes) -> Iterator[None]:
        """End a stream when the certificate of either end expires; it is opened again with a new one."""
        task = current_task()

        def end() -> None:
            self.local.notify("certificate", "a certificate of this stream has expired", name)
            task.cancel()

        now = self.local.host.clock.wall()
        own = self.local.identity.certificate
        left = min(seconds_left(certificate, now), seconds_left(own, now))
        timer = asyncio.get_running_loop().call_later(max(left, 0), end)
        try:
            yield
        finally:
            timer.cancel()

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
        task = current_task()
        # a client that does not read the answer is disconnected
        late = asyncio.get_running_loop().call_later(CHUNK_SECONDS, task.cancel)
        try:
            with self.access.stream(f"{name} (files)"):  # apart from its links, and from their ban
                for start in range(0, len(file), FILE_CHUNK):
                    await call.write(file[start : start + FILE_CHUNK])
        finally:
            late.cancel()

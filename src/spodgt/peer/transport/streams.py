"""The two ends of a stream: the sender's, which sends the newest message, and the receiver's, which answers.

Either end may be the one that connects, and connects again for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace

import torch

from spodgt.peer.host.fault_injection import crash_point
from spodgt.peer.host.interfaces import Call, Stream, WireError
from spodgt.peer.host.text import printable
from spodgt.peer.membership.certificates import seconds_left
from spodgt.peer.protocol.running_sums import Ack, Incarnation, Message, Refused
from spodgt.peer.transport import connection, wire_format
from spodgt.peer.transport.connection import CHUNK_SECONDS, SLOWEST, TEXT, LocalClient, Traffic

RESEND_SECONDS = (
    1.0  # between two repeats of what is unacknowledged: of its header, from protocol 2 on
)
SILENT_SECONDS = (
    10.0  # without an answer to a message, beyond the time its bytes take at the slowest rate
)
TAKEOVER_SECONDS = (
    3.0  # a stream silent for so long gives way to a later incarnation of the same client
)
WINDOW = 2  # unacknowledged messages of a stream, then no other is sent before an acknowledgement
STREAM_SECONDS = (
    86_400.0  # then a stream is opened anew, so that both ends show their certificates again
)
_BACKOFF = (0.1, 3.0)
_EMPTY = torch.empty(0)


class InStream:
    """The receiver's end of a stream: answers with the newest acknowledgement."""

    def __init__(
        self, local: LocalClient, sender: Incarnation, stream: Stream, protocol: int
    ) -> None:
        self.local = local
        self.own = replace(local.context, protocols=(protocol,))
        self.incarnation = sender
        self.stream = stream
        self.ack: Ack | None = None
        self.last_received = local.now
        self.last_answered = 0.0
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
                self.last_answered = self.local.now
                # nothing to acknowledge: an empty frame, the heartbeat
                await self.stream.write(b"" if ack is None else wire_format.pack_ack(self.own, ack))
                if ack is not None:
                    crash_point("ack sent")
        except (
            Exception
        ):  # the stream has ended, whatever the wire calls it; the sender connects again
            self.handler.cancel()


class LinkDialer(ABC):
    """An end of a link that connects to the other end, and connects again for ever."""

    rpc = ""

    def __init__(self, local: LocalClient, name: str, address: str, traffic: Traffic) -> None:
        self.local, self.name, self.address, self.traffic = local, name, address, traffic
        self.closed = False
        self._begin()

    @property
    def link(self) -> str:
        return f"{self.local.context.name} → {self.name}"

    @abstractmethod
    async def talk(self, call: Call, protocol: int) -> None:
        """Use a stream until it breaks."""

    def _begin(self) -> None:
        if not self.closed:
            self.task = asyncio.create_task(self._run())
            self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A link ends when it is closed, and for no other reason."""
        if self.closed:
            return
        why = "cancelled" if task.cancelled() else repr(task.exception())
        self.local.notify("failed", why, self.link)
        self.task.get_loop().call_later(_BACKOFF[1], self._begin)

    def close(self) -> None:
        self.closed = True
        self.task.cancel()

    async def _run(self) -> None:
        pause = _BACKOFF[0]
        while True:
            begun = self.local.now
            self.down(await self._attempt())
            pause = min(2 * pause, _BACKOFF[1])
            if self.local.now - begun > 10:
                pause = _BACKOFF[0]
            await asyncio.sleep(pause * self.local.host.random.uniform(0.5, 1))

    def down(self, why: str) -> None:
        self.traffic.why = printable(why[:TEXT])  # it may hold what the other end has written
        if self.traffic.state != "down":
            self.traffic.state = "down"
            self.local.notify("link down", why, self.link)

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
            self.local.notify("refused", str(error)[:TEXT], self.name)
            return str(error)[:TEXT]
        try:
            return await self.local.cause(error, self.address, self.name)
        except Exception as failure:
            return f"{type(failure).__name__}: {failure}"[:TEXT]

    async def _connect(self) -> None:
        context = self.local.context
        identity = self.local.identity
        host = self.local.host
        headers = connection.own_headers(context)
        async with host.wire.open(identity, self.address, self.name, self.rpc, headers) as call:
            # a dialling end does not see the other's certificate: TLS checks it at a new connection
            valid = seconds_left(identity.certificate, host.clock.wall())
            left = max(0.0, min(valid, STREAM_SECONDS))
            last = asyncio.get_running_loop().call_later(left, call.cancel)
            try:
                answer = await call.headers()
                if connection.PROTOCOLS in answer:  # else it refuses, and the reason follows
                    protocol = connection.agree_on_protocol(
                        context, self.name, answer, self.traffic
                    )
                    await self.talk(call, protocol)
                await call.read()
            finally:
                last.cancel()


class OutStream(LinkDialer):
    """The sender's end of a link: sends the newest message; it connects, or waits for the receiver."""

    rpc = "Talk"

    def __init__(self, local: LocalClient, name: str, address: str) -> None:
        self.latest: Message | None = None
        self.acknowledged: Message | None = None  # the last one that was, without its vectors
        self.wake = asyncio.Event()
        self.is_wake_scheduled = False
        self.in_flight = 0
        self.writing_since = 0.0  # since when a chunk waits to leave
        self.awaiting_since = 0.0  # since when a message waits for an answer
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

    async def serve(self, receiver: str, stream: Stream, protocol: int) -> None:
        """Talk on a stream that the receiver has opened; a later one replaces one that has fallen silent."""
        if self.serving is not None:
            if self.local.now - self.traffic.last_received < TAKEOVER_SECONDS:
                raise Refused(f"{receiver} is already connected; another process uses its name")
            self.serving.cancel()
        own = self.serving = asyncio.current_task()
        try:
            await self.talk(stream, protocol)
        except asyncio.CancelledError:
            return  # the receiver went away, has come again, or we end
        except Exception as error:
            self.down(f"{type(error).__name__}: {error}"[:TEXT])
        finally:
            if self.serving is own:
                self.serving = None
                self.down(f"{self.name} has gone; it dials")

    async def talk(self, stream: Stream, protocol: int) -> None:
        """Send and listen until one of them ends."""
        parts = [
            asyncio.create_task(part)
            for part in (self._listen(stream), self._send(stream, protocol), self._watch())
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            ended = await asyncio.gather(*parts, return_exceptions=True)
        for error in ended:
            if isinstance(error, WireError):  # tells more than what followed from it
                raise error
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _watch(self) -> None:
        """The deadlines of a stream; one watcher is cheaper than a timer for each chunk."""
        self.writing_since = self.awaiting_since = 0.0
        limit = SILENT_SECONDS + 8 * self.local.context.n / SLOWEST
        while True:
            await asyncio.sleep(1)
            now = self.local.now
            stuck = self.writing_since and now - self.writing_since > CHUNK_SECONDS
            if stuck or (self.awaiting_since and now - self.awaiting_since > limit):
                raise TimeoutError

    async def _send(self, call: Stream, protocol: int) -> None:
        """Send the newest message, each once on a stream, and repeat the header of one not acknowledged.

        A stream loses nothing, so the receiver still has the numbers. Its acknowledgement comes after its
        round and commit, which may take long. Protocol 1 has no such frames: the message itself is repeated.
        """
        own = replace(self.local.context, protocols=(protocol,))
        repeats = protocol >= wire_format.REPEATS
        frame = 0
        sent: Message | None = None  # without its vectors
        sent_at = -math.inf
        self.in_flight = 0
        if repeats and self.latest is None and self.acknowledged is not None:
            # nothing to send: the receiver learns who has opened the stream, and answers
            await self._write(
                call, wire_format.pack_repeat(own, self.name, self.acknowledged, frame)
            )
            self.awaiting_since = self.local.now
        self.wake.set()  # a new stream begins with what is newest
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.wake.wait(), RESEND_SECONDS)
            self.wake.clear()
            self.is_wake_scheduled = False
            message = self.latest
            if message is None:
                continue
            frame += 1
            is_due = self.local.now - sent_at >= RESEND_SECONDS
            is_new = sent is None or message.content != sent.content
            if (is_new and self.in_flight < WINDOW) or (is_due and not repeats):
                sent = _without_vectors(message)
                await self._write_message(call, wire_format.pack(own, self.name, message, frame))
                self.in_flight += 1
            elif is_due and sent is not None:
                # under a full window the newest message waits, and the last one sent is repeated
                repeated = sent if is_new else message
                await self._write(call, wire_format.pack_repeat(own, self.name, repeated, frame))
            else:
                continue
            sent_at = self.local.now
            self.awaiting_since = self.awaiting_since or sent_at

    async def _write_message(self, call: Stream, chunks: Iterable[bytes]) -> None:
        for number, chunk in enumerate(chunks):
            if number:
                crash_point("half sent")
            await self._write(call, chunk)
        crash_point("message sent")
        self.traffic.messages += 1

    async def _write(self, call: Stream, chunk: bytes) -> None:
        self.writing_since = self.local.now
        await call.write(chunk)
        self.writing_since = 0.0
        self.traffic.bytes += len(chunk)

    async def _listen(self, call: Stream) -> None:
        while True:
            data = await call.read()
            if data is None:
                return
            self.awaiting_since = 0.0
            if self.traffic.state != "up":
                self.traffic.state, self.traffic.why = "up", ""
                self.local.notify("link up", self.link)
            self.traffic.last_received = self.local.now
            if not data:
                continue
            try:
                ack = wire_format.unpack_ack(self.local.context, data)
            except Refused as error:
                self.local.notify("refused", str(error), self.name)
                continue
            self.in_flight = 0
            self.wake.set()  # what became newest under a full window can leave
            latest = self.latest
            same = latest and (ack.epoch, ack.seen) == (latest.epoch, latest.sender)
            if latest and same and ack.number >= latest.number:
                self.acknowledged = _without_vectors(latest)
                self.latest = None  # no need to resend
            self.local.receive(self.name, ack)


def _without_vectors(message: Message) -> Message:
    """For its header: a model may be large."""
    return message._replace(x=_EMPTY, total=_EMPTY)

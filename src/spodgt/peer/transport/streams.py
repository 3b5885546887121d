"""The two ends of a stream: the sender's sends the newest message, the receiver's acknowledges.

Either end may be the one that connects; it reconnects with exponential backoff.
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

RESEND_SECONDS = 1.0  # between two retransmissions: of the header alone from protocol 2 on
RESPONSE_SECONDS = 10.0  # for the answer to a message, beyond the time of its bytes at SLOWEST
TAKEOVER_SECONDS = 3.0  # a stream silent for so long is replaced by a new one of the same client
WINDOW = 2  # unacknowledged messages of a stream, then no other is sent before an acknowledgement
STREAM_SECONDS = 86_400.0  # then a stream is opened anew, so that certificates are checked again
_BACKOFF = (0.1, 3.0)  # seconds, the first and the longest pause
_EMPTY = torch.empty(0)


class InStream:
    """The receiver's end of a stream: sends the newest acknowledgement."""

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
                ack = self.ack
                self.ack = None
                self.last_answered = self.local.now
                # nothing to acknowledge: an empty frame, the heartbeat
                await self.stream.write(b"" if ack is None else wire_format.pack_ack(self.own, ack))
                if ack is not None:
                    crash_point("ack sent")
        except Exception:  # the stream has ended, with any error; the sender reconnects
            self.handler.cancel()


class LinkDialer(ABC):
    """An end of a link that connects to the other end, and reconnects until it is closed."""

    rpc = ""

    def __init__(self, local: LocalClient, name: str, address: str, traffic: Traffic) -> None:
        self.local = local
        self.name = name
        self.address = address
        self.traffic = traffic
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
        """Restart a link that has ended without being closed."""
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
        """Connect and exchange frames until the stream breaks; returns why."""
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
            # a dialling end does not get the other's certificate: TLS checks it at each new connection
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
        self.traffic.why = f"waiting for {self.name} to connect"
        await asyncio.Event().wait()

    async def serve(self, receiver: str, stream: Stream, protocol: int) -> None:
        """Use a stream that the receiver has opened; it replaces an earlier one that is silent."""
        if self.serving is not None:
            if self.local.now - self.traffic.last_received < TAKEOVER_SECONDS:
                raise Refused(f"{receiver} is already connected; another process uses its name")
            self.serving.cancel()
        own = self.serving = asyncio.current_task()
        try:
            await self.talk(stream, protocol)
        except asyncio.CancelledError:
            return  # the receiver disconnected or reconnected, or this client ends
        except Exception as error:
            self.down(f"{type(error).__name__}: {error}"[:TEXT])
        finally:
            if self.serving is own:
                self.serving = None
                self.down(f"{self.name} has disconnected; waiting for it to connect")

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
            if isinstance(error, WireError):  # the cause of the other errors
                raise error
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _watch(self) -> None:
        """The deadlines of a stream; one watcher is cheaper than a timer for each chunk."""
        self.writing_since = self.awaiting_since = 0.0
        limit = RESPONSE_SECONDS + 8 * self.local.context.n / SLOWEST
        while True:
            await asyncio.sleep(1)
            now = self.local.now
            stuck = self.writing_since and now - self.writing_since > CHUNK_SECONDS
            if stuck or (self.awaiting_since and now - self.awaiting_since > limit):
                raise TimeoutError

    async def _send(self, call: Stream, protocol: int) -> None:
        """Send each new message once on a stream, and repeat the header of an unacknowledged one.

        A stream loses nothing, so the receiver still has the numbers. Its acknowledgement comes after its
        round and commit, which may take long. Protocol 1 has no such frames: the message itself is
        retransmitted.
        """
        own = replace(self.local.context, protocols=(protocol,))
        repeats = protocol >= wire_format.REPEATS
        frame = 0
        sent: Message | None = None  # the last message on this stream, without its vectors
        sent_at = -math.inf
        self.in_flight = 0
        if repeats and self.latest is None and self.acknowledged is not None:
            # without a message to send, the header introduces this end, and the receiver answers
            header = wire_format.pack_repeat(own, self.name, self.acknowledged, frame)
            await self._write(call, header)
            self.awaiting_since = self.local.now
        self.wake.set()  # a new stream begins with the newest message
        while True:
            message = await self._next_message()
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
                # backpressure: under a full window the newest message waits, the last one is repeated
                repeated = sent if is_new else message
                await self._write(call, wire_format.pack_repeat(own, self.name, repeated, frame))
            else:
                continue
            sent_at = self.local.now
            self.awaiting_since = self.awaiting_since or sent_at

    async def _next_message(self) -> Message | None:
        """The newest unacknowledged message, after a change or when a repeat is due."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.wake.wait(), RESEND_SECONDS)
        self.wake.clear()
        self.is_wake_scheduled = False
        return self.latest

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
        """Receive acknowledgements and heartbeats (empty frames)."""
        while True:
            data = await call.read()
            if data is None:
                return
            self._note_answer()
            if not data:
                continue
            try:
                ack = wire_format.unpack_ack(self.local.context, data)
            except Refused as error:
                self.local.notify("refused", str(error), self.name)
                continue
            self.in_flight = 0
            self.wake.set()  # a message that waited for the window can be sent
            latest = self.latest
            if latest is not None and _acknowledges(ack, latest):
                self.acknowledged = _without_vectors(latest)
                self.latest = None
            self.local.receive(self.name, ack)

    def _note_answer(self) -> None:
        self.awaiting_since = 0.0
        self.traffic.last_received = self.local.now
        if self.traffic.state != "up":
            self.traffic.state = "up"
            self.traffic.why = ""
            self.local.notify("link up", self.link)


def _acknowledges(ack: Ack, message: Message) -> bool:
    same_sender = (ack.epoch, ack.seen) == (message.epoch, message.sender)
    return same_sender and ack.number >= message.number


def _without_vectors(message: Message) -> Message:
    """The message with its header alone: a model may be large."""
    return message._replace(x=_EMPTY, total=_EMPTY)

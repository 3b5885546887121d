"""The sender's ends of out-links: messages leave, acknowledgements arrive."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from dataclasses import replace

import torch

from spodgt.peer.host.fault_injection import crash_point
from spodgt.peer.host.interfaces import Call, Stream, WireError
from spodgt.peer.protocol.running_sums import Ack, Message, Refused
from spodgt.peer.transport import wire_format
from spodgt.peer.transport.connection import (
    CHUNK_SECONDS,
    TAKEOVER_SECONDS,
    TEXT,
    LocalClient,
    Traffic,
)
from spodgt.peer.transport.link_dialer import LinkDialer

RESEND_SECONDS = 1.0  # between two retransmissions: of the header alone from protocol 2 on
KEEP_ALIVE_SECONDS = 3.0  # without a message to send, then a header shows that this end is up
RESPONSE_SECONDS = 10.0  # for the answer to a message, beyond the time its bytes take
WINDOW = 2  # unacknowledged messages of a stream, then no other is sent before an acknowledgement
_EMPTY = torch.empty(0)


class OutLinkDialer(LinkDialer):
    """The sender's end of a link: keeps its newest message; connects, or waits for the receiver."""

    rpc = "Talk"

    def __init__(self, local: LocalClient, name: str, address: str) -> None:
        self.lock = threading.Lock()  # of `latest`: written by the thread of rounds, too
        self.latest: Message | None = None  # None: all messages are acknowledged
        self.acknowledged: Message | None = None  # the last one that was, without its vectors
        self.wake = asyncio.Event()  # `latest` has changed, or the window has opened
        self.is_wake_scheduled = False
        self.serving: asyncio.Task[None] | None = None  # the stream that the receiver has opened
        super().__init__(local, name, address, Traffic())

    async def _run(self) -> None:
        if self.address:
            await super()._run()
        else:
            self.traffic.why = f"waiting for {self.name} to connect"
            await asyncio.Event().wait()  # until the task is cancelled: `serve` does the work

    async def use(self, call: Call, protocol: int) -> None:
        await OutStream(self, call, protocol).run()

    async def serve(self, receiver: str, stream: Stream, protocol: int) -> None:
        """Use a stream that the receiver has opened; it replaces an earlier one that is silent."""
        if self.serving is not None:
            if self.local.now - self.traffic.last_received < TAKEOVER_SECONDS:
                raise Refused(f"{receiver} is already connected; another process uses its name")
            self.serving.cancel()
        task = asyncio.current_task()
        self.serving = task
        try:
            await OutStream(self, stream, protocol).run()
        except asyncio.CancelledError:
            return  # the receiver disconnected or reconnected, or this client ends
        except Exception as error:
            self.down(f"{type(error).__name__}: {error}"[:TEXT])
        finally:
            if self.serving is task:
                self.serving = None
                self.down(f"{self.name} has disconnected; waiting for it to connect")

    async def next_message(self) -> Message | None:
        """The newest unacknowledged message, after a change or when a repeat is due."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.wake.wait(), RESEND_SECONDS)
        self.wake.clear()
        self.is_wake_scheduled = False
        return self.latest

    def note_ack(self, ack: Ack) -> None:
        """Forget the newest message if this acknowledges it."""
        with self.lock:
            if self.latest is not None and _acknowledges(ack, self.latest):
                self.acknowledged = _without_vectors(self.latest)
                self.latest = None


class OutStream:
    """The sender's end of one stream of a link.

    A stream loses nothing, so each new message is sent once on it. The acknowledgement follows the
    receiver's round and commit, which may take long: until then the message's header is repeated.
    Protocol 1 has no such frames: the message itself is retransmitted.

    Args:
        link: The link, with its newest message.
        stream: The stream.
        protocol: Of the stream.
    """

    def __init__(self, link: OutLinkDialer, stream: Stream, protocol: int) -> None:
        self.link = link
        self.local = link.local
        self.stream = stream
        self.context = replace(link.local.context, protocols=(protocol,))
        self.repeats_headers = protocol >= wire_format.REPEATS
        self.frame = 0  # number of the last frame
        self.last_sent: Message | None = None  # on this stream, without its vectors
        self.sent_at = -math.inf  # when `last_sent` was sent or repeated
        self.in_flight = 0  # messages since the last acknowledgement
        self.writing_since = 0.0  # since when a chunk waits to leave
        self.awaiting_since = 0.0  # since when a message waits for an answer

    async def run(self) -> None:
        """Send and listen until one of them ends, or a deadline has passed."""
        parts = [
            asyncio.create_task(part)
            for part in (self._listen(), self._send(), self._watch_deadlines())
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

    async def _watch_deadlines(self) -> None:
        """Raise TimeoutError after a deadline; cheaper than a timer for each chunk."""
        response_seconds = RESPONSE_SECONDS + self.local.message_seconds
        while True:
            await asyncio.sleep(1)
            now = self.local.now
            if self.writing_since and now - self.writing_since > CHUNK_SECONDS:
                raise TimeoutError
            if self.awaiting_since and now - self.awaiting_since > response_seconds:
                raise TimeoutError

    async def _send(self) -> None:
        """Send new messages and repeat headers, without end."""
        self.link.wake.set()  # a new stream begins with the newest message
        while True:
            message = await self.link.next_message()
            if message is not None:
                await self._send_or_repeat(message)
            else:
                await self._keep_alive()

    async def _keep_alive(self) -> None:
        """Send a header without a message, if nothing was sent for long.

        On a new stream it introduces this end. Later it shows that this end is up although everything is
        acknowledged: rounds, or uses of the link, may be rare. The receiver answers with a heartbeat.
        """
        acknowledged = self.link.acknowledged
        if not self.repeats_headers or acknowledged is None:
            return
        if self.local.now - self.sent_at < KEEP_ALIVE_SECONDS:
            return
        self.frame += 1
        await self._write(
            wire_format.pack_keep_alive(self.context, self.link.name, acknowledged, self.frame)
        )
        self.sent_at = self.local.now
        self.awaiting_since = self.awaiting_since or self.sent_at

    async def _send_or_repeat(self, message: Message) -> None:
        """Send a message if it is new on this stream, else repeat a header if that is due."""
        self.frame += 1
        last = self.last_sent
        is_new = last is None or message.content != last.content
        is_due = self.local.now - self.sent_at >= RESEND_SECONDS
        if last is None or (is_new and self.in_flight < WINDOW):
            await self._write_message(message)
        elif not is_due:
            return
        elif not self.repeats_headers:
            await self._write_message(message)
        else:
            # backpressure: under a full window the newest message waits, the last one is repeated
            await self._write_header(last if is_new else message)
        self.sent_at = self.local.now
        self.awaiting_since = self.awaiting_since or self.sent_at

    async def _write_message(self, message: Message) -> None:
        self.last_sent = _without_vectors(message)
        chunks = wire_format.pack(self.context, self.link.name, message, self.frame)
        for number, chunk in enumerate(chunks):
            if number:
                crash_point("half sent")
            await self._write(chunk)
        crash_point("message sent")
        self.link.traffic.messages += 1
        self.in_flight += 1

    async def _write_header(self, message: Message) -> None:
        await self._write(
            wire_format.pack_repeat(self.context, self.link.name, message, self.frame)
        )

    async def _write(self, chunk: bytes) -> None:
        self.writing_since = self.local.now
        await self.stream.write(chunk)
        self.writing_since = 0.0
        self.link.traffic.bytes += len(chunk)

    async def _listen(self) -> None:
        """Receive acknowledgements and heartbeats (empty frames) until the stream ends."""
        while True:
            data = await self.stream.read()
            if data is None:
                return
            self._note_answer()
            if not data:
                continue
            try:
                ack = wire_format.unpack_ack(self.local.context, data)
            except Refused as error:
                self.local.notify("refused", str(error), self.link.name)
                continue
            self.in_flight = 0
            self.link.wake.set()  # a message that waited for the window can be sent
            self.link.note_ack(ack)
            self.local.receive(self.link.name, ack)

    def _note_answer(self) -> None:
        self.awaiting_since = 0.0
        traffic = self.link.traffic
        traffic.last_received = self.local.now
        if traffic.state != "up":
            traffic.state = "up"
            traffic.why = ""
            self.local.notify("link up", self.link.link)


def _acknowledges(ack: Ack, message: Message) -> bool:
    same_sender = (ack.epoch, ack.seen) == (message.epoch, message.sender)
    return same_sender and ack.number >= message.number


def _without_vectors(message: Message) -> Message:
    """The message with its header alone: a model may be large."""
    return message._replace(x=_EMPTY, total=_EMPTY)

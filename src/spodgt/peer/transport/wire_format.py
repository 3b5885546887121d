"""Frames as bytes: a small protobuf header and raw little-endian numbers, in chunks of 1 MiB.

Everything that arrives is checked before it is used, and takes no more memory than one message of the
size in the manifest. Nothing here can run code: no pickle.

Protocol 2 adds a frame without numbers: a header whose offset is the end of the payload. It repeats the
header of the message that was last sent on the same stream, or begins a stream that has no message to carry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from google.protobuf.message import DecodeError

from spodgt.algorithms.compose.codecs import Int8Codec, Int8Intervals
from spodgt.peer.protocol.running_sums import (
    MAX_NUMBER,
    NO_ROOT,
    Ack,
    Incarnation,
    Message,
    Refused,
)
from spodgt.peer.transport import wire_pb2 as pb

PROTOCOLS = (1, 2)  # supported; the ends of a stream use the highest that both support
REPEATS = 2  # the first protocol with frames that repeat a header
CHUNK = 2**20
HEADER = 4096  # bytes of a header at most; an honest one has about 200
LIMIT = CHUNK + HEADER + 4  # of one gRPC message
_LENGTH = struct.Struct("<I")
_FLOATS = np.dtype("<f4")


@dataclass(frozen=True)
class Context:
    """What both ends of every link have in common; taken from the manifest."""

    run: str
    layout: bytes
    n: int
    name: str
    version: str = ""  # of the program
    quantized: bool = False  # messages have 8 bits a number
    protocols: tuple[int, ...] = PROTOCOLS

    @property
    def dtype(self) -> str:
        """What a number of a message is."""
        return "int8" if self.quantized else "float32"

    @property
    def size(self) -> int:
        """Bytes of a message: model and total."""
        item = _FLOATS.itemsize
        if self.quantized:
            return Int8Intervals.of_round(self.n, 0).size(self.n, item) + Int8Codec().size(
                self.n, item
            )
        return 2 * self.n * item


def choose_protocol(context: Context, theirs: Iterable[int], name: str, version: str) -> int:
    """The highest protocol that both ends speak; `Refused` if there is none.

    Args:
        context: Of this client.
        theirs: Protocols of the client `name`.
        name: Of the other end.
        version: Of its program.
    """
    both = set(context.protocols) & set(theirs)
    if not both:
        named = [
            " and ".join(map(str, sorted(known))) or "none" for known in (theirs, context.protocols)
        ]
        raise Refused(
            f"{name} speaks protocol {named[0]} (spodgt {version or 'unknown'}), "
            f"we speak {named[1]} (spodgt {context.version}); use neighbouring versions"
        )
    return max(both)


def pack(context: Context, receiver: str, message: Message, frame: int) -> Iterator[bytes]:
    """A message as chunks, in the highest protocol of `context`."""
    x, total = _short(message) if context.quantized else _whole(message)
    size = len(x) + len(total)
    header = _packed_header(context, receiver, message, frame)
    for offset in range(0, max(1, size), CHUNK):
        header.offset = offset
        text = header.SerializeToString()
        second = slice(max(0, offset - len(x)), max(0, offset + CHUNK - len(x)))
        yield b"".join((_LENGTH.pack(len(text)), text, x[offset : offset + CHUNK], total[second]))


def pack_repeat(context: Context, receiver: str, message: Message, frame: int) -> bytes:
    """The header of a message without its numbers, whose vectors may be empty."""
    header = _packed_header(context, receiver, message, frame)
    header.offset = context.size
    text = header.SerializeToString()
    return _LENGTH.pack(len(text)) + text


def _packed_header(context: Context, receiver: str, message: Message, frame: int) -> pb.Header:
    return pb.Header(
        protocol=max(context.protocols),
        run=context.run,
        layout=context.layout,
        epoch=message.epoch,
        sender=context.name,
        receiver=receiver,
        number=message.number,
        base=message.base,
        acked=message.acked,
        incarnation=_packed(message.sender),
        seen=_packed(message.seen),
        dtype=context.dtype,
        n=context.n,
        frame=frame % 2**32,
        version=context.version,
        crew=_packed_root(message.root),
        ended=message.has_ended,
    )


def _whole(message: Message) -> tuple[memoryview, memoryview]:
    # two views and no copy of the whole: models may be large
    x, total = (
        t.numpy().astype(_FLOATS, copy=False).data.cast("B") for t in (message.x, message.total)
    )
    return x, total


def _short(message: Message) -> tuple[memoryview, memoryview]:
    """8 bits a number: the model in intervals, with some columns of it exactly, and the total as it is."""
    x = Int8Intervals.of_round(len(message.x), message.number).pack(message.x[None])
    return x.numpy()[0].data, Int8Codec().pack(message.total[None]).numpy()[0].data


class RepeatedHeader(NamedTuple):
    """A repeated header."""

    sender: Incarnation
    message: (
        Message | None
    )  # with the numbers that came before; None if they are of another message


class MessageAssembler:
    """Assembles the messages of one stream from chunks.

    Holds one message at most beyond the last complete one, whatever the sender claims.
    """

    def __init__(self, context: Context, sender: str) -> None:
        self.context = context
        self.sender = sender
        self.size = context.size  # bytes of a payload: the manifest's, not the header's
        self.payload = np.empty(0, np.uint8)
        self.header: pb.Header | None = None  # of the message that is being assembled
        self.filled = 0  # bytes of its payload that have arrived
        self.last: Message | None = None  # the last complete one

    def add(self, chunk: bytes) -> Message | RepeatedHeader | None:
        """Add the next chunk.

        Returns:
            The message, once its last chunk is here; a repeated header; None in the middle of a message.

        Raises:
            Refused: The chunk is none that an honest peer sends.
        """
        header, body = _split_chunk(chunk)
        if header.offset == self.size and header.protocol >= REPEATS and not len(body):
            check_header(header, self.context, self.sender)
            return self._repeat(header)
        if header.offset == 0:
            check_header(header, self.context, self.sender)
            self.header = header
            self.filled = 0
            self.payload = np.empty(self.size, np.uint8)
        first = self._add_body(header, body)
        if self.filled < self.size:
            return None
        self.header = None
        self.last = self._message(first)
        return self.last

    def _add_body(self, header: pb.Header, body: memoryview) -> pb.Header:
        """Add the payload of a chunk; returns the header of the message's first chunk."""
        first = self.header
        self.header = None  # unless the chunk is right
        position = (header.frame, header.number, header.offset)
        if first is None or position != (first.frame, first.number, self.filled):
            where = f"the chunk at {header.offset} of message {header.number}"
            raise Refused(f"{where} does not follow the one before")
        end = self.filled + len(body)
        if end > self.size or (len(body) < CHUNK and end != self.size):
            raise Refused(f"the message has {end} bytes so far, {self.size} are expected")
        self.payload[self.filled : end] = np.frombuffer(body, np.uint8)
        self.filled = end
        self.header = first
        return first

    def _message(self, header: pb.Header) -> Message:
        x, half_width, total = self._vectors(header.number)
        return Message(
            epoch=header.epoch,
            number=header.number,
            base=header.base,
            acked=header.acked,
            sender=_unpacked(header.incarnation),
            seen=_unpacked(header.seen),
            x=x,
            total=total,
            root=_unpacked_root(header),
            has_ended=header.ended,
            half_width=half_width,
        )

    def _repeat(self, header: pb.Header) -> RepeatedHeader:
        sender = _unpacked(header.incarnation)
        last = self.last
        if last is None or last.content != (header.epoch, header.number, header.base, sender):
            return RepeatedHeader(sender, None)
        root = _unpacked_root(header)
        seen = _unpacked(header.seen)
        repeated = last._replace(acked=header.acked, seen=seen, root=root, has_ended=header.ended)
        return RepeatedHeader(sender, repeated)

    def _vectors(self, number: int) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Of message `number`: the model, the half width of its intervals (None: exact), and the total."""
        n = self.context.n
        if not self.context.quantized:
            numbers = torch.from_numpy(self.payload.view(_FLOATS).astype(np.float32, copy=False))
            return numbers[:n], None, numbers[n:]
        data, code = torch.from_numpy(self.payload)[None], Int8Intervals.of_round(n, number)
        cut = code.size(n, _FLOATS.itemsize)
        middle, half_width = code.unpack(data[:, :cut], n, torch.float32)
        return middle[0], half_width[0], Int8Codec().unpack(data[:, cut:], n, torch.float32)[0]


def _split_chunk(chunk: bytes) -> tuple[pb.Header, memoryview]:
    """Header and payload of a chunk."""
    if len(chunk) < _LENGTH.size:
        raise Refused("the frame is shorter than its length field")
    (length,) = _LENGTH.unpack_from(chunk)
    available = len(chunk) - _LENGTH.size
    if length > available:
        raise Refused(f"the header claims {length} bytes, the frame has {available}")
    if length > HEADER:
        raise Refused(f"the header has {length} bytes, at most {HEADER} are allowed")
    end = _LENGTH.size + length
    try:
        header = pb.Header.FromString(chunk[_LENGTH.size : end])
    except DecodeError:
        raise Refused("the header cannot be decoded") from None
    return header, memoryview(chunk)[end:]


def check_header(header: pb.Header, context: Context, sender: str) -> None:
    """Refuse a header that is not of the certificate's owner, this client, run, model or protocol."""
    choose_protocol(context, [header.protocol], sender, header.version)
    if header.sender != sender:
        raise Refused(
            f"the certificate names {sender!r}, the message claims to be from {header.sender!r}"
        )
    if header.receiver != context.name:
        raise Refused(f"the message is for {header.receiver!r}, this is {context.name!r}")
    if header.run != context.run:
        raise Refused(f"the message is of run {header.run!r}, this is run {context.run!r}")
    ours = context.layout.hex()[:12]
    theirs = header.layout.hex()[:12]
    if header.layout != context.layout or header.n != context.n or header.dtype != context.dtype:
        raise Refused(
            f"the layout differs: {header.n} {header.dtype} parameters with hash {theirs or 'none'}, "
            f"we have {context.n} {context.dtype} with {ours}"
        )
    if max(header.base, header.acked) > header.number:
        raise Refused(
            f"the numbers contradict each other: {header.base}, {header.acked}, {header.number}"
        )
    _check_numbers(header.epoch, header.number, header.incarnation.number, header.seen.number)
    _unpacked_root(header)


def pack_ack(context: Context, ack: Ack) -> bytes:
    return pb.Ack(
        protocol=max(context.protocols),
        run=context.run,
        epoch=ack.epoch,
        number=ack.number,
        incarnation=_packed(ack.sender),
        seen=_packed(ack.seen),
        crew=_packed_root(ack.root),
        ended=ack.has_ended,
    ).SerializeToString()


def _check_numbers(*numbers: int) -> None:
    if max(numbers) >= MAX_NUMBER:
        raise Refused(f"the numbers {', '.join(map(str, numbers))} must be below 2^62")


def unpack_ack(context: Context, data: bytes) -> Ack:
    if len(data) > HEADER:
        raise Refused(f"the acknowledgement has {len(data)} bytes, at most {HEADER} are allowed")
    try:
        ack = pb.Ack.FromString(data)
    except DecodeError:
        raise Refused("the acknowledgement cannot be decoded") from None
    if ack.protocol not in context.protocols or ack.run != context.run:
        raise Refused(f"the acknowledgement is of run {ack.run!r} and protocol {ack.protocol}")
    _check_numbers(ack.epoch, ack.number, ack.incarnation.number, ack.seen.number)
    known = _unpacked(ack.incarnation), _unpacked(ack.seen)
    return Ack(ack.epoch, ack.number, *known, _unpacked_root(ack), ack.ended)


def _packed(incarnation: Incarnation) -> pb.Incarnation:
    return pb.Incarnation(number=incarnation.number, nonce=incarnation.nonce)


def _unpacked(incarnation: pb.Incarnation) -> Incarnation:
    return Incarnation(incarnation.number, incarnation.nonce)


def _packed_root(root: int) -> pb.Crew | None:
    return None if root == NO_ROOT else pb.Crew(root=root)


def _unpacked_root(frame: pb.Header | pb.Ack) -> int:
    """The place of the root; `Refused` for a root that was not named by the manifest.

    Release 0.2.0 let clients replace the root among themselves; `term`, `places` and `times` counted it.
    """
    if not frame.HasField("crew"):
        return NO_ROOT
    crew = frame.crew
    if crew.term or crew.places or crew.times:
        raise Refused(
            "the frame names a root that was changed by clients; only the manifest changes it"
        )
    return int(crew.root)

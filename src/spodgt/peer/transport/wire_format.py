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

import torch
from google.protobuf.message import DecodeError

from spodgt.peer.protocol.running_sums import (
    MAX_NUMBER,
    NO_ROOT,
    Ack,
    Incarnation,
    Message,
    Refused,
)
from spodgt.peer.transport import wire_pb2 as pb
from spodgt.peer.transport.payload import Float32Payload, Int8Payload, Payload, to_bytes
from spodgt.tensors import NewRow, new_row

PROTOCOLS = (1, 2)  # supported; the ends of a stream use the highest that both support
REPEATS = 2  # the first protocol with frames that repeat a header
CHUNK = 2**20
HEADER = 4096  # bytes of a header at most; an honest one has about 200
LIMIT = CHUNK + HEADER + 4  # of one gRPC message
_LENGTH = struct.Struct("<I")


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
    def payload(self) -> Payload:
        """The format of the numbers of a message."""
        return Int8Payload() if self.quantized else Float32Payload()

    @property
    def size(self) -> int:
        """Bytes of the numbers of a message."""
        return sum(self.payload.sizes(self.n))


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
        raise Refused(
            f"{name} speaks protocol {_names(theirs)} (spodgt {version or 'unknown'}), we speak "
            f"{_names(context.protocols)} (spodgt {context.version}); use neighbouring versions"
        )
    return max(both)


def _names(protocols: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(protocols))) or "none"


def pack(context: Context, receiver: str, message: Message, frame: int) -> Iterator[bytes]:
    """A message as chunks, in the highest protocol of `context`."""
    vectors = context.payload.pack(message)
    size = context.size
    header = _packed_header(context, receiver, message, frame)
    for offset in range(0, max(1, size), CHUNK):
        header.offset = offset
        text = header.SerializeToString()
        yield b"".join((_LENGTH.pack(len(text)), text, *to_bytes(vectors, offset, CHUNK)))


def pack_repeat(context: Context, receiver: str, message: Message, frame: int) -> bytes:
    """The header of a message without its numbers, whose vectors may be empty."""
    header = _packed_header(context, receiver, message, frame)
    header.offset = context.size
    text = header.SerializeToString()
    return _LENGTH.pack(len(text)) + text


def pack_keep_alive(context: Context, receiver: str, last: Message, frame: int) -> bytes:
    """A header that repeats no message: its number follows that of `last`, the last message."""
    return pack_repeat(context, receiver, last._replace(number=last.number + 1), frame)


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
        dtype=context.payload.dtype,
        n=context.n,
        frame=frame % 2**32,
        version=context.version,
        crew=_packed_root(message.root),
        ended=message.has_ended,
    )


class RepeatedHeader(NamedTuple):
    """The header of a message without its numbers."""

    sender: Incarnation
    # with the numbers that were received before; None if they are of another message, or of none
    message: Message | None


class MessageAssembler:
    """Assembles the messages of one stream from chunks.

    Holds one message at most beyond the last complete one, whatever the sender claims.

    Args:
        context: Of this client.
        sender: Of the stream.
        new_row: Makes the vectors of messages.
    """

    def __init__(self, context: Context, sender: str, new_row: NewRow = new_row) -> None:
        self.context = context
        self.sender = sender
        self.new_row = new_row
        self.size = context.size  # bytes of a payload: the manifest's, not the header's
        self.vectors: list[torch.Tensor] = []  # model and total as bytes
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
            sizes = self.context.payload.sizes(self.context.n)
            self.vectors = [self.new_row(size, torch.uint8) for size in sizes]
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
        start = self.filled
        for vector in self.vectors:
            size = min(len(body), max(0, len(vector) - start))
            vector.numpy().data[start : start + size] = body[:size]
            body = body[size:]
            start = max(0, start - len(vector))
        self.filled = end
        self.header = first
        return first

    def _message(self, header: pb.Header) -> Message:
        vectors = self.context.payload.unpack(self.vectors, self.context.n, header.number)
        self.vectors = []
        return Message(
            epoch=header.epoch,
            number=header.number,
            base=header.base,
            acked=header.acked,
            sender=_unpacked(header.incarnation),
            seen=_unpacked(header.seen),
            x=vectors.x,
            total=vectors.total,
            root=_unpacked_root(header),
            has_ended=header.ended,
            half_width=vectors.half_width,
        )

    def _repeat(self, header: pb.Header) -> RepeatedHeader:
        """Apply a repeated header to the last complete message, if it is of that message."""
        sender = _unpacked(header.incarnation)
        last = self.last
        if last is None or last.content != (header.epoch, header.number, header.base, sender):
            return RepeatedHeader(sender, None)
        root = _unpacked_root(header)
        seen = _unpacked(header.seen)
        repeated = last._replace(acked=header.acked, seen=seen, root=root, has_ended=header.ended)
        return RepeatedHeader(sender, repeated)


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
    dtype = context.payload.dtype
    if header.layout != context.layout or header.n != context.n or header.dtype != dtype:
        ours = context.layout.hex()[:12]
        theirs = header.layout.hex()[:12] or "none"
        raise Refused(
            f"the layout differs: {header.n} {header.dtype} parameters with hash {theirs}, "
            f"we have {context.n} {dtype} with {ours}"
        )
    if max(header.base, header.acked) > header.number:
        raise Refused(
            f"the numbers contradict each other: {header.base}, {header.acked}, {header.number}"
        )
    _check_numbers(header.epoch, header.number, header.incarnation.number, header.seen.number)
    _unpacked_root(header)


def pack_ack(context: Context, ack: Ack) -> bytes:
    """An acknowledgement as a frame, in the highest protocol of `context`."""
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
    """The inverse of `pack_ack`; `Refused` if it is damaged or of another run or protocol."""
    if len(data) > HEADER:
        raise Refused(f"the acknowledgement has {len(data)} bytes, at most {HEADER} are allowed")
    try:
        ack = pb.Ack.FromString(data)
    except DecodeError:
        raise Refused("the acknowledgement cannot be decoded") from None
    if ack.protocol not in context.protocols or ack.run != context.run:
        raise Refused(f"the acknowledgement is of run {ack.run!r} and protocol {ack.protocol}")
    _check_numbers(ack.epoch, ack.number, ack.incarnation.number, ack.seen.number)
    return Ack(
        epoch=ack.epoch,
        number=ack.number,
        sender=_unpacked(ack.incarnation),
        seen=_unpacked(ack.seen),
        root=_unpacked_root(ack),
        has_ended=ack.ended,
    )


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

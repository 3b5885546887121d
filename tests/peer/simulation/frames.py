"""Frames as a member may damage them: each of these must be refused, and must change nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable

from google.protobuf.message import DecodeError

from spodgt.peer.protocol.running_sums import MAX_NUMBER
from spodgt.peer.transport import wire_pb2 as pb
from spodgt.peer.transport.wire_format import HEADER

_LENGTH = struct.Struct("<I")


def header_of(data: bytes) -> pb.Header | None:
    """The header of a chunk; None for an acknowledgement or any other frame."""
    split = _split(data)
    if split is None:
        return None
    return split[0]


def _split(data: bytes) -> tuple[pb.Header, bytes] | None:
    """The header and the numbers of a chunk."""
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    if not 0 < length <= len(data) - _LENGTH.size:
        return None
    try:
        header = pb.Header.FromString(data[_LENGTH.size : end])
    except DecodeError:
        return None
    if not header.layout:
        return None
    return header, data[end:]


def _join(header: pb.Header, body: bytes) -> bytes:
    text = header.SerializeToString()
    return _LENGTH.pack(len(text)) + text + body


# --- headers -----------------------------------------------------------------------------------------
def another_run(header: pb.Header) -> None:
    header.run = "another"


def another_sender(header: pb.Header) -> None:
    header.sender = "p99"


def another_receiver(header: pb.Header) -> None:
    header.receiver = "p99"


def another_layout(header: pb.Header) -> None:
    header.n += 1


def another_protocol(header: pb.Header) -> None:
    header.protocol = 99


def acknowledged_before_sent(header: pb.Header) -> None:
    header.acked = header.number + 1


def number_too_large(header: pb.Header) -> None:
    header.number = MAX_NUMBER


def root_of_clients(header: pb.Header) -> None:
    header.crew.term = 1


def missing_chunk(header: pb.Header) -> None:
    header.offset = 1


HEADERS: tuple[Callable[[pb.Header], None], ...] = (
    another_run,
    another_sender,
    another_receiver,
    another_layout,
    another_protocol,
    acknowledged_before_sent,
    number_too_large,
    root_of_clients,
    missing_chunk,
)


class Damage:
    """Damages every frame in one of the ways above, or as a whole, in turn.

    Args:
        first: number of the way with which it begins.
    """

    def __init__(self, first: int) -> None:
        self.count = first

    def __call__(self, data: bytes) -> bytes:
        self.count += 1
        if not data:
            return data  # a heartbeat
        split = _split(data)
        if split is None:
            return self._acknowledgement(data)
        header, body = split
        way = self.count % (len(HEADERS) + 4)
        if way < len(HEADERS):
            HEADERS[way](header)
            return _join(header, body)
        wholes = (b"?", bytes(255 - byte for byte in data), _join(header, body + b"?"))
        if way - len(HEADERS) < len(wholes):
            return wholes[way - len(HEADERS)]
        header.version = "?" * HEADER
        return _join(header, body)

    def _acknowledgement(self, data: bytes) -> bytes:
        ack = pb.Ack.FromString(data)
        way = self.count % 4
        if way == 0:
            ack.run = "another"
        elif way == 1:
            ack.number = MAX_NUMBER
        elif way == 2:
            return data + bytes(HEADER)
        else:
            return bytes(255 - byte for byte in data)
        return ack.SerializeToString()

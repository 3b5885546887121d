"""Bytes from strangers: whatever they are, they are refused or they are a message."""

from __future__ import annotations

import random
import resource
import struct
from dataclasses import replace
from typing import Any

import pytest
import torch

from spodgt.algorithms.compose.codecs import Int8Codec
from spodgt.peer.protocol.running_sums import NO_ROOT, Ack, Incarnation, Message, Refused
from spodgt.peer.transport import wire_format
from spodgt.peer.transport import wire_pb2 as pb

N = 40
CONTEXT = wire_format.Context("run", b"\1" * 32, N, "a", "0.1")
RECEIVER = wire_format.Context("run", b"\1" * 32, N, "b", "0.1")


def message(n: int = N) -> Message:
    return Message(
        3, 9, 2, 4, Incarnation(1, 7), Incarnation(2, 2**60), torch.randn(n), torch.randn(n)
    )


@pytest.mark.parametrize("n", [1, N, wire_format.CHUNK // 8, wire_format.CHUNK // 8 + 1, 700_001])
def test_a_message_survives_the_wire(n: int) -> None:
    a, b = (wire_format.Context("run", b"\1" * 32, n, name) for name in "ab")
    sent, assembler = message(n), wire_format.MessageAssembler(b, "a")
    got = [assembler.add(chunk) for chunk in wire_format.pack(a, "b", sent, 5)]
    assert got[:-1] == [None] * (len(got) - 1)
    assert isinstance(got[-1], Message)
    assert got[-1][:6] == sent[:6]
    assert torch.equal(got[-1].x, sent.x)
    assert torch.equal(got[-1].total, sent.total)


@pytest.mark.parametrize("n", [1, N, 7850, 3 * wire_format.CHUNK])
def test_a_short_message_survives_the_wire(n: int) -> None:
    a, b = (wire_format.Context("run", b"\1" * 32, n, name, quantized=True) for name in "ab")
    sent, assembler = message(n), wire_format.MessageAssembler(b, "a")
    sent = sent._replace(total=Int8Codec().quantize(sent.total[None])[0])
    chunks = list(wire_format.pack(a, "b", sent, 5))
    got = [assembler.add(chunk) for chunk in chunks][-1]
    assert isinstance(got, Message)
    assert torch.equal(got.total, sent.total)
    assert got.half_width is not None
    assert ((got.x - sent.x).abs() <= got.half_width).all()
    whole = wire_format.pack(wire_format.Context("run", b"\1" * 32, n, "a"), "b", sent, 5)
    if n >= 7850:
        assert sum(map(len, chunks)) <= 0.27 * sum(map(len, whole))


def test_short_and_whole_messages_are_not_taken_for_each_other() -> None:
    for ours, theirs in ((True, False), (False, True)):
        a, b = (
            wire_format.Context("run", b"", N, "a", quantized=theirs),
            wire_format.Context("run", b"", N, "b", quantized=ours),
        )
        (chunk,) = wire_format.pack(a, "b", message(), 5)
        with pytest.raises(Refused, match=r"the layout differs: 40 (int8|float32) parameters"):
            wire_format.MessageAssembler(b, "a").add(chunk)


@pytest.mark.parametrize("root", [NO_ROOT, 0, 7])
def test_a_root_survives_the_wire(root: int) -> None:
    ack = Ack(2**40, 9, Incarnation(1, 2**62), Incarnation(4, 5), root)
    assert wire_format.unpack_ack(CONTEXT, wire_format.pack_ack(CONTEXT, ack)) == ack
    (chunk,) = wire_format.pack(CONTEXT, "b", message()._replace(root=root), 1)
    got = wire_format.MessageAssembler(RECEIVER, "a").add(chunk)
    assert isinstance(got, Message)
    assert got.root == root


@pytest.mark.parametrize(
    "crew",
    [
        pb.Crew(term=2**32 - 1, root=1),
        pb.Crew(root=1, places=[1], times=[2**32 - 1]),
        pb.Crew(term=1, root=1),
    ],
)
def test_a_root_that_clients_have_changed_is_refused(
    crew: pb.Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted on, the largest number did not fit into a frame, and no link could send again."""
    monkeypatch.setattr(wire_format, "_packed_root", lambda root: crew)
    (chunk,) = wire_format.pack(CONTEXT, "b", message(), 1)
    packed = wire_format.pack_ack(CONTEXT, Ack(1, 1, Incarnation(1, 7), Incarnation(2, 8)))
    with pytest.raises(Refused, match="only the manifest changes it"):
        wire_format.MessageAssembler(RECEIVER, "a").add(chunk)
    with pytest.raises(Refused, match="only the manifest changes it"):
        wire_format.unpack_ack(RECEIVER, packed)


@pytest.mark.parametrize("quantized", [False, True])
def test_a_repeated_header_stands_for_the_message_before_it(quantized: bool) -> None:
    a, b = (
        wire_format.Context("run", b"\1" * 32, 700_001, name, quantized=quantized) for name in "ab"
    )
    assembler = wire_format.MessageAssembler(b, "a")
    sent = message(700_001)
    whole = [assembler.add(chunk) for chunk in wire_format.pack(a, "b", sent, 1)][-1]
    assert isinstance(whole, Message)
    later = sent._replace(acked=5, seen=Incarnation(3, 3), x=torch.empty(0), total=torch.empty(0))
    frame = wire_format.pack_repeat(a, "b", later, 2)
    assert len(frame) < 300
    got = assembler.add(frame)
    assert isinstance(got, wire_format.RepeatedHeader)
    assert got.message is not None
    assert got.message[:6] == later[:6]
    assert torch.equal(got.message.x, whole.x)
    assert torch.equal(got.message.total, whole.total)
    for other in ({"number": 10}, {"epoch": 4}, {"base": 3}, {"sender": Incarnation(1, 8)}):
        got = assembler.add(wire_format.pack_repeat(a, "b", later._replace(**other), 3))
        assert isinstance(got, wire_format.RepeatedHeader)
        assert got.message is None
    got = assembler.add(wire_format.pack_keep_alive(a, "b", later, 4))
    assert got == wire_format.RepeatedHeader(later.sender, None)


def test_a_repeated_header_is_checked_like_any_other() -> None:
    for other in ({"run": "x"}, {"name": "c"}, {"layout": b"\2" * 32}):
        with pytest.raises(Refused):
            wire_format.MessageAssembler(RECEIVER, "a").add(
                wire_format.pack_repeat(replace(CONTEXT, **other), "b", message(), 1)
            )
    with pytest.raises(Refused, match="does not follow"):  # protocol 1 has no such frames
        wire_format.MessageAssembler(RECEIVER, "a").add(
            wire_format.pack_repeat(replace(CONTEXT, protocols=(1,)), "b", message(), 1)
        )


def mutated(good: list[bytes], draw: random.Random) -> bytes:
    """One of the usual ways to spoil bytes."""
    data = bytearray(draw.choice(good))
    way = draw.randrange(7)
    if way == 0:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif way == 1:
        del data[draw.randrange(len(data)) :]
    elif way == 2:
        data += draw.randbytes(draw.randrange(1, 64))
    elif way == 3:
        data = bytearray(draw.randbytes(draw.randrange(0, 300)))
    elif way == 4:
        data[:4] = struct.pack(
            "<I", draw.choice([0, 1, 2**31, 2**32 - 1, len(data), draw.randrange(200)])
        )
    elif way == 5:
        at = draw.randrange(len(data))
        data[at : at + 8] = draw.randbytes(8)
    else:
        a, b = draw.choice(good), draw.choice(good)
        data = bytearray(a[: draw.randrange(len(a))] + b[draw.randrange(len(b)) :])
    return bytes(data)


def fuzz(count: int, seed: int) -> dict[str, int]:
    draw = random.Random(seed)
    sent = [message()._replace(root=draw.choice((NO_ROOT, 3))) for _ in range(5)]
    good = [
        chunk
        for each in sent
        for chunk in wire_format.pack(CONTEXT, "b", each, draw.randrange(2**32))
    ]
    good += [wire_format.pack_repeat(CONTEXT, "b", each, 1) for each in sent]
    acks = [
        wire_format.pack_ack(CONTEXT, Ack(1, i, Incarnation(1, 7), Incarnation(2, 8)))
        for i in range(5)
    ]
    assembler, tally = (
        wire_format.MessageAssembler(RECEIVER, "a"),
        {"refused": 0, "message": 0, "part": 0, "ack": 0},
    )
    for n in range(count):
        try:
            if n % 4:
                got: Any = assembler.add(mutated(good, draw))
                if isinstance(got, wire_format.RepeatedHeader):
                    got = got.message
                tally["part" if got is None else "message"] += 1
                if got is not None:
                    assert got.x.shape == got.total.shape == (N,)
                    assert got.number < 2**62
            else:
                wire_format.unpack_ack(RECEIVER, mutated(acks, draw))
                tally["ack"] += 1
        except Refused:
            tally["refused"] += 1
    return tally


def test_mutated_bytes_are_refused_or_are_a_message() -> None:
    tally = fuzz(20_000, 1)
    assert tally["refused"] > 8_000


@pytest.mark.slow
def test_half_a_million_mutated_frames_and_bounded_memory() -> None:
    fuzz(10_000, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tally = fuzz(500_000, 2)
    print(tally)
    assert sum(tally.values()) == 500_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB

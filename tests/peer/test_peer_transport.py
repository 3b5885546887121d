"""Sockets on loopback: messages arrive, strangers stay out, and what is wrong is named."""

from __future__ import annotations

import asyncio
import datetime
import struct
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch

from spodgt.peer.host.events import Notify, describe
from spodgt.peer.host.interfaces import Headers
from spodgt.peer.membership import certificates
from spodgt.peer.membership.certificates import Identity
from spodgt.peer.protocol.running_sums import Ack, Incarnation, Message
from spodgt.peer.transport import wire_format
from spodgt.peer.transport import wire_pb2 as pb
from spodgt.peer.transport.connection import LocalClient
from spodgt.peer.transport.grpc_wire import SERVICE, GrpcIncomingCall, GrpcServer, secure_channel
from spodgt.peer.transport.links import Transport

pytestmark = pytest.mark.network
N = 50
KEY, CA = certificates.create_authority("test")
LAYOUT = b"\1" * 32


def who(name: str, **options: Any) -> Identity:
    return certificates.issue(KEY, CA, name, **options)


def context(name: str, n: int = N) -> wire_format.Context:
    return wire_format.Context("run", LAYOUT, n, name, "0.1")


def message(
    number: int = 1,
    n: int = N,
    sender: Incarnation = Incarnation(1, 7),  # noqa: B008
    **changes: Any,
) -> Message:
    made = Message(0, number, 0, 0, sender, Incarnation(), torch.arange(n).float(), torch.ones(n))
    return made._replace(**changes)


def recorder(events: list[tuple[str, str]]) -> Notify:
    """Appends the kind and the whole text of each event."""

    def notify(kind: str, text: str, subject: str = "") -> None:
        events.append((kind, describe(text, subject)))

    return notify


class Server:
    """Client b, which only listens; link a → b is in its manifest."""

    def __init__(self, n: int = N, person: Identity | None = None) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.events: list[tuple[str, str]] = []
        self.transport = Transport(
            LocalClient(
                context("b", n),
                person or who("b"),
                lambda s, f: self.heard.append((s, f)),
                recorder(self.events),
            )
        )

    async def __aenter__(self) -> Server:
        self.port = await self.transport.start("127.0.0.1:0", {}, {"a": ""})
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.transport.stop()

    async def knock(self, person: Identity, chunks: list[bytes], name: str = "b") -> str:
        """Open a stream as `person`, write, and tell how it ended; "open" if it did not."""
        async with secure_channel(person, self.address, name) as channel:
            try:
                await asyncio.wait_for(channel.channel_ready(), 2)
                call = channel.stream_stream(f"/{SERVICE}/Talk")()
                for chunk in chunks:
                    await call.write(chunk)
                while await asyncio.wait_for(call.read(), 0.5) == b"":
                    pass
                await call.done_writing()
                return f"{(await call.code()).name}: {await call.details()}"
            except TimeoutError:
                return "open" if self.heard else "no connection"
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"


def chunks(m: Message, name: str = "a", to: str = "b", n: int = N, **changes: Any) -> list[bytes]:
    made = []
    for chunk in wire_format.pack(context(name, n), to, m, 1):
        (length,) = struct.unpack_from("<I", chunk)
        header = pb.Header.FromString(chunk[4 : 4 + length])
        for key, value in changes.items():
            setattr(header, key, value)
        text = header.SerializeToString()
        made.append(struct.pack("<I", len(text)) + text + chunk[4 + length :])
    return made


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


def test_messages_and_acks_arrive_and_only_the_newest_is_kept() -> None:
    async def work() -> None:
        n = 300_000  # several chunks
        async with Server(n) as server:
            acks: list[Any] = []
            transport = Transport(
                LocalClient(context("a", n), who("a"), lambda s, f: acks.append(f), lambda *_: None)
            )
            await transport.start("127.0.0.1:0", {"b": server.address}, {})
            for number in range(1, 50):
                transport.send_latest("b", message(number, n))
            while not server.heard or server.heard[-1][1].number < 49:
                await asyncio.sleep(0.02)
            assert len(server.heard) <= 3  # 49 were sent; what had not left was replaced
            assert torch.equal(server.heard[-1][1].x, torch.arange(n).float())
            server.transport.send_ack("a", Ack(0, 49, Incarnation(1, 9), Incarnation(1, 7)))
            while not acks:
                await asyncio.sleep(0.02)
            assert acks == [Ack(0, 49, Incarnation(1, 9), Incarnation(1, 7))]
            assert transport.out["b"].latest is None  # acknowledged: nothing to send again
            await transport.stop()

    run(work())


class Pair:
    """Client a, which sends to a `Server` that acknowledges only what a test tells it to."""

    def __init__(self, server: Server, protocols: tuple[int, ...] = wire_format.PROTOCOLS) -> None:
        own = replace(context("a"), protocols=protocols)
        self.server = server
        self.acks: list[Any] = []
        self.sender = Transport(
            LocalClient(own, who("a"), lambda s, f: self.acks.append(f), lambda *_: None)
        )

    async def __aenter__(self) -> Pair:
        await self.sender.start("", {"b": self.server.address}, {})
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.sender.stop()

    @property
    def bodies(self) -> int:
        """Messages that were sent with all their numbers."""
        received = self.server.transport.in_links.traffic["a"].messages
        assert self.sender.out["b"].traffic.messages >= received
        return received

    async def hears(self, count: int) -> None:
        """Wait until the receiver has been given so many messages more."""
        before = len(self.server.heard)
        while len(self.server.heard) < before + count:
            await asyncio.sleep(0.01)

    async def acknowledge(self, number: int) -> None:
        before = len(self.acks)
        self.server.transport.send_ack("a", Ack(0, number, Incarnation(1, 9), Incarnation(1, 7)))
        while len(self.acks) == before:
            await asyncio.sleep(0.01)

    async def reconnect(self) -> None:
        stream = self.server.transport.in_links.streams["a"]
        stream.close()
        while self.server.transport.in_links.streams.get("a") in (None, stream):
            await asyncio.sleep(0.01)


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.peer.transport.out_links.RESEND_SECONDS", 0.03)


@pytest.mark.usefixtures("_often")
def test_a_message_is_sent_once_and_its_header_until_it_is_acknowledged() -> None:
    async def work() -> None:
        async with Server() as server, Pair(server) as pair:
            pair.sender.send_latest("b", message(1))
            await pair.hears(4)
            assert {heard.number for _, heard in server.heard} == {1}
            assert torch.equal(server.heard[-1][1].x, torch.arange(N).float())
            for newer in range(
                5
            ):  # of the same number: a later round of the sender, with another model
                pair.sender.send_latest("b", message(1, x=torch.full((N,), float(newer))))
                await pair.hears(2)
            assert pair.bodies == 1
            await pair.acknowledge(1)
            assert pair.sender.out["b"].latest is None
            pair.sender.send_latest("b", message(2))
            await pair.hears(1)
            while server.heard[-1][1].number < 2:
                await pair.hears(1)
            assert pair.bodies == 2

    run(work())


@pytest.mark.usefixtures("_often")
def test_no_more_than_two_messages_leave_without_an_acknowledgement() -> None:
    async def work() -> None:
        async with Server() as server, Pair(server) as pair:
            for number in range(1, 10):
                pair.sender.send_latest("b", message(number))
                await pair.hears(2)
            assert pair.bodies == 2
            assert server.heard[-1][1].number == 2
            await pair.acknowledge(2)
            while server.heard[-1][1].number < 9:
                await asyncio.sleep(0.01)
            assert pair.bodies == 3

    run(work())


@pytest.mark.usefixtures("_often")
def test_a_new_stream_begins_with_the_whole_message() -> None:
    async def work() -> None:
        async with Server() as server, Pair(server) as pair:
            pair.sender.send_latest("b", message(1))
            await pair.hears(3)
            await pair.reconnect()
            await pair.hears(3)
            assert pair.bodies == 2

    run(work())


def test_a_link_with_nothing_to_send_is_up_again_after_a_reset() -> None:
    async def work() -> None:
        async with Server() as server, Pair(server) as pair:
            pair.sender.send_latest("b", message(1))
            await pair.hears(1)
            await pair.acknowledge(1)
            await pair.reconnect()
            while pair.sender.out["b"].traffic.state != "up":
                await asyncio.sleep(0.01)
            assert server.transport.in_links.traffic["a"].state == "up"
            assert pair.bodies == 1

    run(work())


@pytest.mark.usefixtures("_often")
def test_the_whole_message_is_repeated_to_a_receiver_of_protocol_1() -> None:
    async def work() -> None:
        async with Server() as server, Pair(server, protocols=(1,)) as pair:
            pair.sender.send_latest("b", message(1))
            await pair.hears(3)
            assert pair.bodies >= 3

    run(work())


def test_strangers_stay_out() -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3)
    other_key, other_ca = certificates.create_authority("other")
    foreign = certificates.issue(other_key, other_ca, "a")
    strangers = {
        "another authority": Identity("a", foreign.key, foreign.certificate, CA),
        "expired": who("a", days=1, start=past),
        "not in the manifest": who("c"),
    }

    async def work() -> None:
        async with Server() as server:
            answers = {
                why: await server.knock(person, chunks(message()))
                for why, person in strangers.items()
            }
            assert server.heard == []
            assert "link c → b is not in the manifest" in answers["not in the manifest"]
            assert all("open" not in answer for answer in answers.values()), answers
            nobody = grpc.aio.secure_channel(
                server.address,
                grpc.ssl_channel_credentials(CA),
                options=[("grpc.ssl_target_name_override", "b")],
            )
            async with nobody:
                with pytest.raises((grpc.aio.AioRpcError, asyncio.TimeoutError)):  # noqa: PT012
                    call = nobody.stream_stream(f"/{SERVICE}/Talk")()
                    await asyncio.wait_for(call.write(chunks(message())[0]), 2)
                    await asyncio.wait_for(call.read(), 2)
            # the sender checks, too: whoever answers at b's address must be b
            assert await server.knock(who("a"), chunks(message()), name="d") == "no connection"
            assert server.heard == []

    run(work())


BAD = {
    "claims another name": (chunks(message(), sender="x"), "certificate names 'a'"),
    "for another": (chunks(message(), receiver="x"), "is for 'x'"),
    "another run": (chunks(message(), run="x"), "run 'x'"),
    "another layout": (chunks(message(), layout=b"\2" * 32), "layout differs"),
    "older protocol": (
        chunks(message(), protocol=9, version="9.9"),
        "speaks protocol 9 (spodgt 9.9), we speak 1 and 2 (spodgt 0.1)",
    ),
    "garbage": ([b"\xff" * 400], "header claims"),
    "two gigabytes": ([struct.pack("<I", 2**31) + b"x" * 50], "header claims 2147483648 bytes"),
    "too short": ([b"x"], "shorter"),
    "contradiction": (chunks(message(), base=5), "contradict"),
    "cut": ([chunks(message())[0][:-4]], "bytes so far"),
    "too long": ([chunks(message())[0] + b"1234"], "bytes so far"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_frames_are_refused_by_name(what: str) -> None:
    async def work() -> None:
        async with Server() as server:
            answer = await server.knock(who("a"), BAD[what][0])
            assert answer.startswith("INVALID_ARGUMENT")
            assert BAD[what][1] in answer
            assert server.heard == []
            assert server.events[0][0] == "refused"
            assert (
                await server.knock(who("a"), chunks(message())) == "open"
            )  # the next honest stream is welcome

    run(work())


def test_a_frame_beyond_the_limit_is_never_buffered() -> None:
    async def work() -> None:
        async with Server() as server:
            person = who("a")
            credentials = grpc.ssl_channel_credentials(CA, person.key, person.certificate)
            options = [("grpc.ssl_target_name_override", "b"), ("grpc.max_send_message_length", -1)]
            async with grpc.aio.secure_channel(
                server.address, credentials, options=options
            ) as channel:
                call = channel.stream_stream(f"/{SERVICE}/Talk")()
                with pytest.raises(grpc.aio.AioRpcError) as caught:  # noqa: PT012
                    await call.write(bytes(8 * 2**20))
                    await call.read()
                assert caught.value.code() in (
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    grpc.StatusCode.CANCELLED,
                )
            assert server.heard == []

    run(work())


def test_one_stream_for_each_name_and_a_later_incarnation_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spodgt.peer.transport.in_links.TAKEOVER_SECONDS", 0.6)

    async def work() -> None:
        async with Server() as server, secure_channel(who("a"), server.address, "b") as old:
            call = old.stream_stream(f"/{SERVICE}/Talk")()
            await call.write(chunks(message(sender=Incarnation(3, 1)))[0])
            while not server.heard:
                await asyncio.sleep(0.02)
            for sender in (
                Incarnation(3, 2),
                Incarnation(2, 9),
                Incarnation(4, 5),
            ):  # a copy, an old copy, a copy that started later
                answer = await server.knock(who("a"), chunks(message(sender=sender)))
                assert "another process uses its name" in answer
            await asyncio.sleep(0.7)  # the old stream is silent: half-open, its host is gone
            assert await server.knock(who("a"), chunks(message(sender=Incarnation(4, 5)))) == "open"

    run(work())


def test_the_cause_of_a_dead_link_is_named() -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3)

    async def why(person: Identity, address: str) -> str:
        transport = Transport(LocalClient(context("a"), person, lambda *_: None, lambda *_: None))
        await transport.start("127.0.0.1:0", {"b": address}, {})
        while transport.out["b"].traffic.state != "down":
            await asyncio.sleep(0.05)
        text = transport.out["b"].traffic.why
        await transport.stop()
        return text

    async def work() -> None:
        async with Server(person=who("b", days=1, start=past)) as expired:
            assert "certificate has expired" in await why(who("a"), expired.address)
        assert "nobody listens" in await why(who("a"), expired.address)

    run(work())


def test_the_receiver_dials_and_the_sender_needs_no_way_to_it() -> None:
    """a → b where only a listens: b opens the stream, messages and acknowledgements flow as ever."""

    async def work() -> None:
        heard: list[Any] = []
        acks: list[Any] = []
        events: list[tuple[str, str]] = []
        sender = Transport(
            LocalClient(context("a"), who("a"), lambda s, f: acks.append(f), lambda *_: None)
        )
        port = await sender.start("127.0.0.1:0", {"b": ""}, {})
        sender.send_latest("b", message(1))
        await asyncio.sleep(0.1)
        assert "waiting for b to connect" in sender.out["b"].traffic.why
        tell = recorder(events)
        receiver = Transport(
            LocalClient(context("b"), who("b"), lambda s, f: heard.append((s, f)), tell)
        )
        await receiver.start("", {}, {"a": f"127.0.0.1:{port}"})
        assert receiver.listener.address == ""
        while not heard:
            await asyncio.sleep(0.02)
        assert (heard[0][0], heard[0][1].number) == ("a", 1)
        receiver.send_ack("a", Ack(0, 1, Incarnation(1, 9), Incarnation(1, 7)))
        while not acks:
            await asyncio.sleep(0.02)
        assert acks == [Ack(0, 1, Incarnation(1, 9), Incarnation(1, 7))]
        assert sender.out["b"].traffic.state == receiver.in_links.traffic["a"].state == "up"
        await receiver.stop()
        while sender.out["b"].traffic.state != "down":
            await asyncio.sleep(0.02)
        again = Transport(
            LocalClient(context("b"), who("b"), lambda s, f: heard.append((s, f)), tell)
        )
        await again.start("", {}, {"a": f"127.0.0.1:{port}"})
        sender.send_latest("b", message(2))
        while heard[-1][1].number < 2:
            await asyncio.sleep(0.02)
        # a second process with the same name is kept out as long as the first answers
        again.send_ack("a", Ack(0, 2, Incarnation(2, 9), Incarnation(1, 7)))
        while sender.out["b"].traffic.state != "up":
            await asyncio.sleep(0.02)
        copy = Transport(LocalClient(context("b"), who("b"), lambda *_: None, tell))
        await copy.start("", {}, {"a": f"127.0.0.1:{port}"})
        while "another process uses its name" not in copy.in_links.traffic["a"].why:
            await asyncio.sleep(0.02)
        for transport in (copy, again, sender):
            await transport.stop()

    run(work())


def test_who_may_fetch() -> None:
    """Only the receiver of a link that the receiver dials; both ends of others note the refusal."""
    sender_refusals: list[str] = []  # the other end of each
    receiver_refusals: list[str] = []

    async def work() -> None:
        sender = Transport(LocalClient(context("a"), who("a"), lambda *_: None, lambda *_: None))
        sender.local.on_refused_link = sender_refusals.append
        port = await sender.start("127.0.0.1:0", {"b": "127.0.0.1:9", "c": ""}, {})
        for name, allowed in (("b", False), ("z", False), ("c", True)):
            receiver = Transport(
                LocalClient(context(name), who(name), lambda *_: None, lambda *_: None)
            )
            receiver.local.on_refused_link = receiver_refusals.append
            await receiver.start("", {}, {"a": f"127.0.0.1:{port}"})
            refused = f"link a → {name} is not in the manifest"
            if allowed:
                sender.send_latest("c", message(1))
                while receiver.in_links.traffic["a"].state != "up":
                    await asyncio.sleep(0.02)
                # removed: its stream ends at once, and it does not come back
                sender.relink({"b": "127.0.0.1:9"}, {})
            while refused not in receiver.in_links.traffic["a"].why:
                await asyncio.sleep(0.02)
            await receiver.stop()
            assert set(sender_refusals) == {name}
            assert set(receiver_refusals) == {"a"}
            sender_refusals.clear()
            receiver_refusals.clear()
        await sender.stop()

    run(work())


def test_a_stream_that_has_sent_nothing_ends_when_its_client_is_removed() -> None:
    async def work() -> None:
        async with Server() as server, secure_channel(who("a"), server.address, "b") as channel:
            call = channel.stream_stream(f"/{SERVICE}/Talk")()
            await asyncio.wait_for(call.initial_metadata(), 5)  # accepted
            server.transport.relink({}, {})
            await asyncio.wait_for(call.code(), 5)  # before it is late with its message

    run(work())


def test_a_stream_ends_when_its_link_is_removed_in_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = GrpcIncomingCall.begin

    async def slow(self: GrpcIncomingCall, headers: Headers) -> None:
        await begin(self, headers)
        await asyncio.sleep(5)

    async def work() -> None:
        async with Server() as server, secure_channel(who("a"), server.address, "b") as channel:
            call = channel.stream_stream(f"/{SERVICE}/Talk")()
            await asyncio.wait_for(call.initial_metadata(), 5)
            server.transport.relink({}, {})
            await asyncio.wait_for(call.code(), 4)

    monkeypatch.setattr(GrpcIncomingCall, "begin", slow)
    run(work())


def test_a_stream_ends_when_its_link_is_removed_while_its_headers_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = GrpcIncomingCall.begin

    async def work() -> None:
        async with Server() as server, secure_channel(who("a"), server.address, "b") as channel:

            async def removed(self: GrpcIncomingCall, headers: Headers) -> None:
                asyncio.get_running_loop().call_soon(server.transport.relink, {}, {})
                await begin(self, headers)

            monkeypatch.setattr(GrpcIncomingCall, "begin", removed)
            call = channel.stream_stream(f"/{SERVICE}/Talk")()
            await asyncio.wait_for(call.code(), 4)

    run(work())


@pytest.mark.parametrize(
    ("theirs", "ours", "agreed"),
    [((1,), (1,), 1), ((1, 2), (1,), 1), ((1,), (1, 2), 1), ((1, 2), (2, 3), 2)],
)
def test_two_versions_use_the_highest_protocol_that_both_speak(
    theirs: tuple[int, ...], ours: tuple[int, ...], agreed: int
) -> None:
    async def work() -> None:
        heard: list[Any] = []
        acks: list[Any] = []
        new = replace(context("b"), protocols=theirs, version="0.2")
        old = replace(context("a"), protocols=ours, version="0.1")
        receiver = Transport(
            LocalClient(new, who("b"), lambda s, f: heard.append(f), lambda *_: None)
        )
        port = await receiver.start("127.0.0.1:0", {}, {"a": ""})
        sender = Transport(LocalClient(old, who("a"), lambda s, f: acks.append(f), lambda *_: None))
        await sender.start("", {"b": f"127.0.0.1:{port}"}, {})
        sender.send_latest("b", message(1))
        while not heard:
            await asyncio.sleep(0.02)
        receiver.send_ack("a", Ack(0, 1, Incarnation(1, 9), Incarnation(1, 7)))
        while not acks:
            await asyncio.sleep(0.02)
        assert receiver.in_links.streams["a"].context.protocols == (agreed,)
        assert (sender.out["b"].traffic.version, receiver.in_links.traffic["a"].version) == (
            "0.2",
            "0.1",
        )
        await sender.stop()
        await receiver.stop()

    run(work())


def test_versions_too_far_apart_are_refused_and_named() -> None:
    async def work() -> None:
        events: list[tuple[str, str]] = []
        new = replace(context("b"), protocols=(3, 4), version="0.3")
        receiver = Transport(LocalClient(new, who("b"), lambda *_: None, recorder(events)))
        port = await receiver.start("127.0.0.1:0", {}, {"a": ""})
        sender = Transport(LocalClient(context("a"), who("a"), lambda *_: None, lambda *_: None))
        await sender.start("", {"b": f"127.0.0.1:{port}"}, {})
        both = "a speaks protocol 1 and 2 (spodgt 0.1), we speak 3 and 4 (spodgt 0.3)"
        why = f"{both}; use neighbouring versions"
        while why not in sender.out["b"].traffic.why:
            await asyncio.sleep(0.02)
        assert ("refused", f"a: {why}") in events
        await sender.stop()
        await receiver.stop()

    run(work())


def test_a_renewed_certificate_is_used_without_a_restart() -> None:
    """Both ends begin with certificates of a second; a connection after that needs the new ones."""
    short = 1.5 / 86400

    async def work() -> None:
        async with Server(person=who("b", days=short)) as server:
            transport = Transport(
                LocalClient(context("a"), who("a", days=short), lambda *_: None, lambda *_: None)
            )
            await asyncio.sleep(1.6)
            await transport.start("", {"b": server.address}, {})
            while "certificate has expired" not in transport.out["b"].traffic.why:
                await asyncio.sleep(0.02)
            server.transport.renew(who("b"))
            transport.renew(who("a"))
            transport.send_latest("b", message(1))
            while not server.heard:
                await asyncio.sleep(0.02)
            await transport.stop()

    run(work())


def test_handshakes_replace_the_certificate_only_if_it_is_another() -> None:
    """gRPC swaps it under the handshakes that use it: done at each of 1,100, it crashed the process."""

    async def work() -> None:
        async with Server() as server:
            listening = server.transport.listener.server
            assert isinstance(listening, GrpcServer)
            assert listening.renewed() is None
            server.transport.renew(who("b"))
            assert listening.renewed() is not None
            assert listening.renewed() is None

    run(work())


@pytest.mark.parametrize("theirs", [True, False])
@pytest.mark.parametrize("dials", ["sender", "receiver"])
def test_an_open_stream_ends_with_a_certificate_and_is_opened_anew(
    theirs: bool, dials: str
) -> None:
    """The certificate of one end ends while messages flow; the stream comes back once it is renewed."""
    events: list[tuple[str, str]] = []

    async def work() -> None:
        heard: list[Any] = []
        short = {True: {"days": 2.0 / 86400}, False: {}}
        dialling, serving = ("a", "b") if dials == "sender" else ("b", "a")
        people = {
            dialling: who(dialling, **short[not theirs]),
            serving: who(serving, **short[theirs]),
        }
        sides = {
            name: Transport(
                LocalClient(
                    context(name),
                    people[name],
                    lambda s, f: heard.append(f),
                    lambda *e: events.append(e),
                )
            )
            for name in "ab"
        }
        links: dict[str, Any] = {"a": ({"b": ""}, {}), "b": ({}, {"a": ""})}
        port = await sides[serving].start("127.0.0.1:0", *links[serving])
        address = f"127.0.0.1:{port}"
        links = {"a": ({"b": address}, {}), "b": ({}, {"a": address})}
        await sides[dialling].start("", *links[dialling])
        sides["a"].send_latest("b", message(1))
        while not heard:
            await asyncio.sleep(0.02)
        into = sides["b"].in_links.traffic["a"]
        while into.state == "up":
            await asyncio.sleep(0.02)
        heard.clear()
        sides["a"].send_latest("b", message(2))
        await asyncio.sleep(0.5)
        assert not heard  # nobody gets in with it again
        name = serving if theirs else dialling
        sides[name].renew(who(name))
        while not heard:
            await asyncio.sleep(0.02)
        for side in sides.values():
            await side.stop()

    run(work())


def test_a_connection_of_before_its_certificate_ended_opens_no_stream() -> None:
    async def work() -> None:
        async with (
            Server() as server,
            secure_channel(who("a", days=1.5 / 86400), server.address, "b") as channel,
        ):
            await channel.channel_ready()
            await asyncio.sleep(1.6)
            call = channel.stream_stream(f"/{SERVICE}/Talk")()
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert await call.details() == "the certificate of a has expired"

    run(work())


def test_a_neighbour_that_moves_is_followed() -> None:
    async def work() -> None:
        async with Server() as server:
            transport = Transport(
                LocalClient(context("a"), who("a"), lambda *_: None, lambda *_: None)
            )
            await transport.start("", {"b": "127.0.0.1:9"}, {})
            transport.relink({"b": server.address}, {})
            transport.send_latest("b", message(1))
            while not server.heard:
                await asyncio.sleep(0.02)
            await transport.stop()

    run(work())


def test_a_server_moves_and_keeps_its_place_if_it_cannot() -> None:
    async def work() -> None:
        async with Server() as server, Server() as other:
            await server.transport.listener.move(other.address)
            assert "cannot listen" in server.events[-1][1]
            assert await server.knock(who("a"), chunks(message())) == "open"
            server.heard.clear()
            before = server.address
            await server.transport.listener.move("127.0.0.1:0")
            assert server.transport.listener.address == "127.0.0.1:0"
            server.address = before
            assert await server.knock(who("a"), chunks(message())) == "no connection"

    run(work())

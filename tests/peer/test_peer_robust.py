"""What must never end a peer or a link: exceptions, refusals, strangers, members that lie about numbers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import tempfile
import threading
import time
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from spodgt.errors import Failed
from spodgt.peer.host.interfaces import Rejected
from spodgt.peer.membership import run_folders
from spodgt.peer.monitoring import metrics
from spodgt.peer.monitoring.metrics import serve_metrics
from spodgt.peer.options import Options
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.main import Peer
from spodgt.peer.protocol.audit import local_error
from spodgt.peer.protocol.epoch_limit import AT_ONCE, STEP
from spodgt.peer.protocol.outlier_detection import OutlierDetector
from spodgt.peer.protocol.running_sums import MAX_JUMP, Ack, Incarnation, Refused
from spodgt.peer.storage import state_store
from spodgt.peer.storage.state_store import StoreFailed
from spodgt.peer.transport import access_control, connection, wire_format
from spodgt.peer.transport.access_control import AccessControl
from spodgt.peer.transport.connection import LocalClient, Traffic, fetch
from spodgt.peer.transport.grpc_wire import NO_CONNECTION, OPTIONS, SERVICE, probe, secure_channel
from spodgt.peer.transport.incoming_calls import IncomingCalls
from spodgt.peer.transport.links import Transport
from spodgt.tensors import new_row
from tests.peer.failures import make
from tests.peer.test_peer_node import lockstep
from tests.peer.test_peer_transport import Server, chunks, context, message, recorder, run, who
from tests.peer.world import World

pytestmark = pytest.mark.network


def sender(events: list[tuple[str, str]]) -> Transport:
    return Transport(LocalClient(context("a"), who("a"), lambda *_: None, recorder(events)))


async def until(condition: Any, seconds: float = 20) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(poll(), seconds)


@pytest.mark.parametrize(
    "error",
    [asyncio.InvalidStateError("RPC already finished."), asyncio.CancelledError(), KeyError("x")],
)
def test_no_exception_ends_a_link(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC has more exceptions for a call that ended than it documents."""
    pack, left = wire_format.pack, [error, error]

    def breaks(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return pack(*arguments)

    async def work() -> None:
        async with Server() as server:
            events: list[tuple[str, str]] = []
            transport = sender(events)
            await transport.start("127.0.0.1:0", {"b": server.address}, {})
            monkeypatch.setattr(wire_format, "pack", breaks)
            transport.send_latest("b", message())
            await until(lambda: server.heard)
            assert not left
            assert not transport.out["b"].task.done()
            assert events[0][0] == "link down"
            await transport.stop()

    run(work())


def test_a_link_that_ended_all_the_same_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.peer.transport.link_dialer.FIRST_PAUSE", 0.02)
    monkeypatch.setattr("spodgt.peer.transport.link_dialer.LONGEST_PAUSE", 0.05)

    async def work() -> None:
        async with Server() as server:
            events: list[tuple[str, str]] = []
            transport = sender(events)
            await transport.start("127.0.0.1:0", {"b": server.address}, {})
            await asyncio.sleep(0.05)
            transport.out["b"].task.cancel()  # by nobody who may
            transport.send_latest("b", message())
            await until(lambda: server.heard)
            assert ("failed", "a → b: cancelled") in events
            await transport.stop()

    run(work())


def test_no_space_for_a_message_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user of the receiver reads it, not the sender; the message arrives once there is space."""
    monkeypatch.setattr("spodgt.peer.transport.link_dialer.FIRST_PAUSE", 0.02)
    monkeypatch.setattr("spodgt.peer.transport.link_dialer.LONGEST_PAUSE", 0.05)
    attempts = []

    def no_space(n: int, dtype: torch.dtype) -> torch.Tensor:
        attempts.append(n)
        raise StoreFailed("state directory x could not be written: the disk is full.")

    async def work() -> None:
        async with Server() as server:
            server.transport.local.new_row = no_space
            events: list[tuple[str, str]] = []
            transport = sender(events)
            await transport.start("127.0.0.1:0", {"b": server.address}, {})
            transport.send_latest("b", message())
            await until(lambda: len(attempts) > 3)
            failures = [text for _, text in server.events if "disk is full" in text]
            assert len(failures) == 1
            assert not any("disk" in text for _, text in events)
            server.transport.local.new_row = new_row
            await until(lambda: server.heard)
            await transport.stop()

    run(work())


def test_links_come_up_after_many_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.peer.transport.link_dialer.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("spodgt.peer.transport.link_dialer.LONGEST_PAUSE", 0.03)

    async def work() -> None:
        async with Server() as server:
            server.transport.relink({}, {})  # the manifest is late
            senders = [sender([]) for _ in range(6)]
            for each in senders:
                await each.start("127.0.0.1:0", {"b": server.address}, {})
                each.send_latest("b", message())
            await until(lambda: len(server.events) > 100)
            server.transport.relink({}, {"a": ""})
            await until(lambda: server.heard)
            assert not any(each.out["b"].task.done() for each in senders)
            for each in senders:
                await each.stop()

    run(work())


def test_a_name_holds_two_streams_and_a_silent_one_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spodgt.peer.transport.in_links.FIRST_SECONDS", 1.0)

    async def work() -> None:
        async with Server() as server, secure_channel(who("a"), server.address, "b") as channel:
            silent = [channel.stream_stream(f"/{SERVICE}/Talk")() for _ in range(2)]
            await until(lambda: server.transport.access.open["a"] == 2)
            answer = await server.knock(who("a"), chunks(message()))
            assert "a holds 2 streams already" in answer
            await until(lambda: server.transport.access.open["a"] == 0)
            assert await server.knock(who("a"), chunks(message())) == "open"
            del silent

    run(work())


async def silent(
    server: Server, count: int
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connections on which nothing is said."""
    return [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]


async def closed(
    connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]], seconds: float
) -> int:
    """How many of them the server has ended by then."""
    await asyncio.sleep(seconds)
    ended = sum(reader.at_eof() or reader.exception() is not None for reader, _ in connections)
    for _, writer in connections:
        writer.close()
    return ended


def test_a_stranger_who_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC would keep a half-open handshake for two minutes; five seconds are enough, here a tenth of it."""
    key = "grpc.server_handshake_timeout_ms"
    sooner = [(name, value // 10 if name == key else value) for name, value in OPTIONS]
    monkeypatch.setattr("spodgt.peer.transport.grpc_wire.OPTIONS", sooner)

    async def work() -> None:
        async with Server() as server:
            assert await closed(await silent(server, 3), 1.5) == 3
            assert await server.knock(who("a"), chunks(message())) == "open"

    run(work())


def test_strangers_hold_so_many_connections_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.peer.transport.listener.CONNECTIONS", 4)

    async def work() -> None:
        async with Server() as server:  # with one neighbour: 4 + 2
            assert await closed(await silent(server, 30), 0.7) >= 24

    run(work())


def test_a_peer_takes_as_many_descriptors_as_it_may(home: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
    try:
        Peer(home, "p0", Options(durability="process", rounds=1)).run()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_sends_bad_frames_is_kept_out_by_the_server() -> None:
    async def work() -> None:
        async with Server() as server:
            for _ in range(access_control.REFUSALS):
                assert "is for 'x'" in await server.knock(who("a"), chunks(message(), receiver="x"))
            answer = await server.knock(who("a"), chunks(message()))
            assert f"a sent {access_control.REFUSALS} invalid frames and is banned" in answer

    run(work())


def test_bad_frames_keep_a_name_out_for_a_while() -> None:
    now = [0.0]
    kept = AccessControl(lambda: now[0])
    for _ in range(access_control.REFUSALS):
        with kept.stream("a"):
            kept.note_invalid_frame("a")
    with pytest.raises(Refused, match="banned for another 30 s"), kept.stream("a"):
        pass
    with kept.stream("b"):
        pass
    now[0] = access_control.BAN_SECONDS + 1
    with kept.stream("a"):
        kept.note_invalid_frame("a")  # one more is one, not six
    with kept.stream("a"):
        pass


def test_headers_and_logs_are_bounded(tmp_path: Path) -> None:
    """400 frames with 1 MB of text in `run` once wrote 1.9 GB into the log and kept as much in memory."""

    async def work() -> None:
        async with Server() as server:
            answer = await server.knock(who("a"), chunks(message(), run="x" * 10**6))
            assert "at most 4096 are allowed" in answer
            assert len(answer) < 400

    run(work())
    journal = Journal(tmp_path / "log.jsonl", "p0")
    for number in range(400):
        journal.event("refused", f"{number}" + "x" * 10**6, "p1")
    assert (tmp_path / "log.jsonl").stat().st_size < 1000
    assert journal.counts["refused"] == 400
    assert sum(len(text) for key in journal.last_logged for text in key) < 1000


def test_the_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.peer.process.journal._LOG_BYTES", 2000)
    journal = Journal(tmp_path / "log.jsonl", "p0")
    for number in range(200):
        journal.append({"event": "status", "number": number})
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 2200
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["number"] == 199


def test_the_largest_life_is_refused() -> None:
    """Believed, it would be one too many for a frame: the neighbour could never send again."""
    lie = Incarnation(2**64 - 1, 3)
    with pytest.raises(Refused, match="must be below 2\\^62"):
        wire_format.MessageAssembler(context("b"), "a").add(chunks(message(seen=lie))[0])
    packed = wire_format.pack_ack(context("b"), Ack(0, 1, Incarnation(1, 1), lie))
    with pytest.raises(Refused, match="must be below 2\\^62"):
        wire_format.unpack_ack(context("a"), packed)
    world = World(2)
    world.drain(3)
    node = world.nodes[1]
    frame = world.nodes[0].message("p1")
    assert frame is not None
    for far in (MAX_JUMP + 10, 2**61):
        life = Incarnation(far, 3)
        for lying in (
            frame._replace(seen=life),
            frame._replace(sender=life, number=frame.number + 1),
        ):
            node.receive("p0", lying)
            node.advance(False, [])
    node.receive("p0", Ack(0, 0, Incarnation(2**61, 1), node.incarnation))
    node.advance(False, [])
    assert node.incarnation.number == 1
    assert node.state.epoch == 0
    assert {kind for kind, _ in world.events} == {"refused"}
    world.drain(3)
    assert node.state.into["p0"].seen.number == 1
    assert local_error(node.state) <= 1e-12


def test_proofs_of_a_rollback_are_not_believed_for_ever() -> None:
    """A neighbour that acknowledges what was never sent made 72 epochs in 8 seconds."""
    world = World(2)
    world.drain(3)
    node = world.nodes[1]
    for _ in range(50):
        node.receive("p0", Ack(node.state.epoch, 10**6, Incarnation(1, 1), node.incarnation))
        node.advance(False, [])
    assert node.state.epoch == 4


def test_few_epochs_of_a_neighbour_are_followed() -> None:
    """A member that began an epoch in every message kept all others from learning: 292 in 15 seconds."""
    world = World(4)
    world.seconds = 0.0
    lockstep(world, 5)
    node = world.nodes[1]
    frame = world.nodes[0].message("p1")
    assert frame is not None
    for epoch in range(1, 100):
        node.receive("p0", frame._replace(epoch=epoch, number=1, base=0, acked=0))
        node.advance(False, [])
    assert node.state.epoch == AT_ONCE
    assert world.events[-1] == (
        "refused",
        "p1 p0: epoch 99 is not followed yet, rate limit: too many have begun within a minute",
    )
    assert node.epoch_limiter.ignored == {"p0": 99 - AT_ONCE}
    world.now += 60.0
    node.receive("p0", frame._replace(epoch=100, number=1, base=0, acked=0))
    node.advance(False, [])
    assert node.state.epoch == AT_ONCE + STEP  # on the way to it
    assert local_error(node.state) <= 1e-12


def test_honest_clients_find_together_though_one_was_led_far_ahead() -> None:
    """One client alone is shown frames that are 2^20 - 1 epochs ahead: the others must reach it again."""
    world = World(4, links=[(i, j) for i in range(4) for j in range(4) if i != j])
    world.seconds = 0.05
    alive = {1, 2, 3}
    lockstep(world, 5)
    node = world.nodes[1]
    frame = world.nodes[0].message("p1")
    assert frame is not None
    for _ in range(40):
        node.receive(
            "p0", frame._replace(epoch=node.state.epoch + 2**20 - 1, number=1, base=0, acked=0)
        )
        world.tick(1)
        world.flying.clear()  # nobody hears of the epochs on the way
    assert node.state.epoch == AT_ONCE * STEP
    lockstep(world, 40, alive=alive)
    assert {world.nodes[i].state.epoch for i in alive} == {AT_ONCE * STEP}
    assert not any(world.nodes[i].epoch_limiter.ignored["p1"] for i in alive)


def test_what_is_wrong_with_epochs_is_in_the_status_with_its_cure(home: Path) -> None:
    peer = Peer(home, "p0", Options(durability="process"))
    peer.node.epoch_limiter.ignored["p2"] = 7
    told = " ".join(warning.text for warning in peer.reporter._warnings())
    assert "p2 is in epochs that are not followed, 7 so far: if p2 begins them, remove it" in told
    assert "if not, any spodgt peer set makes a common epoch" in told
    peer.store.close()


def test_a_loss_that_is_not_finite_is_named_and_the_status_is_json(home: Path) -> None:
    peer = Peer(home, "p0", Options(durability="process", report_every=0.0))
    peer.reporter.report()
    assert not [each for each in peer.reporter.status.warnings if each.startswith("loss")]
    peer.node.outliers.detectors["p1"] = OutlierDetector(mass=float("inf"), distance=float("inf"))
    peer.transport.in_links.traffic["p1"] = Traffic(state="up")
    state = peer.node.state
    peer.node.state = state._replace(k=9, method=state.method._replace(x=state.method.x + 1e30))
    peer.reporter.report(last=True)
    assert "loss is not finite: the model has diverged" in peer.reporter.status.warnings
    refuse = {"parse_constant": lambda text: pytest.fail(f"{text} is no JSON")}
    body = json.loads((home / "status.json").read_text(), **refuse)  # type: ignore[arg-type]
    assert body["loss"] is None
    assert [
        n["distance"] for n in body["neighbours"] if n["name"] == "p1" and n["way"] == "from"
    ] == [None]
    for line in (home / "log.jsonl").read_text().splitlines():
        json.loads(line, **refuse)  # type: ignore[arg-type]
    told = peer.transport.calls.status("p1")
    assert told is not None
    json.loads(told, **refuse)  # type: ignore[arg-type]
    peer.store.close()


def test_texts_of_others_bring_no_lines_and_no_terminal_codes_into_a_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evil = "1.0)\n2026-11-18 link up: ALL WELL\x1b[31m\r\u202e\u2028"
    journal = Journal(tmp_path / "log.jsonl", "p1")
    with caplog.at_level("INFO"):
        journal.event("refused", f"p0: {evil}")
    assert caplog.messages == ["refused: p0: 1.0)?2026-11-18 link up: ALL WELL?[31m???"]
    assert journal.recent[-1][2].isprintable()
    traffic = Traffic()
    with pytest.raises(Refused) as error:
        connection.agree_on_protocol(
            context("b"), "a", {"spodgt-protocols": "9", "spodgt-version": evil}, traffic
        )
    assert traffic.version.isprintable()
    assert str(error.value).isprintable()


def test_the_reason_of_another_end_is_shown_without_control_characters() -> None:
    async def work() -> None:
        async with Server() as server:
            events: list[tuple[str, str]] = []
            transport = sender(events)
            await transport.start("127.0.0.1:0", {"b": server.address}, {})
            transport.out["b"].down("b refuses: no\nforged\x1b[2J")
            assert transport.out["b"].traffic.why == "b refuses: no?forged?[2J"
            await transport.stop()

    run(work())


async def held(server: Server, count: int) -> list[asyncio.StreamWriter]:
    """Connections of a certificate of the run that open no stream."""
    made = []
    own = who("a")
    tls = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=own.authority.decode())
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    tls.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder) / "pair.pem"
        pair.write_bytes(own.key + own.certificate)
        tls.load_cert_chain(pair)
    for _ in range(count):
        _, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=tls, server_hostname="b"
        )
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        made.append(writer)
    return made


def test_connections_without_a_stream_are_closed_and_full_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A removed client held all connections of a peer with its certificate; no neighbour could come back."""
    monkeypatch.setattr("spodgt.peer.transport.listener.CONNECTIONS", 4)
    monkeypatch.setattr("spodgt.peer.transport.grpc_wire.IDLE_MS", 3000)

    async def work() -> None:
        async with Server() as server:  # with one neighbour: 4 + 2
            assert not await server.transport.listener.check_full()
            await asyncio.sleep(0.5)
            connections = await held(server, 6)
            assert await server.transport.listener.check_full()
            why = await asyncio.to_thread(
                probe, server.transport.local.identity, server.address, "b"
            )
            assert NO_CONNECTION in why

            async def is_in() -> bool:
                return await server.knock(who("a"), chunks(message())) == "open"

            for _ in range(10):
                if await is_in():
                    break
                await asyncio.sleep(0.5)
            assert server.heard
            assert not await server.transport.listener.check_full()
            for writer in connections:
                writer.close()

    run(work())


def test_refused_requests_hold_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed client with 256 connections and a request on each every few seconds held a peer."""
    monkeypatch.setattr("spodgt.peer.transport.grpc_wire.IDLE_MS", 1000)
    monkeypatch.setattr("spodgt.peer.transport.grpc_wire.AGE_MS", 2000)

    async def work() -> None:
        async with Server() as server, secure_channel(who("z"), server.address, "b") as channel:
            await channel.channel_ready()
            for _ in range(40):
                call = channel.stream_stream(f"/{SERVICE}/Manifest")()
                assert "z is not in the manifest" in await call.details()
                await asyncio.sleep(0.2)
                if channel.get_state() is not grpc.ChannelConnectivity.READY:
                    return
            raise AssertionError("the connection is still open")

    run(work())


def test_limits_of_connections_end_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.peer.transport.grpc_wire.IDLE_MS", 300)
    monkeypatch.setattr("spodgt.peer.transport.grpc_wire.AGE_MS", 300)

    async def work() -> None:
        async with Server() as server:
            events: list[tuple[str, str]] = []
            transport = sender(events)
            await transport.start("127.0.0.1:0", {"b": server.address}, {})
            transport.send_latest("b", message())
            await until(lambda: server.heard)
            await asyncio.sleep(1.5)
            assert "link down" not in [kind for kind, _ in events]
            await transport.stop()

    run(work())


FILE = bytes(range(256)) * 12_000  # beyond one gRPC message


def test_an_answer_that_comes_too_slowly_or_is_too_large_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spodgt.peer.transport.connection.ANSWER_SECONDS", 0.5)

    async def slow(self: IncomingCalls, call: Any) -> None:
        while True:
            await call.write(b"#")
            await asyncio.sleep(0.05)

    monkeypatch.setattr(IncomingCalls, "_manifest", slow)

    async def work() -> None:
        async with Server() as server:
            server.transport.calls.status = lambda name: FILE
            with pytest.raises(Refused, match="b answers too slowly"):
                await fetch("Manifest", who("a"), server.address, "b")
            with pytest.raises(Refused, match="more than 100000 bytes"):
                await fetch("Status", who("a"), server.address, "b", 100_000)

    run(work())


def test_a_removed_client_reads_no_manifest() -> None:
    async def work() -> None:
        async with Server() as server:
            server.transport.calls.manifest = lambda name: FILE if name == "a" else None
            assert await fetch("Manifest", who("a"), server.address, "b") == FILE
            with pytest.raises(Rejected, match="z is not in the manifest"):
                await fetch("Manifest", who("z"), server.address, "b")
            async with secure_channel(who("a"), server.address, "b") as channel:
                # a request that is never sent whole holds nothing: the answer comes first
                call = channel.stream_stream(f"/{SERVICE}/Manifest")()
                assert await asyncio.wait_for(call.read(), 5)

    run(work())


def test_a_file_that_nobody_reads_is_held_twice_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spodgt.peer.transport.incoming_calls.CHUNK_SECONDS", 0.5)

    async def work() -> None:
        async with Server() as server, secure_channel(who("a"), server.address, "b") as channel:
            server.transport.calls.manifest = lambda name: bytes(40 * wire_format.CHUNK)
            calls = [channel.stream_stream(f"/{SERVICE}/Manifest")() for _ in range(3)]
            await until(lambda: server.transport.access.open["a (files)"] == 2)
            await until(lambda: server.transport.access.open["a (files)"] == 0)
            server.transport.calls.manifest = lambda name: b"text"
            assert await fetch("Manifest", who("a"), server.address, "b") == b"text"
            assert len(calls) == 3

    run(work())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return run_folders.issue(make(tmp_path / "run", clients=3), "p0")


def test_a_status_that_cannot_be_written_ends_nothing(home: Path) -> None:
    (home / "status.json").mkdir()
    (home / "log.jsonl").mkdir()
    peer = Peer(home, "p0", Options(durability="process", rounds=5))
    peer.run()
    assert peer.node.state.k == 6
    assert peer.journal.counts["status"] > 0


def test_a_client_whose_gradients_are_nan_names_it_and_ends_with_a_sentence(home: Path) -> None:
    peer = Peer(home, "p0", Options(durability="process", rounds=100, report_every=0.0))
    good, seen = peer.node.method_step.gradient, []

    def grad(x: torch.Tensor, k: int) -> torch.Tensor:
        seen.append(json.loads((home / "status.json").read_text())["warnings"] if k > 40 else [])
        return torch.full_like(x, torch.nan) if k >= 40 else good(x, k)

    peer.node.method_step.gradient = grad
    with pytest.raises(Failed, match="10 gradients in a row were not finite, the last in round 49"):
        peer.run()
    assert seen[-1] == ["gradients that were not finite, and not used: 9"]
    assert seen[40] == ["gradients that were not finite, and not used: 1"]  # in the report after it
    assert peer.journal.counts["not finite"] == 10
    assert peer.journal.counts["failed"] == 1
    saved = state_store.read(home / "state")
    assert torch.isfinite(saved.vectors["y"]).all()
    assert saved.meta["k"] == 49


def test_a_local_audit_that_is_no_number_ends_a_peer(home: Path) -> None:
    peer = Peer(home, "p0", Options(durability="process"))
    state = peer.node.state
    peer.node.state = state._replace(method=state.method._replace(y=state.method.y * torch.nan))
    with pytest.raises(StoreFailed, match="the local audit of p0 is nan, it must be zero"):
        peer.reporter.report()
    peer.store.close()


def test_a_silent_neighbour_is_named_and_dropped_if_that_is_wanted(home: Path) -> None:
    peer = Peer(home, "p0", Options(durability="process", report_every=0.0, drop_after=40.0))
    peer.transport.in_links.traffic = {"p1": Traffic(), "p2": Traffic()}
    peer.transport.listener.address = peer.membership.manifest.client("p0").address
    peer.transport.loop = asyncio.new_event_loop()
    node = peer.node
    for name in ("p1", "p2"):  # both have taken part
        node.state.into[name] = replace(node.state.into[name], number=3)
    peer.transport.in_links.traffic["p2"].last_received = time.monotonic()
    peer.reporter.begun -= 35
    peer.rounds._report()
    told = "p1 silent for 35 s: models are biased until it returns or is removed"
    assert peer.reporter.status.warnings == [told]
    assert json.loads((home / "status.json").read_text())["warnings"] == [told]
    assert node.state.epoch == peer.membership.manifest.epoch
    peer.reporter.begun -= 10
    peer.rounds._report()
    assert node.state.epoch == peer.membership.manifest.epoch + 1
    assert "p1: silent for 45 s; epoch" in next(
        t for _, kind, t, _ in peer.journal.recent if kind == "epoch"
    )
    peer.transport.loop.close()
    peer.store.close()


def test_a_state_whose_numbers_contradict_each_other_is_not_taken(home: Path) -> None:
    """The checksums are right and the local audit is not: a wrong number was once committed with them."""
    Peer(home, "p0", Options(durability="process", rounds=5)).run()
    with closing(
        state_store.DiskStateStore(home / "state", durability="process", labels={})
    ) as disk:
        saved = disk.load()
        assert saved is not None
        disk.commit({"y": saved.vectors["y"] + 1}, {**saved.meta, "k": 77})
    peer = Peer(home, "p0", Options(durability="process"))
    assert peer.node.state.k == 6
    assert local_error(peer.node.state) <= 1e-12
    assert "its local audit is" in next(
        text for _, kind, text, _ in peer.journal.recent if kind == "damaged"
    )
    peer.store.close()


def test_full_connections_are_warned_of_and_logged(home: Path) -> None:
    peer = Peer(home, "p0", Options(durability="process"))
    peer.transport.listener.is_full = True
    peer.reporter.report()
    (warning,) = peer.reporter.status.warnings
    assert warning.endswith("limit new connections per address in the firewall")
    assert warning in {event.text for event in peer.journal.recent if event.kind == "warning"}
    peer.store.close()


def test_flags_of_a_neighbour_end_after_some_time(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer(home, "p0", Options(durability="process", report_every=0.0, evaluate_every=0.0))
    detector = peer.node.outliers.detectors["p1"] = OutlierDetector(
        flags=1, last_ratio=1e9
    )  # it has sent something huge
    for _ in range(3):
        peer.reporter.report()
    assert peer.reporter.status.warnings[0].startswith("p1 sent 1 large messages")
    monkeypatch.setattr("spodgt.peer.process.status.FLAG_SECONDS", 0.0)  # the time is over
    peer.reporter.report()
    assert detector.flags == 0
    assert peer.reporter.status.warnings == []
    peer.store.close()


def test_a_key_is_never_copied_and_never_readable_by_others(home: Path, monkeypatch: Any) -> None:
    (home / "key.pem").chmod(0o644)
    run_folders.issue(home.parent, "p0")
    assert (home / "key.pem").stat().st_mode & 0o777 == 0o600
    peer = Peer(home, "p0", Options(durability="process"))
    monkeypatch.setattr(
        "tempfile.mkdtemp", lambda *_, **__: pytest.fail("a key in a temporary folder")
    )
    assert "nobody listens" in probe(peer.transport.local.identity, "127.0.0.1:1", "p1")
    with socket.create_server(("127.0.0.1", 0)) as there:  # who is there is shown the certificate
        there.listen()  # nobody answers: the handshake times out after the key was read
        probe(peer.transport.local.identity, f"127.0.0.1:{there.getsockname()[1]}", "p1")
    peer.store.close()


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
        return str(page.read().decode())


def test_silent_connections_to_the_metrics_hold_few_threads_and_no_scrape(home: Path) -> None:
    peer = Peer(home, "p0", Options(durability="process"))
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        port = serve_metrics(peer.reporter.status, peer.journal, 0)
        silent = []
        for _ in range(5 * metrics.CONNECTIONS):
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)))
        assert 'spodgt_peer_k{client="p0"}' in scrape(port)
        ended = silent[: 4 * metrics.CONNECTIONS]
        assert [connection.recv(1) for connection in ended] == [b""] * len(ended)
        # a thread for each connection, and the server's own
        assert threading.active_count() - before <= metrics.CONNECTIONS + 3
    peer.store.close()


def test_a_silent_connection_to_the_metrics_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics._QuietHandler, "timeout", 0.2)
    peer = Peer(home, "p0", Options(durability="process"))
    port = serve_metrics(peer.reporter.status, peer.journal, 0)
    with socket.create_connection(("127.0.0.1", port), 20) as half:
        half.sendall(b"GET /metrics HT")
        assert half.recv(1) == b""
    peer.store.close()


def test_the_exception_that_broke_a_link_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*arguments: Any) -> Any:
        raise ValueError("Value out of range: 4294967296")

    async def work() -> None:
        async with Server() as server:
            transport = sender([])
            await transport.start("127.0.0.1:0", {"b": server.address}, {})
            monkeypatch.setattr(wire_format, "pack", breaks)
            transport.send_latest("b", message())
            why = "answers, but the stream broke: ValueError: Value out of range: 4294967296"
            await until(lambda: why in transport.out["b"].traffic.why)
            await transport.stop()

    run(work())

"""Local rounds of whole peers, over a network in memory: when they wait and when they resume."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spodgt.experiment import Experiment
from spodgt.peer.membership import manifest_changes, run_folders
from spodgt.peer.options import Change, Deployment, Options
from spodgt.peer.process.main import Peer
from spodgt.peer.protocol.running_sums import Ack, Message

MAX_ALONE = 5


class Network:
    """Peers from their folders; a frame that is sent arrives at once, or never while `is_up` is False."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.options = Options(durability="process")
        self.is_up = True
        self.peers: dict[str, Peer] = {}

    def start(self, *names: str) -> None:
        """Start peers from what is on their disks, as after kill -9."""
        self.stop()
        self.peers = {name: Peer(self.run / name, name, self.options) for name in names}
        for name, peer in self.peers.items():
            peer.transport.send_latest = self._link_from(name)  # type: ignore[method-assign]
            peer.transport.send_ack = self._link_from(name)  # type: ignore[method-assign]
            peer.reporter.reported = math.inf  # no reports

    def _link_from(self, sender: str) -> Any:
        def send(receiver: str, frame: Message | Ack) -> None:
            if self.is_up and receiver in self.peers:
                self.peers[receiver].node.receive(sender, frame)

        return send

    def stop(self) -> None:
        for peer in self.peers.values():
            peer.store.close()

    def turns(self, count: int) -> None:
        """Let every peer take `count` turns: a local round each, or a wait."""
        for _ in range(count):
            for peer in self.peers.values():
                peer.rounds.step()

    def rounds(self) -> dict[str, int]:
        return {name: peer.node.state.k for name, peer in self.peers.items()}

    def waiting(self) -> set[str]:
        return {name for name, peer in self.peers.items() if peer.reporter.status.waiting}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.peer.process.round_loop._WAIT", 0.0)
    monkeypatch.setattr("spodgt.peer.process.publisher._SEND_AGAIN", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def make(folder: Path, method: str | dict[str, Any], p_hat: float = 1.0) -> list[str]:
    config = Experiment.parse(
        {
            "run": {"methods": [method], "step_size": 0.02, "seeds": 1},
            "network": {"kind": "exponential", "clients": 4},
            "participation": {"kind": "always"},
            "problem": {"kind": "quadratic", "parameters": 3, "seed": 1},
        }
    )
    manifest = run_folders.create(folder, config, Deployment(max_alone=MAX_ALONE))
    if p_hat < 1:
        links: dict[tuple[str, str], dict[str, object]] = {}
        for link in manifest.links:
            links[link.sender, link.receiver] = {"p_hat": p_hat}
        run_folders.publish_next(
            folder, lambda before: manifest_changes.apply_change(before, Change(links=links))
        )
    for name in manifest.names:
        run_folders.issue(folder, name)
    return manifest.names


@pytest.fixture
def network(folder: Path) -> Iterator[Network]:
    made = Network(folder)
    yield made
    made.stop()


def outage(network: Network, turns: int = 10 * MAX_ALONE) -> None:
    network.is_up = False
    network.turns(turns)
    assert network.waiting() == set(network.peers)  # all of them, for good
    network.is_up = True


def assert_all_go_on(network: Network) -> None:
    """Every peer makes rounds, more than any bound on rounds without news allows."""
    before = network.rounds()
    network.turns(20 * MAX_ALONE)
    after = network.rounds()
    assert all(after[name] - before[name] > 5 * MAX_ALONE for name in before), (before, after)


METHODS: dict[str, Any] = {
    "memory": "spod-gt-memory",
    "relay": "relay",
    "local steps": {"name": "spod-gt-memory", "local_steps": 2 * MAX_ALONE},
}


@pytest.mark.parametrize("method", METHODS)
def test_peers_resume_when_all_are_restarted_after_an_outage(
    method: str, folder: Path, network: Network
) -> None:
    names = make(folder, METHODS[method])
    network.start(*names)
    network.turns(10 * MAX_ALONE)
    outage(network)
    network.start(*names)
    assert_all_go_on(network)


@pytest.mark.parametrize("method", METHODS)
def test_peers_resume_after_an_outage_without_a_restart(
    method: str, folder: Path, network: Network
) -> None:
    names = make(folder, METHODS[method])
    network.start(*names)
    network.turns(10 * MAX_ALONE)
    outage(network)
    assert_all_go_on(network)


def test_peers_resume_when_a_root_was_removed_while_all_were_down(
    folder: Path, network: Network
) -> None:
    names = make(folder, "relay")
    network.start(*names)
    network.turns(10 * MAX_ALONE)
    outage(network)
    root = run_folders.load(folder).root
    run_folders.remove(folder, root)
    network.start(*(name for name in names if name != root))
    assert_all_go_on(network)


def test_peers_on_links_that_are_rarely_used_do_not_all_wait_for_ever(
    folder: Path, network: Network
) -> None:
    names = make(folder, "spod-gt-memory", p_hat=0.001)
    network.start(*names)
    assert_all_go_on(network)


def test_peers_commit_before_they_wait(folder: Path, network: Network) -> None:
    names = make(folder, "spod-gt-memory")
    network.options = replace(network.options, commit_every=1000)  # nothing is sent before a commit
    network.start(*names)
    assert_all_go_on(network)


def test_a_peer_that_hears_nobody_waits_although_its_own_messages_are_acknowledged(
    folder: Path, network: Network
) -> None:
    names = make(folder, "spod-gt-memory")
    network.start(*names)
    network.turns(10 * MAX_ALONE)
    alone = network.peers["p0"]
    receive = alone.node.receive

    def only_acks(sender: Any, frame: Any) -> None:
        if isinstance(frame, Ack):
            receive(sender, frame)

    alone.node.receive = only_acks  # type: ignore[assignment, method-assign]
    before = alone.node.state.k
    network.turns(20 * MAX_ALONE)
    assert "p0" in network.waiting()
    assert alone.node.state.k - before <= MAX_ALONE + 1


def test_a_peer_sends_before_its_first_round(folder: Path, network: Network) -> None:
    """Also one that has made all its rounds: its neighbours may wait for the acknowledgement of theirs."""
    names = make(folder, "spod-gt-memory")
    network.start(*names)
    peer = network.peers["p0"]
    sent: list[str] = []
    peer.transport.send_latest = lambda target, message: sent.append(target)  # type: ignore[method-assign]
    peer.rounds.halt.set()
    peer.rounds.run()
    assert sorted(sent) == sorted(peer.node.state.out)

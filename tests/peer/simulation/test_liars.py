"""What a member that lies cannot do: the promises of SECURITY.md, with whole peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest
import torch

from spodgt.peer.membership import manifest_changes
from spodgt.peer.options import Change
from spodgt.peer.process.main import Peer
from spodgt.peer.protocol.epoch_limit import AT_ONCE
from tests.peer.simulation import liars
from tests.peer.simulation.cluster import Cluster
from tests.peer.simulation.liars import EpochStorm, HugeAtFirst, NewNumbers, lie
from tests.peer.simulation.plan import Setup
from tests.peer.simulation.simulator import quiet
from tests.peer.simulation.virtual import VirtualLoop

LIAR = "p0"
HONEST = ("p1", "p2", "p3")


class Town:
    """Four peers, of which one lies after ten seconds."""

    def __init__(self, method: str) -> None:
        self.loop = VirtualLoop()
        self.cluster = Cluster(Setup(method=method, clients=4, max_alone=0), Random(1), self.loop)

    @property
    def honest(self) -> dict[str, Peer]:
        peers = self.cluster.running()
        return {name: peers[name] for name in HONEST}

    def let_pass(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        if self.cluster.failure is not None:
            raise self.cluster.failure

    def begin(self, change: Callable[[Peer], None]) -> None:
        for name in self.cluster.hosts:
            self.cluster.after(0, lambda name=name: self.cluster.start(name))  # type: ignore[misc]
        self.let_pass(10.0)
        change(self.cluster.running()[LIAR])
        self.cluster.checks.set_back[LIAR] = 2**62  # what it says of itself is not checked

    def remove_liar(self) -> None:
        """The operator removes it; all others must be well again."""
        manifest = manifest_changes.remove_client(self.cluster.manifest, LIAR)
        self.cluster.publish(manifest, "p1")
        self.cluster.give_manifest(LIAR)
        self.let_pass(40.0)
        peers = self.honest
        found = self.cluster.checks.obstacles(peers, manifest)
        assert not [text for text in found if "large messages" not in text], found

    def warnings(self) -> list[str]:
        return [text for peer in self.honest.values() for text in peer.reporter.status.warnings]


@contextmanager
def town(method: str = "spod-gt-memory") -> Iterator[Town]:
    with quiet():
        made = Town(method)
        try:
            yield made
        finally:
            made.loop.run_until_complete(made.cluster.close())
            made.loop.close()


def resets(peer: Peer) -> int:
    """Epochs in which a peer has begun anew."""
    return peer.journal.counts["epoch"]


@pytest.mark.parametrize("step", [1, liars.FAR])
def test_a_liar_that_begins_epochs_is_followed_into_few_and_named(step: int) -> None:
    with town() as made:
        made.begin(lambda peer: lie(peer, EpochStorm(step)))
        made.let_pass(60.0)
        for peer in made.honest.values():
            # each of the three neighbours may be followed a few times, and once a minute
            assert resets(peer) <= 3 * (AT_ONCE + 2)
        about = [text for text in made.warnings() if text.startswith(f"{LIAR} is ")]
        assert any("epochs" in text for text in about)
        made.remove_liar()


def test_a_liar_cannot_make_itself_the_root() -> None:
    with town("relay") as made:
        root = made.cluster.manifest.root
        place = made.cluster.manifest.client(LIAR).place
        if root == LIAR:
            manifest = manifest_changes.apply_change(made.cluster.manifest, Change(root="p1"))
            made.cluster.manifest = manifest
            for name in made.cluster.hosts:
                made.cluster.give_manifest(name)
        made.begin(lambda peer: lie(peer, liars.other_root(place)))
        made.let_pass(20.0)
        for peer in made.honest.values():
            assert peer.node.topology.root == made.cluster.manifest.root
            assert peer.node.state.epoch == made.cluster.manifest.epoch
            assert not torch.equal(peer.node.state.method.x, torch.full((1, 3), 7.0))
        made.remove_liar()


def test_a_liar_with_huge_numbers_is_named() -> None:
    with town() as made:
        made.begin(lambda peer: lie(peer, NewNumbers(liars.huge_model)))
        made.let_pass(30.0)
        assert any(text.startswith(f"{LIAR} sent") for text in made.warnings())


def test_a_liar_with_huge_numbers_early_in_an_epoch_is_named() -> None:
    with town() as made:
        made.begin(lambda peer: lie(peer, HugeAtFirst(peer.node.state.epoch)))
        made.let_pass(20.0)
        assert any(text.startswith(f"{LIAR} sent") for text in made.warnings())


def test_a_liar_cannot_put_nan_into_a_model() -> None:
    with town() as made:
        made.begin(lambda peer: lie(peer, NewNumbers(liars.not_a_number)))
        made.let_pass(20.0)
        for peer in made.honest.values():
            assert torch.isfinite(peer.node.state.method.x).all()
        made.remove_liar()


def test_a_liar_cannot_use_up_numbers() -> None:
    with town() as made:
        made.begin(lambda peer: lie(peer, liars.largest_incarnation))
        made.let_pass(20.0)
        for peer in made.honest.values():
            assert peer.node.incarnation.number < 10
            assert peer.node.state.epoch < made.cluster.manifest.epoch + 10
        made.remove_liar()


def test_a_liar_cannot_spread_a_forged_manifest() -> None:
    with town() as made:

        def begin_to_lie(peer: Peer) -> None:
            liars.forge_manifest(peer, made.cluster.manifest)
            lie(peer, liars.later_version)

        made.begin(begin_to_lie)
        made.let_pass(20.0)
        for peer in made.honest.values():
            assert peer.membership.manifest.version == 1
        refused = [peer.journal.counts["failed"] for peer in made.honest.values()]
        assert any(refused)  # it was fetched, and is not signed by the authority
        made.remove_liar()

"""The protocol under every schedule of faults: mass is conserved, and early senders are caught."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from spodgt.peer.protocol import running_sums
from spodgt.peer.protocol.audit import audit, local_error
from spodgt.peer.protocol.client_state import state_from
from spodgt.peer.protocol.frame_processing import FrameProcessor
from spodgt.peer.protocol.node import Node
from tests.peer.world import Noisy, World

EXACT = 1e-12
CRASHES = ("", "", "", "before commit", "after commit", "after send")


class SendsEarly(Node):
    """A mutant: what a round has put on links is shown before it is on disk."""

    def advance(self, computes: bool, links: Any) -> None:
        super().advance(computes, links)
        self.committed = self.state


class AcksEarly(Node):
    """A mutant: acknowledges what it has only in memory."""

    def ack(self, name: str) -> Any:
        link = self.state.into[name]
        return running_sums.Ack(self.state.epoch, link.number, self.incarnation, link.seen)


class Schedules(RuleBasedStateMachine):
    """Any order of rounds, losses, duplicates, late frames, crashes and restarts."""

    node: type[Node] = Node

    @initialize(clients=st.integers(2, 4), every=st.sampled_from([1, 3, 64]))
    def begin(self, clients: int, every: int) -> None:
        self.world = World(clients, rebase_every=every, node=self.node)
        self.set_back = False
        self.exchange(2)

    @rule(rounds=st.integers(1, 3))
    def exchange(self, rounds: int) -> None:
        """Some good rounds, so that schedules get somewhere."""
        for _ in range(rounds):
            for i in range(self.world.m):
                self.world.tick(i)
            while self.world.flying:
                self.world.deliver(0)

    @rule(
        i=st.integers(0, 3),
        computes=st.booleans(),
        links=st.integers(0, 3),
        crash=st.sampled_from(CRASHES),
    )
    def tick(self, i: int, computes: bool, links: int, crash: str) -> None:
        i %= self.world.m
        chosen = [name for bit, name in enumerate(self.world.outs[i]) if links >> bit & 1]
        mutant = self.world.kind is not Node and crash == "before commit"
        if mutant:  # the mutant's frames are out before the crash
            node = self.world.nodes[i]
            node.advance(computes, chosen)
            self.world.send(i, acks=set(self.world.ins[i]))
            self.deliver_all()  # and are taken before its next incarnation sends
            for other in set(range(self.world.m)) - {i}:
                self.world.tick(other, links=[])
            self.world.crash(i)
        else:
            self.world.tick(i, computes, chosen, crash=crash)

    @rule(i=st.integers(0, 3))
    def rest(self, i: int) -> None:
        """A client that has done its rounds still takes what comes."""
        self.world.rest(i % self.world.m)

    @rule(at=st.integers(0, 10**6), keep=st.booleans())
    def deliver(self, at: int, keep: bool) -> None:
        if self.world.flying:
            self.world.deliver(at % len(self.world.flying), keep=keep)

    @rule()
    def deliver_all(self) -> None:
        """Everything arrives and waits for the next rounds."""
        while self.world.flying:
            self.world.deliver(0)

    @rule(at=st.integers(0, 10**6))
    def drop(self, at: int) -> None:
        if self.world.flying:
            self.world.flying.pop(at % len(self.world.flying))

    @rule(i=st.integers(0, 3))
    def crash(self, i: int) -> None:
        self.world.crash(i % self.world.m)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "world"):
            return
        for node in self.world.nodes:
            assert local_error(node.state) <= EXACT
        found = self.world.audit()
        if not self.set_back:
            assert not self.world.events, self.world.events[0]
            assert found.error is not None
            assert found.problems == []
        if found.error is not None and not found.problems and not self.set_back:
            assert found.error <= EXACT

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()
            found = self.world.audit()
            assert self.set_back or not self.world.events, self.world.events[0]
            assert found.problems == []
            assert found.error is not None
            assert found.error <= EXACT


class WithRollback(Schedules):
    """The same, and disks that are set back to an older copy or lost altogether."""

    @initialize()
    def copies(self) -> None:
        self.copies_of: list[tuple[int, Any]] = []

    @rule(i=st.integers(0, 3))
    def copy_disk(self, i: int) -> None:
        i %= self.world.m
        self.copies_of.append((i, copy.deepcopy(self.world.stores[i])))

    @rule(at=st.integers(0, 100))
    def set_disk_back(self, at: int) -> None:
        if self.copies_of:
            i, old = self.copies_of[at % len(self.copies_of)]
            self.set_back = True
            self.world.stores[i] = copy.deepcopy(old)
            self.world.crash(i)

    @rule(i=st.integers(0, 3))
    def lose_disk(self, i: int) -> None:
        i %= self.world.m
        self.set_back = True
        self.world.stores[i] = type(self.world.stores[i])()
        self.world.crash(i)


LIMITS = settings(
    max_examples=10, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("machine", [Schedules, WithRollback])
def test_no_schedule_loses_mass(machine: Any) -> None:
    run_state_machine_as_test(machine, settings=LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Schedules, WithRollback])
def test_no_schedule_loses_mass_long(machine: Any) -> None:
    limits = settings(LIMITS, max_examples=1500, stateful_step_count=80)
    run_state_machine_as_test(machine, settings=limits)


@pytest.mark.parametrize("mutant", [SendsEarly, AcksEarly])
def test_mutants_that_speak_before_they_commit_are_caught(mutant: type[Node]) -> None:
    machine = type("Mutant", (Schedules,), {"node": mutant})
    limits = settings(
        LIMITS,
        max_examples=60,
        stateful_step_count=20,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    with pytest.raises(Exception) as caught:  # noqa: PT011  (one assertion, or a group of them)
        run_state_machine_as_test(machine, settings=limits)
    assert isinstance(caught.value, AssertionError) or hasattr(caught.value, "exceptions")


def chaos(
    world: World,
    ticks: int,
    seed: int,
    *,
    loss: float = 0.3,
    twice: float = 0.1,
    crash: float = 0.01,
    early: bool = False,
) -> float:
    """Random faults; the worst global error seen on the disks."""
    draw, worst = random.Random(seed), 0.0
    for tick in range(ticks):
        i = draw.randrange(world.m)
        point = draw.choice(CRASHES[3:]) if draw.random() < crash else ""
        if early and point == "before commit":
            world.nodes[i].advance(True, list(world.outs[i]))
            world.send(i, acks=set(world.ins[i]))
            world.crash(i)
        else:
            world.tick(
                i,
                draw.random() < 0.7,
                [name for name in world.outs[i] if draw.random() < 0.7],
                crash=point,
            )
        for _ in range(4):
            if world.flying and draw.random() < 0.9:
                at = draw.randrange(max(1, len(world.flying) // 2))
                if draw.random() < loss:
                    world.flying.pop(at)
                else:
                    world.deliver(at, keep=draw.random() < twice)
        del world.flying[60:]
        if tick % 10 == 0:
            worst = max(worst, world.audit().error or 0.0)
    return worst


@pytest.mark.parametrize("seed", range(2))
def test_loss_duplicates_reordering_and_crashes_cost_nothing_and_it_converges(seed: int) -> None:
    world = World(5, n=6, rebase_every=8)
    worst = chaos(world, 1500, seed)
    world.drain()
    assert worst <= EXACT
    assert world.audit().error <= EXACT  # type: ignore[operator]
    assert world.events == []
    assert (world.x() - world.optimum).abs().max() < 0.2


@pytest.mark.parametrize("mutant", [SendsEarly, AcksEarly])
def test_without_the_rollback_rule_early_senders_lose_mass(
    mutant: type[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch reset would heal a mutant; with it switched off the hole shows in the audit."""

    monkeypatch.setattr(FrameProcessor, "_recover", lambda *_: True)
    monkeypatch.setattr(FrameProcessor, "_restart", lambda *_: None)
    world = World(5, n=6, rebase_every=1, node=mutant)
    chaos(world, 2000, 1, crash=0.05, early=True)
    world.drain()
    found = world.audit()
    assert found.problems or found.error is None or found.error > 1e-3


def test_a_quiet_link_starts_from_zero() -> None:
    world = World(2, rebase_every=1)
    world.exchange(20)
    world.drain(3)
    for node in world.nodes:
        for link in node.state.out.values():
            assert link.base == link.number > 0
            assert not link.total.any()


def test_an_audit_without_a_neighbour_does_not_pass() -> None:
    world = World(3)
    world.exchange(5)
    states = {
        name: state_from(v.vectors, v.meta)
        for name, v in zip(world.names, world.stores, strict=True)
    }
    assert audit(states).passed(EXACT)
    del states["p2"]
    found = audit(states)
    assert sorted(found.problems) == [
        "link p0 → p2: no state of p2 was given",
        "link p1 → p2: no state of p2 was given",
        "link p2 → p0: no state of p2 was given",
        "link p2 → p1: no state of p2 was given",
    ]
    assert not found.passed(math.inf)


def test_poison_is_refused_and_changes_nothing() -> None:
    world = World(2)
    world.drain(3)
    node = world.nodes[1]
    frame = world.nodes[0].message("p1")
    assert frame is not None
    before = node.state
    for bad in (float("nan"), float("inf")):
        poison = torch.full_like(frame.total, bad)
        node.receive("p0", frame._replace(number=frame.number + 1, total=poison))
        node.advance(False, [])
        assert node.state.into["p0"].number == before.into["p0"].number
    assert [kind for kind, _ in world.events] == ["refused", "refused"]
    assert local_error(node.state) <= EXACT


@pytest.mark.slow
@pytest.mark.parametrize("rebase_every", [64, 10**9])
def test_twenty_thousand_rounds_of_float32_links(rebase_every: int) -> None:
    world = Noisy(2, n=4, rebase_every=rebase_every)
    world.exchange(20_000)
    assert world.audit().error <= 1e-11  # type: ignore[operator]


def test_what_leaves_y_is_what_enters_the_link() -> None:
    """The mass that leaves y is what the rounded total gained."""
    draws = torch.Generator().manual_seed(1)
    total, y = torch.randn(500, generator=draws), torch.randn(500, generator=draws).double() * 1e-3
    link = running_sums.OutLink(0.3, total)
    after, mass = running_sums.add_mass(link, y)
    assert torch.equal(after.total.double() - total.double(), mass.part(slice(None)))
    torch.testing.assert_close(after.total.double(), total.double() + 0.3 * y, rtol=1e-6, atol=1e-7)
    assert after.total.dtype == torch.float32

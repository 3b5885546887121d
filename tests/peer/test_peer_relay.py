"""`relay` between peers: trees from the manifest, roots that die, return or are set back; nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spodgt
from spodgt.peer.audit import local_error
from spodgt.peer.protocol import Crew
from tests.peer.test_peer_node import lockstep
from tests.peer.world import World

EXACT = 1e-12
TWO_WAY = [(i, (i + s) % 5) for i in range(5) for s in (1, 4)]  # a ring
EXPONENTIAL = [(i, (i + s) % 5) for i in range(5) for s in (1, 2)]
ONE_WAY = [(i, (i + 1) % 5) for i in range(5)] + [(0, 2), (3, 0)]


def relayed(links: list[tuple[int, int]], *, step: float = 0.4, **fields: object) -> World:
    world = World(5, rebase_every=8, step=step, method="relay", links=links)
    if fields:
        world.algorithm = spodgt.method("relay", step_size=step, **fields)
        world.vaults = [type(vault)() for vault in world.vaults]
        world.nodes = [world.start(i) for i in range(5)]
    return world


def far(world: World, among: Iterable[int] = range(5), of: Iterable[int] | None = None) -> float:
    """The largest relative distance of some clients' models from their optimum, or from that `of` others."""
    rows, best = list(among), list(of or among)
    optimum = (world.h[best] * world.c[best]).sum(0) / world.h[best].sum(0)
    return float(((world.x()[rows] - optimum).norm(dim=1) / optimum.norm()).max())


def jump(world: World, among: Iterable[int], rounds: int) -> float:
    """The farthest, relative to the optimum, that a model of some clients moves in one of the next rounds."""
    rows, before, most = list(among), world.x(), 0.0
    for _ in range(rounds):
        lockstep(world, 1)
        most = max(most, float((world.x() - before)[rows].norm(dim=1).max() / world.optimum.norm()))
        before = world.x()
    return most


def roots(world: World, among: Iterable[int] = range(5)) -> set[str]:
    return {world.nodes[i].seats.leader(world.nodes[i].state.crew) for i in among}


def exact(world: World) -> None:
    for node in world.nodes:
        assert local_error(node.state) <= EXACT
    found = world.audit()
    assert found.problems == []
    assert found.error is not None
    assert found.error <= EXACT


@pytest.mark.parametrize(
    ("links", "fields"),
    [
        (TWO_WAY, {}),
        (ONE_WAY, {}),
        (ONE_WAY, {"proximal": 0.1}),
        (TWO_WAY, {"adam": True}),
        (TWO_WAY, {"running_mean": 0.2}),
    ],
)
def test_relay_reaches_the_optimum_and_loses_nothing(
    links: list[tuple[int, int]], fields: dict[str, object]
) -> None:
    world = relayed(links, step=0.04 if "adam" in fields else 0.4, **fields)
    for _ in range(30):
        lockstep(world, 10)
        assert world.audit().error <= EXACT  # type: ignore[operator]
    exact(world)
    assert far(world) < (0.2 if "adam" in fields else 1e-6)
    (root,) = roots(world)
    assert [node.member.lead for node in world.nodes if node.member.lead] == [1 / 5]
    used = sum(len(node.part.sends) for node in world.nodes)
    idle = [
        link for node in world.nodes for name, link in node.state.out.items() if name not in node.part.sends
    ]
    assert used + len(idle) == len(links)
    assert all(link.number == 0 for link in idle), root  # links of no tree carry nothing


@pytest.mark.parametrize("links", [TWO_WAY, EXPONENTIAL])
def test_a_root_that_dies_is_replaced_and_never_leads_with_an_old_model(links: list[tuple[int, int]]) -> None:
    world = relayed(links)
    lockstep(world, 5)
    (name,) = roots(world)
    root = int(name[1:])
    rest = set(range(5)) - {root}
    lockstep(world, 20, alive=rest)
    assert far(world, rest) > 0.01  # nobody leads
    neighbour = world.links[[s for s, _ in world.links].index(root)][1]
    assert world.nodes[neighbour].drop(name, "silent for 60 s")
    assert not world.nodes[neighbour].drop(name, "silent for 60 s")
    lockstep(world, 300, alive=rest)
    (successor,) = roots(world, rest)
    assert successor != name
    assert far(world, rest) < 1e-6
    assert far(world, [root], rest) > 0.7
    world.crash(root)  # it returns with its old model
    assert jump(world, rest, 10) < 0.5  # and all go on from where they are
    assert roots(world) == {successor}
    assert not any(node.state.crew.absent for node in world.nodes)
    lockstep(world, 300)
    assert far(world) < 1e-6
    exact(world)


def test_a_root_that_loses_its_disk_follows_another() -> None:
    world = relayed(TWO_WAY)
    lockstep(world, 300)
    (name,) = roots(world)
    root = int(name[1:])
    world.vaults[root] = type(world.vaults[root])()
    world.crash(root)
    assert far(world, [root], range(5)) > 0.9
    assert jump(world, set(range(5)) - {root}, 10) < 0.5  # nobody goes back to the initial model
    assert roots(world).isdisjoint({name})
    lockstep(world, 300)
    assert far(world) < 1e-6
    exact(world)


def test_epochs_of_one_number_become_one() -> None:
    """Two clients go on without a neighbour each, and neither knows of the other's decision."""
    world = relayed([(i, j) for i in range(5) for j in range(5) if i != j])
    lockstep(world, 20)
    alive = {0, 1, 2}
    world.flying.clear()
    world.nodes[1].drop("p3", "gone")
    world.nodes[2].drop("p4", "gone")
    assert world.nodes[1].state.crew != world.nodes[2].state.crew
    lockstep(world, 20, alive)
    assert {world.nodes[i].state.crew.marks for i in alive} == {((3, 1), (4, 1))}
    assert len({world.nodes[i].state.epoch for i in alive}) == 1
    lockstep(world, 300, alive)
    assert far(world, alive) < 1e-6
    world.crash(3)
    world.crash(4)
    lockstep(world, 300)
    assert not any(node.state.crew.absent for node in world.nodes)
    assert far(world) < 1e-6
    exact(world)


def test_a_neighbour_that_only_this_client_cannot_hear_is_given_up_once() -> None:
    """Else epochs would follow each other for ever: the other one announces itself by other ways."""
    world = relayed([(i, j) for i in range(5) for j in range(5) if i != j])
    lockstep(world, 20)
    deaf = {("p1", "p2"), ("p2", "p1")}
    dropped = 0
    for _ in range(30):
        dropped += world.nodes[1].drop("p2", "silent for 60 s")
        for i in range(5):
            world.tick(i)
        while world.flying:
            if world.flying[0][:2] in deaf:
                world.flying.pop(0)
            else:
                world.deliver(0)
    assert dropped == 1
    assert not any(node.state.crew.absent for node in world.nodes)
    exact(world)


def test_a_crew_that_cannot_be_is_refused() -> None:
    world = relayed(TWO_WAY)
    lockstep(world, 5)
    node, frame = world.nodes[1], world.nodes[0].message("p1")
    assert frame is not None
    for crew in (Crew(0, 9), Crew(0, 0, ((0, 1),)), Crew(0, 1, ((77, 1),)), Crew()):
        node.hear("p0", frame._replace(epoch=frame.epoch + 1, crew=crew))
        node.advance(True, [])
        assert node.state.epoch == 0
        assert world.events[-1][0] == "refused"
    other = World(5)
    told = other.nodes[0].message("p1")
    assert told is not None
    other.nodes[1].hear("p0", told._replace(crew=Crew(0, 1)))
    other.nodes[1].advance(True, [])
    assert other.nodes[1].state.epoch == 0
    assert other.events[-1][0] == "refused"


@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_no_schedule_of_losses_crashes_and_departures_loses_mass(data: st.DataObject) -> None:
    world = relayed(data.draw(st.sampled_from([TWO_WAY, ONE_WAY])))
    for _ in range(data.draw(st.integers(10, 40))):
        i = data.draw(st.integers(0, 4))
        what = data.draw(
            st.sampled_from(["tick", "tick", "tick", "deliver", "deliver", "lose", "crash", "drop"])
        )
        if what == "tick":
            world.tick(i, crash=data.draw(st.sampled_from(["", "", "before commit", "after commit"])))
        elif what == "crash":
            world.crash(i)
        elif what == "drop" and world.ins[i]:
            if world.nodes[i].drop(data.draw(st.sampled_from(sorted(world.ins[i]))), "gone"):
                world.nodes[i].commit()
        elif world.flying:
            at = data.draw(st.integers(0, len(world.flying) - 1))
            world.deliver(at, keep=data.draw(st.booleans())) if what == "deliver" else world.flying.pop(at)
        for node in world.nodes:
            assert local_error(node.state) <= EXACT
    lockstep(world, 12)
    assert len({node.state.epoch for node in world.nodes}) == 1
    assert not any(node.state.crew.absent for node in world.nodes)
    exact(world)

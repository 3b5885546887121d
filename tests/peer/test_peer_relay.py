"""`relay` between peers: root and trees of the manifest; roots that die, return or are set back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spodgt
from spodgt.peer.protocol.audit import local_error
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
        world.stores = [type(store)() for store in world.stores]
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
    return {world.nodes[i].topology.root for i in among}


def next_manifest(world: World, root: str, among: Iterable[int]) -> None:
    """The clients `among` take a version of the manifest that names another root."""
    for i in among:
        world.topology[i] = replace(world.topology[i], manifest_root=root)
        world.nodes[i].relink(world.topology[i], 2**32)
        world.nodes[i].commit()


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
        pytest.param(ONE_WAY, {"proximal": 0.1}, marks=pytest.mark.slow),
        pytest.param(TWO_WAY, {"adam": True}, marks=pytest.mark.slow),
        pytest.param(TWO_WAY, {"running_mean": 0.2}, marks=pytest.mark.slow),
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
    assert [node.member.step_weight for node in world.nodes if node.member.step_weight] == [1 / 5]
    used = sum(len(node.role.used_out) for node in world.nodes)
    idle = [
        link
        for node in world.nodes
        for name, link in node.state.out.items()
        if name not in node.role.used_out
    ]
    assert used + len(idle) == len(links)
    assert all(link.number == 0 for link in idle), root  # links of no tree carry nothing


@pytest.mark.parametrize("links", [TWO_WAY, pytest.param(EXPONENTIAL, marks=pytest.mark.slow)])
def test_a_root_that_dies_is_replaced_by_the_manifest_alone(links: list[tuple[int, int]]) -> None:
    world = relayed(links)
    lockstep(world, 5)
    (name,) = roots(world)
    root = int(name[1:])
    rest = set(range(5)) - {root}
    before = world.x()
    neighbour = world.links[[s for s, _ in world.links].index(root)][1]
    assert world.nodes[neighbour].drop_neighbour(name, "silent for 60 s")
    assert not world.nodes[neighbour].drop_neighbour(name, "silent for 60 s")
    lockstep(world, 50, alive=rest)
    assert roots(world) == {name}
    assert far(world, rest) > 0.01  # the models stay where they were
    assert float((world.x() - before)[list(rest)].norm(dim=1).max()) < 0.5
    successor = next(f"p{i}" for i in sorted(rest))
    next_manifest(world, successor, range(5))  # the dead one finds it in its folder when it returns
    world.flying.clear()
    lockstep(world, 300, alive=rest)
    assert roots(world) == {successor}
    if links is TWO_WAY:  # else its trees need the dead one
        return
    assert (
        jump(world, rest, 10) < 0.5
    )  # it returns with its old model, and all go on from where they are
    lockstep(world, 300)
    assert far(world) < 1e-6
    exact(world)


def test_a_leaf_that_dies_is_left_out_of_the_next_epoch_and_returns() -> None:
    """--drop-after takes its mass out of the sum; the trees stay those of the manifest."""
    world = relayed([(i, j) for i in range(5) for j in range(5) if i != j])
    lockstep(world, 20)
    (name,) = roots(world)
    dead = next(i for i in range(5) if f"p{i}" != name)
    rest = set(range(5)) - {dead}
    lockstep(world, 100, alive=rest)
    assert far(world, rest) > 0.01  # its last gradient is still in the sum
    assert world.nodes[int(name[1:])].drop_neighbour(f"p{dead}", "silent for 60 s")
    lockstep(world, 300, alive=rest)
    assert far(world, rest) < 1e-6
    world.crash(dead)
    lockstep(world, 300)
    assert far(world) < 1e-6
    exact(world)


@pytest.mark.parametrize("crashes", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_root_that_loses_its_disk_leads_on_from_a_model_of_its_neighbours(crashes: bool) -> None:
    world = relayed(TWO_WAY)
    lockstep(world, 300)
    (name,) = roots(world)
    root = int(name[1:])
    rest = set(range(5)) - {root}
    world.stores[root] = type(world.stores[root])()
    world.crash(root)
    assert far(world, [root], range(5)) > 0.9
    if (
        crashes
    ):  # after it was shown that its disk was set back, before a neighbour's model has come
        while not world.nodes[root].state.is_outdated:
            for i in range(5):
                world.tick(i)
            while world.flying:
                world.deliver(0)
            if world.nodes[root].inbox:
                world.nodes[root].apply_received()
                world.nodes[root].commit()
        world.flying.clear()
        world.crash(root)
        assert world.nodes[root].state.is_outdated
    assert jump(world, rest, 10) < 0.5  # nobody goes back to the initial model
    assert roots(world) == {name}
    assert not world.nodes[root].state.is_outdated
    lockstep(world, 300)
    assert far(world) < 1e-6
    exact(world)


def test_a_root_that_was_set_back_takes_no_model_with_bad_numbers() -> None:
    world = relayed(TWO_WAY)
    lockstep(world, 50)
    (name,) = roots(world)
    node = world.nodes[int(name[1:])]
    neighbour = next(iter(node.state.into))
    frame = world.nodes[int(neighbour[1:])].message(name)
    assert frame is not None
    node.apply_received()
    node.state = node.state._replace(is_outdated=True)
    for bad in (float("nan"), 1e31):
        node.receive(neighbour, frame._replace(x=torch.full_like(frame.x, bad)))
        node.apply_received()
        assert world.events[-1][0] == "refused"
        assert node.state.is_outdated
    node.receive(neighbour, frame)
    node.apply_received()
    assert torch.equal(node.state.method.x[0], frame.x)
    assert not node.state.is_outdated


def test_only_the_manifest_names_a_root() -> None:
    """A member that says that it leads, in a later epoch or in this one, is refused and nothing changes."""
    world = relayed(TWO_WAY)
    lockstep(world, 5)
    node = world.nodes[1]
    frame = world.nodes[0].message("p1")
    (name,) = roots(world)
    assert frame is not None
    assert frame.root == int(name[1:])
    for root in {0, 1, 9, 2**32 - 1, -1} - {frame.root}:
        for epoch in (0, 1):
            x = torch.full_like(frame.x, 7.0)
            lie = frame._replace(epoch=epoch, number=frame.number + 1, x=x, root=root)
            before = node.state
            node.receive("p0", lie)
            node.apply_received()
            assert node.state.epoch == 0
            assert torch.equal(node.state.method.x, before.method.x)
            assert world.events[-1] == (
                "refused",
                f"p1 p0: it names the client at place {root} as root, "
                f"the manifest names {name} (place {name[1:]})",
            )
    assert roots(world) == {name}
    other = World(5)
    told = other.nodes[0].message("p1")
    assert told is not None
    other.nodes[1].receive("p0", told._replace(root=1))
    other.nodes[1].apply_received()
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
            world.tick(
                i, crash=data.draw(st.sampled_from(["", "", "before commit", "after commit"]))
            )
        elif what == "crash":
            world.crash(i)
        elif what == "drop" and world.ins[i]:
            if world.nodes[i].drop_neighbour(
                data.draw(st.sampled_from(sorted(world.ins[i]))), "gone"
            ):
                world.nodes[i].commit()
        elif world.flying:
            at = data.draw(st.integers(0, len(world.flying) - 1))
            world.deliver(
                at, keep=data.draw(st.booleans())
            ) if what == "deliver" else world.flying.pop(at)
        for node in world.nodes:
            assert local_error(node.state) <= EXACT
    lockstep(world, 12)
    assert len({node.state.epoch for node in world.nodes}) == 1
    exact(world)

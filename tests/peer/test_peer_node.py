"""One client at a time: what it makes of bad gradients, dead neighbours, huge numbers and richer methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import spodgt
from spodgt.errors import Failed
from spodgt.peer.protocol import node as nodes
from spodgt.peer.protocol.audit import local_error
from spodgt.peer.protocol.client_state import State, initial_state, meta_of, state_from, vectors_of
from spodgt.peer.protocol.epoch_topology import EpochRole
from spodgt.peer.protocol.node import Node
from spodgt.peer.protocol.outlier_detection import SILENT_ROUNDS, OutlierDetector
from spodgt.peer.protocol.running_sums import Incarnation
from spodgt.tensors import norm
from tests.peer.world import World

EXACT = 1e-12
ALONE = EpochRole({}, {}, frozenset(), frozenset())


def lockstep(world: World, rounds: int, alive: set[int] | None = None) -> None:
    """Everybody makes a round, then everything arrives; frames for the dead are lost."""
    for _ in range(rounds):
        for i in sorted(alive or set(range(world.m))):
            world.tick(i)
        while world.flying:
            if alive is None or int(world.flying[0][1][1:]) in alive:
                world.deliver(0)
            else:
                world.flying.pop(0)


def rounds_until(world: World, distance: float) -> int:
    for k in range(1, 2000):
        lockstep(world, 1)
        if ((world.x() - world.optimum).norm(dim=1) / world.optimum.norm()).max() < distance:
            return k
    raise AssertionError("it does not converge")


def simulated(world: World, step: float, distance: float) -> int:
    """The rounds that the method's own equations take, with all mass in the clients."""
    m = world.m
    A, B = torch.eye(m, dtype=torch.float64), torch.eye(m, dtype=torch.float64)
    for sender, receiver in world.links:
        a, b = world.ins[receiver][f"p{sender}"], world.outs[sender][f"p{receiver}"]
        A[receiver] += a * (torch.eye(m)[sender] - torch.eye(m)[receiver])
        B[:, sender] += b * (torch.eye(m)[receiver] - torch.eye(m)[sender])
    h, c = world.h.double(), world.c.double()
    x = torch.zeros_like(c)
    y = g = h * (x - c)
    for k in range(1, 2000):
        y = B @ y
        x = A @ x - step * y
        new = h * (x - c)
        y, g = y + new - g, new
        if ((x - world.optimum).norm(dim=1) / world.optimum.norm()).max() < distance:
            return k
    raise AssertionError("it does not converge")


def test_peers_need_the_simulators_rounds() -> None:
    """What leaves is taken from the new tracker: mass on links once moved no model, and 1.9 times as many."""
    for step in (0.05, 0.1, 0.2):
        peers = rounds_until(World(5, n=6, rebase_every=64, step=step), 1e-4)
        assert peers <= 1.3 * simulated(World(5, n=6), step, 1e-4)


class Broken(World):
    """Client 1 has a NaN in its gradients of some rounds."""

    bad: range = range(30, 31)

    def gradient(self, i: int) -> Any:
        good = super().gradient(i)

        def grad(x: torch.Tensor, k: int) -> torch.Tensor:
            g = good(x, k)
            return (
                torch.where(torch.arange(self.n) == 1, torch.nan, g)
                if i == 1 and k in self.bad
                else g
            )

        return grad


@pytest.mark.parametrize("method", ["spod-gt-memory", "spod-gt", "ab"])
def test_a_gradient_that_is_not_finite_never_enters_a_tracker(method: str) -> None:
    world = Broken(4, rebase_every=8, method=method)
    for k in range(60):
        lockstep(world, 1)
        for node in world.nodes:
            assert torch.isfinite(node.state.method.y).all(), k
            assert local_error(node.state) <= EXACT
    assert world.nodes[1].method_step.bad_gradients == 1
    assert world.nodes[1].method_step.bad_in_a_row == 0
    assert [event for event in world.events if event[0] == "not finite"] == [
        ("not finite", "p1 the gradient of round 30 holds NaN or infinite numbers; not used")
    ]
    assert world.audit().error <= EXACT  # type: ignore[operator]


def test_a_client_that_cannot_compute_any_more_says_so_and_ends() -> None:
    world = Broken(4)
    world.bad = range(5, 10**6)
    with pytest.raises(
        Failed, match="10 gradients in a row were not finite, the last in round 14; none was"
    ):
        lockstep(world, 60)
    assert world.audit().error <= EXACT  # type: ignore[operator]


def test_a_first_gradient_may_be_bad_too() -> None:
    world = World(2)
    algorithm, zero = world.algorithm, torch.zeros(3)
    state = initial_state(algorithm, lambda x, k: torch.full_like(x, torch.nan), zero, True, ALONE)
    assert not state.method.y.any()
    assert state.gradients == 0


def test_a_model_that_overflows_is_never_committed() -> None:
    world = World(2, step=1e30)
    with pytest.raises(
        Failed, match=r"is not finite in round \d+; nothing of it was committed or sent"
    ):
        lockstep(world, 60)
    for store in world.stores:
        assert all(torch.isfinite(vector).all() for vector in store.vectors.values())


def test_a_link_with_four_unacknowledged_messages_takes_no_more_mass() -> None:
    world = World(4, rebase_every=64)
    lockstep(world, 10)
    sent = {
        i: node.state.out["p3"].number
        for i, node in enumerate(world.nodes)
        if "p3" in node.state.out
    }
    lockstep(world, 50, alive={0, 1, 2})
    for i, before in sent.items():
        link = world.nodes[i].state.out["p3"]
        assert link.number - link.acked == nodes.HOLD
        assert link.number <= before + nodes.HOLD
    lockstep(world, 20)
    assert all(world.nodes[i].state.out["p3"].number > before + 15 for i, before in sent.items())
    assert world.audit().error <= EXACT  # type: ignore[operator]


def test_an_epoch_without_a_dead_client_reaches_the_optimum_of_the_others() -> None:
    world = World(4, rebase_every=8, step=0.1)
    lockstep(world, 15)
    alive = {0, 1, 2}
    lockstep(world, 200, alive)
    optimum = (world.h[:3] * world.c[:3]).sum(0) / world.h[:3].sum(0)
    biased = (world.x()[:3] - optimum).norm(dim=1) / optimum.norm()
    assert biased.min() > 0.05  # its last gradient, and what lies on links to it
    assert world.nodes[1].drop_neighbour("p3", "silent for 60 s")
    lockstep(world, 200, alive)
    assert {world.nodes[i].state.epoch for i in alive} == {1}
    assert not world.nodes[2].drop_neighbour(
        "p3", "silent for 60 s"
    )  # nothing of it is in this epoch
    assert ((world.x()[:3] - optimum).norm(dim=1) / optimum.norm()).max() < 1e-4
    world.crash(3)  # it returns, and takes part again
    lockstep(world, 400)
    assert ((world.x() - world.optimum).norm(dim=1) / world.optimum.norm()).max() < 1e-4
    found = world.audit()
    assert found.problems == []
    assert found.error <= EXACT  # type: ignore[operator]


def test_numbers_far_above_the_usual_are_named() -> None:
    world = World(3)
    lockstep(world, 40)
    node = world.nodes[1]
    before, frame = node.outliers.detectors["p0"].mass, world.nodes[0].message("p1")
    assert frame is not None
    assert before > 0
    node.receive("p0", frame._replace(number=frame.number + 1, x=frame.x + 1e6))
    node.advance(True, [])
    assert node.outliers.detectors["p0"].flags == 1
    told = [text for kind, text in world.events if kind == "suspicious"]
    assert len(told) == 1
    assert told[0].startswith("p1 p0: model: its distance from ours is 1.7e+06")
    absurd = frame._replace(number=frame.number + 2, total=torch.full_like(frame.total, 3e38))
    node.receive("p0", absurd)
    node.advance(True, [])
    assert world.events[-1][0] == "refused"
    assert node.outliers.detectors["p2"].flags == 0


@pytest.mark.parametrize(("rounds_alone", "flags"), [(0, 1), (SILENT_ROUNDS, 0)])
def test_norms_of_models_trained_apart_are_not_flagged(rounds_alone: int, flags: int) -> None:
    """A distance that is unusual after the last message is not so after a long silence of the link."""
    detector = OutlierDetector()
    for k in range(1, 31):
        detector.note_round(k)
        detector.check(0.01, 0.01, (1.0, 2.0))
    detector.note_round(30 + rounds_alone)
    detector.check(0.01, 4.5, (1.0, 2.0))
    assert detector.flags == flags
    detector.check(0.01, 1e25, (1.0, 2.0))
    assert detector.flags == flags + 1


def test_norms_up_to_the_own_are_not_flagged_after_models_have_agreed() -> None:
    """A client that comes or goes moves the optimum: the tracked gradients are as large as the own."""
    detector = OutlierDetector()
    own = (0.44, 0.61)
    for _ in range(30):
        detector.check(6e-4, 6e-4, own)
    detector.check(0.36, 0.4, own)
    assert detector.flags == 0
    detector.check(0.36, 70.0, own)
    assert detector.flags == 1


def test_norms_are_noted_with_the_own_round() -> None:
    world = World(3)
    lockstep(world, 40)
    node = world.nodes[1]
    assert node.outliers.detectors["p0"].last_round is not None
    assert abs(node.state.k - node.outliers.detectors["p0"].last_round) <= 1


def test_huge_numbers_early_in_an_epoch_are_named() -> None:
    """Any member may begin an epoch: what was usual before it is not forgotten with it."""
    world = World(3)
    lockstep(world, 40)
    node = world.nodes[1]
    frame = world.nodes[0].message("p1")
    assert frame is not None
    node.apply_received()
    for epoch, number in ((1, 1), (1, 2)):
        huge = torch.full_like(frame.x, 1e25)
        node.receive("p0", frame._replace(epoch=epoch, number=number, base=0, acked=0, x=huge))
        node.advance(True, [])
    assert node.state.epoch == 1
    assert node.outliers.detectors["p0"].flags >= 1
    assert node.outliers.detectors["p2"].flags == 0
    node.begin_epoch(2)  # nor are flags
    assert node.outliers.detectors["p0"].flags >= 1
    node.relink(node.topology, 2**32)  # only a manifest, which may have removed it, forgives
    assert node.outliers.detectors == {}


def test_honest_epochs_flag_nobody() -> None:
    world = World(4, rebase_every=8, step=0.1)
    for _ in range(6):
        lockstep(world, 40)
        assert world.nodes[1].drop_neighbour("p0", "silent for 60 s")
    lockstep(world, 40)
    assert [text for kind, text in world.events if kind == "suspicious"] == []


@pytest.mark.parametrize("growth", [1.03, 1.3])
def test_a_neighbour_that_moves_a_model_away_slowly_is_named_once_the_loss_is_ruined(
    growth: float,
) -> None:
    world = World(4, step=0.1)
    lockstep(world, 40)
    node = world.nodes[1]
    length = norm(node.state.method.x)
    others = {0, 1, 2}
    frame = world.nodes[3].message("p1")
    assert frame is not None
    x = frame.x
    number = frame.number
    while norm(node.state.method.x) < 200 * length:
        x = x * growth
        number += 1
        for i in (1, 0):
            if f"p{i}" in world.outs[3]:
                lie = world.nodes[3].message(f"p{i}")
                assert lie is not None
                world.nodes[i].receive("p3", lie._replace(number=number, x=x))
        lockstep(world, 1, alive=others)
    for detector in node.outliers.detectors.values():
        detector.flags = 0  # of what was far above its median
    node.outliers.flag_model_outlier(length)
    assert {name: detector.flags for name, detector in node.outliers.detectors.items()} == {
        "p0": 0,
        "p3": 1,
    }


def test_nobody_is_named_if_the_own_steps_ruin_a_model() -> None:
    world = World(3, step=5.0)
    length = norm(world.nodes[1].state.method.x)
    lockstep(world, 25)
    assert norm(world.nodes[1].state.method.x) > 1e3
    for node in world.nodes:
        flags = {name: detector.flags for name, detector in node.outliers.detectors.items()}
        node.outliers.flag_model_outlier(length)
        assert {name: detector.flags for name, detector in node.outliers.detectors.items()} == flags


@pytest.mark.parametrize(
    "fields",
    [
        {"momentum": 0.5},
        {"l2": 1e-3, "momentum": 0.5},
        {"adam": {"amsgrad": True}, "clip_tracker": 1.0},
        {"step_size": {"schedule": "inverse-sqrt", "start": 0.1, "scale": 50}},
        {"clip_gradient": 0.5},
        {"running_mean": 0.2},
    ],
)
def test_methods_with_more_state_survive_crashes_and_lose_nothing(fields: dict[str, Any]) -> None:
    world = World(4, rebase_every=8)
    world.algorithm = spodgt.method("spod-gt-memory", **{"step_size": 0.05, **fields})
    world.stores = [type(store)() for store in world.stores]
    world.nodes = [world.start(i) for i in range(4)]
    lockstep(world, 40)
    kept = world.nodes[2].state.more
    world.crash(2)
    assert world.nodes[2].state.more.keys() == kept.keys()
    assert all(
        torch.equal(world.nodes[2].state.more[name], tensor) for name, tensor in kept.items()
    )
    lockstep(world, 40)
    for node in world.nodes:
        assert local_error(node.state) <= EXACT
    assert world.audit().error <= EXACT  # type: ignore[operator]


@pytest.mark.parametrize("crash", ["", "before commit", "after commit", "after send"])
def test_short_messages_lose_nothing(crash: str) -> None:
    """8 bits a number on the wire: what they cannot say stays with the sender, whoever dies when."""
    world, draw = World(4, n=90, rebase_every=4, quantized=True), np.random.default_rng(1)
    for k in range(60):
        for i in range(4):
            world.tick(
                i, computes=bool(draw.random() < 0.7), crash=crash if draw.random() < 0.1 else ""
            )
        while world.flying:
            lost, at = draw.random() < 0.3, int(draw.integers(len(world.flying)))
            world.flying.pop(at) if lost else world.deliver(at)
        if k % 10 == 9:
            for node in world.nodes:
                assert local_error(node.committed) <= EXACT
            assert world.audit().error <= EXACT  # type: ignore[operator]


@pytest.mark.slow
def test_short_messages_reach_the_optimum() -> None:
    world = World(4, n=90, rebase_every=4, quantized=True)
    lockstep(world, 1500)
    assert float((world.x() - world.optimum).abs().max()) < 1e-5  # models are float32


def test_a_method_may_change_while_it_runs() -> None:
    world = World(3)
    lockstep(world, 10)
    for node in world.nodes:
        node.use_algorithm(spodgt.method("spod-gt-memory", step_size=0.05, adam=True))
    lockstep(world, 10)
    assert set(world.nodes[0].state.more) == {"adam_m", "adam_v", "adam_left"}
    for node in world.nodes:
        node.use_algorithm(spodgt.method("spod-gt-memory", step_size=0.05))
    lockstep(world, 10)
    assert not world.nodes[0].state.more
    assert world.audit().error <= EXACT  # type: ignore[operator]


class Personal(World):
    """Every client has two columns of its own, which its gradients count up."""

    def gradient(self, i: int) -> Any:
        good = super().gradient(i)

        def grad(x: torch.Tensor, k: int) -> torch.Tensor:
            g = good(x[:, : self.n], k)
            x[:, self.n :] += 1 + i
            return g  # type: ignore[no-any-return]

        return grad

    def start(self, i: int, fresh: bool = False) -> Node:
        store = self.stores[i]
        if not store.meta:
            x, own = torch.zeros(1, self.n), torch.zeros(1, 2)
            parts = self.algorithm, self.gradient(i), x, True, self.topology[i].role
            state = initial_state(*parts, private=own)
            store.commit(vectors_of(state), meta_of(state, Incarnation(0, 0)))
        return super().start(i)


def test_private_columns_are_kept_and_never_sent() -> None:
    world = Personal(3)
    lockstep(world, 20)
    for i, node in enumerate(world.nodes):
        assert torch.equal(node.state.private, torch.full((1, 2), 21.0 * (1 + i)))
        world.crash(i)
        assert torch.equal(world.nodes[i].state.private, node.state.private)
        for target in world.outs[i]:
            message = world.nodes[i].message(target)
            assert message is not None
            assert len(message.x) == len(message.total) == world.n
    lockstep(world, 20)
    assert world.audit().error <= EXACT  # type: ignore[operator]
    assert (world.x() - world.optimum).abs().max() < 0.5


def test_a_state_comes_back_from_what_it_writes() -> None:
    world = Personal(3)
    lockstep(world, 5)
    state: State = world.nodes[0].state
    again = state_from(vectors_of(state), meta_of(state, Incarnation(3, 4)))
    assert vectors_of(again).keys() == vectors_of(state).keys()
    assert meta_of(again, Incarnation(3, 4)) == meta_of(state, Incarnation(3, 4))
    wrong = {**meta_of(state, Incarnation(3, 4)), "incarnation": 2**64}
    with pytest.raises(ValueError, match="between 0 and 2\\^62"):
        state_from(vectors_of(state), wrong)


QUIET = {"nothing": [0.0] * 30, "rounding": [1e-10] * 30, "mostly nothing": ([0.0] * 9 + [1.0]) * 3}


@pytest.mark.parametrize("past", QUIET)
def test_norms_do_not_call_the_message_after_a_quiet_time_unusual(past: str) -> None:
    detector = OutlierDetector()
    for value in QUIET[past]:
        assert detector.check(value, value, (1.0, 1.0)) == []
    assert detector.check(1.5, 1.5, (1.0, 1.0)) == []
    assert detector.flags == 0
    assert detector.check(1e4, 0.0, (1.0, 1.0)) == ["mass: its norm is 1e+04, " + _times(past)]
    assert detector.flags == 1


def _times(past: str) -> str:
    return "1e+04 times the median" if past == "mostly nothing" else "7e+03 times the median"


def test_norms_need_something_to_compare_with() -> None:
    """A client with no gradient yet, whose neighbour has sent nothing yet."""
    detector = OutlierDetector()
    for _ in range(30):
        detector.check(0.0, 0.0, (0.0, 0.0))
    assert detector.check(1.0, 1.0, (0.0, 0.0)) == []

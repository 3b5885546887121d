"""One plan from its start to its verdict."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import torch

from spodgt.engine import use_loops
from tests.peer.simulation import faults
from tests.peer.simulation.checks import Violation
from tests.peer.simulation.cluster import Cluster
from tests.peer.simulation.plan import Plan, draw_plan
from tests.peer.simulation.virtual import Stuck, VirtualLoop

HEAL_SECONDS = 120.0  # of virtual time, within which everything must be well again
MOVE_SECONDS = 8.0
MOVED = 2  # rounds that each client must make within MOVE_SECONDS
EXCHANGES = 120  # of models between clients, within which they come near the optimum
TOLERANCE = 0.05  # distance of models from the optimum, relative to that of the initial model


@dataclass
class Outcome:
    """What came of a plan."""

    plan: Plan
    failure: str = ""  # the promise that was broken; "": none
    digest: str = ""  # of all states at the end: equal for equal plans
    virtual_seconds: float = 0.0
    real_seconds: float = 0.0
    rounds: int = 0
    commits: int = 0
    starts: int = 0
    healed_after: float = 0.0  # virtual seconds
    log: list[str] = field(default_factory=list)


def plan_of(seed: int) -> Plan:
    """What a seed draws."""
    return draw_plan(seed, {name: weight for name, (_, weight) in faults.KINDS.items()})


@contextmanager
def quiet() -> Iterator[None]:
    """One thread of torch, plain loops, no lines of log."""
    threads = torch.get_num_threads()
    disabled = logging.root.manager.disable
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    try:
        with use_loops(False):
            yield
    finally:
        torch.set_num_threads(threads)
        logging.disable(disabled)


def simulate(plan: Plan) -> Outcome:
    """Run a plan; what was broken is in the outcome."""
    outcome = Outcome(plan)
    begun = time.perf_counter()
    loop = VirtualLoop()
    with quiet():
        cluster = Cluster(plan.setup, Random(plan.seed), loop)
        try:
            loop.run_until_complete(_run(cluster, plan, outcome))
        except (Violation, Stuck) as error:
            outcome.failure = f"{type(error).__name__}: {error}"
        except Exception as error:  # of a peer: none may end with anything but a sentence
            outcome.failure = f"{type(error).__name__}: {error}"
            cluster.checks.note("".join(traceback.format_exception(error)))
        finally:
            outcome.real_seconds = time.perf_counter() - begun
            outcome.virtual_seconds = loop.now
            outcome.commits = cluster.checks.commits
            outcome.starts = cluster.started
            outcome.log = cluster.checks.log
            loop.run_until_complete(cluster.close())
            loop.close()
    return outcome


async def _run(cluster: Cluster, plan: Plan, outcome: Outcome) -> None:
    for name in cluster.hosts:
        cluster.after(cluster.random.uniform(0, 0.5), lambda name=name: cluster.start(name))  # type: ignore[misc]
    for fault in plan.faults:
        kind, _ = faults.KINDS[fault.kind]
        cluster.after(fault.at, lambda kind=kind, fault=fault: _inflict(cluster, kind, fault))  # type: ignore[misc]
    if any(fault.kind == "roll_back" for fault in plan.faults):
        cluster.copy_disks()
    await _pass(cluster, plan.seconds)
    cluster.checks.note("faults end")
    faults.heal(cluster, plan.faults)
    if plan.setup.rounds:
        await _until_ended(cluster, outcome)
    else:
        await _until_well(cluster, outcome)
        await _until_moved(cluster)
        await _until_optimal(cluster)
    cluster.checks.set_back.clear()
    cluster.checks.check_all()
    outcome.digest = _digest(cluster)
    outcome.rounds = sum(peer.node.state.k for peer in cluster.running().values())


def _inflict(cluster: Cluster, kind: faults.Kind, fault: object) -> None:
    cluster.checks.note(str(fault))
    kind(cluster, fault)  # type: ignore[arg-type]


async def _pass(cluster: Cluster, seconds: float) -> None:
    """Let virtual time pass; raise what was broken meanwhile."""
    end = cluster.loop.now + seconds
    while cluster.loop.now < end:
        await asyncio.sleep(min(1.0, end - cluster.loop.now) + 1e-9)
        if cluster.failure is not None:
            raise cluster.failure


async def _until_well(cluster: Cluster, outcome: Outcome) -> None:
    begun = cluster.loop.now
    while True:
        await _pass(cluster, 1.0)
        found = cluster.checks.obstacles(cluster.running(), cluster.manifest)
        outcome.healed_after = cluster.loop.now - begun
        if not found:
            return
        if outcome.healed_after > HEAL_SECONDS:
            raise Violation(f"{HEAL_SECONDS:.0f} s after the faults: {'; '.join(found)}")


async def _until_ended(cluster: Cluster, outcome: Outcome) -> None:
    """All clients make the rounds of the manifest, and end."""
    begun = cluster.loop.now
    rounds = cluster.setup.rounds
    while True:
        await _pass(cluster, 1.0)
        hosts = [cluster.hosts[name] for name in cluster.manifest.names]
        running = [host.name for host in hosts if not host.has_ended]
        outcome.healed_after = cluster.loop.now - begun
        if not running:
            break
        if outcome.healed_after > HEAL_SECONDS:
            raise Violation(f"{HEAL_SECONDS:.0f} s after the faults {running} have not ended")
    for host in hosts:
        k = cluster.checks.states[host.name].k
        if k != rounds + 1:
            raise Violation(f"{host.name} has ended after {k - 1} rounds of {rounds}")


async def _until_moved(cluster: Cluster) -> None:
    begun = cluster.loop.now
    before = {name: peer.node.state.k for name, peer in cluster.running().items()}
    while True:
        await _pass(cluster, 1.0)
        peers = cluster.running().items()
        idle = [name for name, peer in peers if peer.node.state.k < before[name] + MOVED]
        if not idle:
            return
        if cluster.loop.now - begun > MOVE_SECONDS:
            raise Violation(f"{', '.join(idle)} made less than {MOVED} rounds in {MOVE_SECONDS} s")


async def _until_optimal(cluster: Cluster) -> None:
    """Models come near the optimum within `EXCHANGES`: a method contracts once with each of them.

    Mass is put on links in one of `local_steps` rounds, and leaves with one of `commit_every` commits.
    """
    local_steps = cluster.setup.layers.get("local_steps", 1)
    assert isinstance(local_steps, int)
    rounds = EXCHANGES * math.lcm(local_steps, cluster.setup.commit_every)
    seconds = rounds / cluster.manifest.rounds_per_second
    begun = cluster.loop.now
    while True:
        distance = cluster.checks.distance(cluster.running(), cluster.manifest)
        if distance <= TOLERANCE:
            return
        if cluster.loop.now - begun > seconds:
            raise Violation(f"models are {distance:.2g} from the optimum after {rounds} rounds")
        await _pass(cluster, 2.0)


def _digest(cluster: Cluster) -> str:
    digest = hashlib.sha256()
    for name, state in sorted(cluster.checks.states.items()):
        digest.update(f"{name} {state.k} {state.epoch} {state.last_received_round}".encode())
        for vector in (*state.method, state.z):
            digest.update(vector.numpy().tobytes())
    return digest.hexdigest()[:16]

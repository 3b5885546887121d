"""A fleet that ends: a number of rounds in the manifest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
import pytest

from spodgt.peer.membership.manifest_changes import apply_change
from spodgt.peer.monitoring.findings import find_problems
from spodgt.peer.monitoring.report_validation import check_status
from spodgt.peer.options import Change
from tests.peer.simulation.cluster import FOLDER, Cluster
from tests.peer.simulation.plan import Setup
from tests.peer.simulation.simulator import quiet
from tests.peer.simulation.virtual import VirtualLoop

ROUNDS = 40
SECONDS = 400  # of virtual time, within which all must have ended


@contextmanager
def cluster_of(
    method: str, rate: float = 2.0, drop_after: float | None = None
) -> Iterator[Cluster]:
    """Peers of which one is much slower than the others."""
    loop = VirtualLoop()
    setup = Setup(method=method, rounds=ROUNDS, max_alone=6, rate=rate, drop_after=drop_after)
    with quiet():
        cluster = Cluster(setup, Random(3), loop)
        cluster.hosts["p0"].step_seconds = 2.0
        try:
            yield cluster
        finally:
            loop.run_until_complete(cluster.close())
            loop.close()


def run_to_the_end(cluster: Cluster) -> None:
    """Start all peers; until the last one has ended, none may call another silent."""
    for name, host in cluster.hosts.items():
        host.has_ended = False
        host.is_wanted = True
        cluster.after(0.0, lambda name=name: cluster.start(name))  # type: ignore[misc]
    for _ in range(SECONDS):
        cluster.loop.run_until_complete(asyncio.sleep(1.0))
        if cluster.failure is not None:
            raise cluster.failure
        for name, peer in cluster.running().items():
            silent = [text for text in peer.reporter.status.warnings if "silent" in text]
            assert not silent, (name, silent)
        if all(host.has_ended for host in cluster.hosts.values()):
            return
    raise AssertionError("some peers have not ended")


def silent_clients(cluster: Cluster) -> list[str]:
    """The clients that a watch page calls silent, a minute after the last report of each."""
    reports = {}
    for name, host in cluster.hosts.items():
        text = host.disk.inodes[FOLDER / "status.json"].content
        reports[name] = check_status(json.loads(text))
    findings = find_problems(reports, dict.fromkeys(reports, 60.0), cluster.manifest, {})
    return [finding.client for finding in findings if finding.kind == "silent"]


def rounds(cluster: Cluster) -> set[int]:
    return {state.k - 1 for state in cluster.checks.states.values()}


@pytest.mark.parametrize("method", ["spod-gt-memory", "relay"])
def test_peers_end_by_themselves_and_none_waits_for_one_that_has_ended(method: str) -> None:
    with cluster_of(method) as cluster:
        run_to_the_end(cluster)
        assert rounds(cluster) == {ROUNDS}
        cluster.checks.check_all()
        assert silent_clients(cluster) == []


@pytest.mark.parametrize("method", ["spod-gt-memory", "relay"])
def test_peers_end_although_each_is_killed_now_and_then(method: str) -> None:
    with cluster_of(method) as cluster:
        for number in range(12):
            name = f"p{number % 3}"
            cluster.after(4.0 + 5 * number, lambda name=name: cluster.kill(name))  # type: ignore[misc]
            cluster.after(5.0 + 5 * number, lambda name=name: cluster.start(name))  # type: ignore[misc]
        run_to_the_end(cluster)
        assert rounds(cluster) == {ROUNDS}
        cluster.checks.check_all()


def test_a_client_that_loses_its_disk_after_the_last_round_of_others_learns_of_their_end() -> None:
    with cluster_of("spod-gt-memory") as cluster:

        def lose_disk() -> None:
            has_ended = {name for name, peer in cluster.running().items() if peer.node.has_ended}
            assert has_ended == {"p1", "p2"}
            cluster.kill("p0")
            cluster.hosts["p0"].disk.remove(FOLDER / "state")
            cluster.checks.lost_state("p0")  # the others follow it into another epoch

        cluster.after(19.0, lose_disk)
        run_to_the_end(cluster)
        assert rounds(cluster) == {ROUNDS}
        cluster.checks.check_all()


def test_peers_that_have_made_all_rounds_begin_no_epochs_without_a_silent_one() -> None:
    with cluster_of("spod-gt-memory", drop_after=6.0) as cluster:
        for name in cluster.hosts:
            cluster.after(0.0, lambda name=name: cluster.start(name))  # type: ignore[misc]
        cluster.loop.run_until_complete(asyncio.sleep(8.0))
        cluster.hosts["p0"].is_wanted = False
        cluster.kill("p0")
        cluster.loop.run_until_complete(asyncio.sleep(50.0))
        assert sorted(cluster.running()) == ["p1", "p2"]
        for name in cluster.running():
            assert cluster.checks.states[name].epoch <= cluster.manifest.epoch + 1
        run_to_the_end(cluster)
        assert rounds(cluster) == {ROUNDS}


def test_a_version_with_more_rounds_is_trained_on() -> None:
    with cluster_of("spod-gt-memory") as cluster:
        run_to_the_end(cluster)
        more = apply_change(cluster.manifest, Change(rounds=ROUNDS + 20))
        for name in cluster.hosts:
            cluster.publish(more, name)
        run_to_the_end(cluster)
        assert rounds(cluster) == {ROUNDS + 20}
        cluster.checks.check_all()


def test_peers_with_a_low_rate_of_rounds_report_between_them() -> None:
    with cluster_of("spod-gt-memory", rate=0.01) as cluster:
        for name, host in cluster.hosts.items():
            host.is_wanted = True
            cluster.after(0.0, lambda name=name: cluster.start(name))  # type: ignore[misc]
        times = []
        for _ in range(2):
            cluster.loop.run_until_complete(asyncio.sleep(30.0))
            contents = [
                host.disk.inodes[FOLDER / "status.json"].content for host in cluster.hosts.values()
            ]
            statuses = [json.loads(content) for content in contents]
            assert max(status["k"] for status in statuses) <= 2
            times.append(np.array([status["time"] for status in statuses]))
        assert (times[1] - times[0] > 20).all()

"""The kinds of faults: what each does to a cluster, and what ends it."""

from __future__ import annotations

from collections.abc import Callable

from tests.peer.simulation.cluster import FOLDER, Cluster
from tests.peer.simulation.network import Path
from tests.peer.simulation.plan import Fault

Kind = Callable[[Cluster, Fault], None]


def crash(cluster: Cluster, fault: Fault) -> None:
    """kill -9."""
    cluster.kill(fault.target)
    cluster.after(fault.seconds, lambda: cluster.start(fault.target))


def crash_point(cluster: Cluster, fault: Fault) -> None:
    """kill -9 at an operation on the disk or before a frame is sent."""
    process = cluster.hosts[fault.target].process
    if process is not None:
        process.crash_in = int(fault.number)
        process.crash_loses_power = False


def power(cluster: Cluster, fault: Fault) -> None:
    """Loss of power: writes that were not synced are lost, torn or reordered."""
    cluster.kill(fault.target, loses_power=True)
    cluster.after(fault.seconds, lambda: cluster.start(fault.target))


def power_point(cluster: Cluster, fault: Fault) -> None:
    """Loss of power in the middle of a commit."""
    process = cluster.hosts[fault.target].process
    if process is not None:
        process.crash_in = int(fault.number)
        process.crash_loses_power = True


def stop(cluster: Cluster, fault: Fault) -> None:
    """SIGTERM."""
    process = cluster.hosts[fault.target].process
    if process is not None:
        process.spawn(process.stop())
        cluster.after(0.5 + fault.seconds, lambda: cluster.start(fault.target))


def restart_all(cluster: Cluster, fault: Fault) -> None:
    """All hosts lose their processes at once and get them back one after another."""
    names = list(cluster.hosts)
    for name in names:
        cluster.kill(name)
    cluster.random.shuffle(names)
    for number, name in enumerate(names):
        if cluster.hosts[name].is_wanted:
            cluster.after(fault.number * number * 0.1, lambda name=name: cluster.start(name))  # type: ignore[misc]


def cut(cluster: Cluster, fault: Fault) -> None:
    """No packet passes between two hosts, in both directions."""
    _change_path(cluster, fault, Path(is_cut=True), both=True)


def cut_one_way(cluster: Cluster, fault: Fault) -> None:
    """No packet passes from one host to another."""
    _change_path(cluster, fault, Path(is_cut=True), both=False)


def slow(cluster: Cluster, fault: Fault) -> None:
    """A link that carries few frames a second."""
    _change_path(cluster, fault, Path((0.1, 1.0), 0.0, 0.1 * fault.number), both=True)


def lossy(cluster: Cluster, fault: Fault) -> None:
    """A link that loses packets, which are sent again later."""
    _change_path(cluster, fault, Path((0.005, 0.3), loss=min(0.9, 0.04 * fault.number)), both=True)


def _change_path(cluster: Cluster, fault: Fault, path: Path, both: bool) -> None:
    pairs = [(fault.target, fault.other)]
    if both:
        pairs.append((fault.other, fault.target))
    for pair in pairs:
        cluster.network.set_path(*pair, path)

    def heal() -> None:
        for pair in pairs:
            if cluster.network.paths.get(pair) is path:
                del cluster.network.paths[pair]

    cluster.after(fault.seconds, heal)


def outage(cluster: Cluster, fault: Fault) -> None:
    """The network is gone; when it is back, all hosts restart."""
    names = list(cluster.hosts)
    for one in names:
        for other in names:
            if one != other:
                _change_path(
                    cluster, Fault(0, "", one, other, fault.seconds), Path(is_cut=True), False
                )
    if fault.number > 3:
        cluster.after(fault.seconds, lambda: restart_all(cluster, fault))


def reset(cluster: Cluster, fault: Fault) -> None:
    """Connections are reset."""
    for connection in list(cluster.network.connections):
        if cluster.random.random() < 0.5:
            connection.reset()


def chaos(cluster: Cluster, fault: Fault) -> None:
    """Frames of a client are lost, late, duplicated and replayed above the connection."""
    host = cluster.hosts[fault.target]
    share = min(0.4, 0.03 * fault.number)
    host.chaos = {"loss": share, "twice": share, "late": share, "replay": share / 2}
    crash(cluster, Fault(fault.at, "crash", fault.target, seconds=0.1))
    cluster.after(fault.seconds, host.chaos.clear)


def full_disk(cluster: Cluster, fault: Fault) -> None:
    """Files cannot grow."""
    disk = cluster.hosts[fault.target].disk
    disk.is_full = True

    def free() -> None:
        disk.is_full = False

    cluster.after(fault.seconds, free)


def lost_disk(cluster: Cluster, fault: Fault) -> None:
    """The state is gone."""
    cluster.kill(fault.target)
    cluster.hosts[fault.target].disk.remove(FOLDER / "state")
    cluster.checks.lost_state(fault.target)
    cluster.after(fault.seconds, lambda: cluster.start(fault.target))


def slow_site(cluster: Cluster, fault: Fault) -> None:
    """A local round takes seconds."""
    host = cluster.hosts[fault.target]
    before = host.step_seconds
    host.step_seconds = 0.3 * fault.number

    def heal() -> None:
        host.step_seconds = min(before, 0.02)

    cluster.after(fault.seconds, heal)


KINDS: dict[str, tuple[Kind, float]] = {  # with the weight of its draw
    "crash": (crash, 2.0),
    "crash_point": (crash_point, 3.0),
    "power": (power, 1.0),
    "power_point": (power_point, 3.0),
    "stop": (stop, 1.0),
    "restart_all": (restart_all, 0.5),
    "cut": (cut, 1.0),
    "cut_one_way": (cut_one_way, 1.0),
    "slow": (slow, 1.0),
    "lossy": (lossy, 1.0),
    "outage": (outage, 0.5),
    "reset": (reset, 1.0),
    "chaos": (chaos, 1.0),
    "full_disk": (full_disk, 1.0),
    "lost_disk": (lost_disk, 0.5),
    "slow_site": (slow_site, 1.0),
}


def heal(cluster: Cluster) -> None:
    """End all faults: the network, disks and clocks are well, and all members run."""
    cluster.network.heal()
    for name, host in cluster.hosts.items():
        host.disk.is_full = False
        host.step_seconds = 0.02
        if host.chaos and host.process is not None:
            cluster.kill(name)
        host.chaos = {}
        if host.process is not None:
            host.process.crash_in = 0
        elif host.is_wanted:
            cluster.start(name)

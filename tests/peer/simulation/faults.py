"""The kinds of faults: what each does to a cluster, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path as FilePath

from tests.peer.simulation import manifest_faults, operator_faults
from tests.peer.simulation.cluster import FOLDER, REPORT_SECONDS, Cluster
from tests.peer.simulation.disk import Inode
from tests.peer.simulation.network import Path
from tests.peer.simulation.plan import Fault, names_of

Kind = Callable[[Cluster, Fault], None]


def crash(cluster: Cluster, fault: Fault) -> None:
    """kill -9."""
    cluster.kill(fault.target)
    cluster.at_end(fault.seconds, lambda: cluster.start(fault.target))


def crash_point(cluster: Cluster, fault: Fault) -> None:
    """kill -9 at an operation on the disk or before a frame is sent."""
    process = cluster.hosts[fault.target].process
    if process is not None:
        process.crash_in = int(fault.number)
        process.crash_loses_power = False
        process.crash_operation = ""


def power(cluster: Cluster, fault: Fault) -> None:
    """Loss of power: writes that were not synced are lost, torn or reordered."""
    cluster.kill(fault.target, loses_power=True)
    cluster.at_end(fault.seconds, lambda: cluster.start(fault.target))


def power_point(cluster: Cluster, fault: Fault) -> None:
    """Loss of power in the middle of a commit: at any operation on the disk, or before a sync."""
    process = cluster.hosts[fault.target].process
    if process is not None:
        process.crash_in = int(fault.number)
        process.crash_loses_power = True
        process.crash_operation = "sync" if fault.seconds > 2 else ""


def stop(cluster: Cluster, fault: Fault) -> None:
    """SIGTERM."""
    process = cluster.hosts[fault.target].process
    if process is not None:
        process.spawn(process.stop())
        cluster.at_end(0.5 + fault.seconds, lambda: cluster.start(fault.target))


def restart_all(cluster: Cluster, fault: Fault) -> None:
    """All hosts lose their processes at once and get them back one after another."""
    names = list(cluster.hosts)
    for name in names:
        cluster.kill(name)
    cluster.random.shuffle(names)
    for number, name in enumerate(names):
        if cluster.hosts[name].is_wanted:
            cluster.at_end(fault.number * number * 0.1, lambda name=name: cluster.start(name))  # type: ignore[misc]


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

    cluster.at_end(fault.seconds, heal)


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
        cluster.at_end(fault.seconds, lambda: restart_all(cluster, fault))


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
    cluster.at_end(fault.seconds, host.chaos.clear)


def full_disk(cluster: Cluster, fault: Fault) -> None:
    """Files cannot grow; some hosts are restarted to free the disk."""
    disk = cluster.hosts[fault.target].disk
    disk.is_full = True

    def free() -> None:
        disk.is_full = False
        if fault.number > 3:
            crash(cluster, Fault(fault.at, "crash", fault.target, seconds=0.1))

    cluster.at_end(fault.seconds, free)


def lost_disk(cluster: Cluster, fault: Fault) -> None:
    """The state is gone."""
    cluster.kill(fault.target)
    cluster.hosts[fault.target].disk.remove(FOLDER / "state")
    cluster.checks.lost_state(fault.target)
    cluster.at_end(fault.seconds, lambda: cluster.start(fault.target))


def slow_site(cluster: Cluster, fault: Fault) -> None:
    """A local round takes seconds."""
    host = cluster.hosts[fault.target]
    before = host.step_seconds
    host.step_seconds = 0.3 * fault.number

    def heal() -> None:
        host.step_seconds = min(before, 0.02)

    cluster.at_end(fault.seconds, heal)


def bit_flip(cluster: Cluster, fault: Fault) -> None:
    """One bit of one file is wrong when the client starts again."""
    cluster.kill(fault.target)
    inodes = cluster.hosts[fault.target].disk.inodes
    paths = [path for path, inode in inodes.items() if inode.content]
    state = [path for path in paths if "state" in path.parts]
    path = cluster.random.choice(state if state and fault.number > 2 else paths)
    content = inodes[path].content
    content[cluster.random.randrange(len(content))] ^= 1 << cluster.random.randrange(8)
    if "state" in path.parts:
        cluster.checks.lost_state(fault.target)
        cluster.hosts[fault.target].is_damaged = True
    cluster.at_end(fault.seconds, lambda: cluster.start(fault.target))


def roll_back(cluster: Cluster, fault: Fault) -> None:
    """The disk is set back to a copy of some seconds ago."""
    host = cluster.hosts[fault.target]
    copies = cluster.copies.get(fault.target)
    if not copies or fault.target not in cluster.manifest.names:
        return  # a removed client with an old manifest is a stranger, to whom nobody tells of its removal
    cluster.kill(fault.target)
    _restore_copy(host.disk.inodes, copies[-min(len(copies), int(fault.number))])
    cluster.checks.lost_state(fault.target)
    cluster.at_end(fault.seconds, lambda: cluster.start(fault.target))


def _restore_copy(inodes: dict[FilePath, Inode], copy: dict[FilePath, Inode]) -> None:
    inodes.clear()
    for path, inode in copy.items():
        inodes[path] = Inode(bytearray(inode.content), inode.durable, mode=inode.mode)


def clone(cluster: Cluster, fault: Fault) -> None:
    """A second process runs from a copy of the disk, with the same certificate."""
    cluster.start_clone(fault.target)
    cluster.at_end(fault.seconds, lambda: cluster.end_clone(fault.target))


def clock_skew(cluster: Cluster, fault: Fault) -> None:
    """The wall clock is some minutes wrong."""
    clock = cluster.hosts[fault.target].clock
    clock.error = (-1) ** int(fault.number) * 12.0 * fault.number


def clock_step(cluster: Cluster, fault: Fault) -> None:
    """The wall clock jumps by days, and back later."""
    clock = cluster.hosts[fault.target].clock
    clock.error = (-1) ** int(fault.number) * 86400.0 * 2 * fault.number

    def set_right() -> None:
        clock.error = 0.0

    cluster.at_end(fault.seconds, set_right)


def expiry(cluster: Cluster, fault: Fault) -> None:
    """The certificate ends soon, and is renewed later."""
    cluster.issue(fault.target, days=fault.number / 86400)
    cluster.at_end(fault.seconds, lambda: cluster.issue(fault.target))


def half_copy(cluster: Cluster, fault: Fault) -> None:
    """A new certificate or manifest is copied in place: for a while only a part of it is there."""
    disk = cluster.hosts[fault.target].disk
    name = cluster.random.choice(("key.pem", "cert.pem", "manifest.toml"))
    whole = disk.inodes[FOLDER / name]
    content = bytes(whole.content)
    disk.put(FOLDER / name, content[: len(content) // 2], whole.mode)

    def complete() -> None:
        if name == "manifest.toml":
            cluster.give_manifest(fault.target)
        else:
            cluster.issue(fault.target)

    cluster.at_end(fault.seconds, complete)


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
    "bit_flip": (bit_flip, 1.0),
    "roll_back": (roll_back, 1.5),
    "clone": (clone, 1.0),
    "clock_skew": (clock_skew, 0.5),
    "clock_step": (clock_step, 0.5),
    "expiry": (expiry, 1.0),
    "half_copy": (half_copy, 0.5),
    "old_manifest": (manifest_faults.old_manifest, 0.5),
    "change_settings": (manifest_faults.change_settings, 1.0),
    "change_address": (manifest_faults.change_address, 1.0),
    "change_links": (manifest_faults.change_links, 1.0),
    "change_root": (manifest_faults.change_root, 1.0),
    "quarantine": (manifest_faults.quarantine, 0.5),
    "remove": (manifest_faults.remove, 0.7),
    "dead_root": (manifest_faults.dead_root, 0.7),
    "join": (manifest_faults.join, 0.7),
    "restore": (operator_faults.restore, 1.0),
    "restore_model": (operator_faults.restore_model, 0.5),
    "bad_gradients": (operator_faults.bad_gradients, 1.0),
    "bad_frames": (operator_faults.bad_frames, 0.5),
    "read_status": (operator_faults.read_status, 0.5),
}


# after these the newest manifest may be at no client that can spread it
MANIFEST_LOST = frozenset(
    {
        "bit_flip",
        "change_address",
        "dead_root",
        "half_copy",
        "join",
        "lost_disk",
        "old_manifest",
        "quarantine",
        "remove",
        "restore",
        "roll_back",
    }
)


def heal(cluster: Cluster, inflicted: Iterable[Fault]) -> None:
    """End all faults: the network, disks and clocks are well, and all members run."""
    cluster.end_faults()
    cluster.network.heal()
    for name, host in cluster.hosts.items():
        cluster.end_clone(name)
        host.disk.is_full = False
        host.clock.error = 0.0
        if name in cluster.manifest.names:
            cluster.issue(name)
        host.step_seconds = 0.02
        host.has_bad_data = False
        if host.chaos and host.process is not None:
            cluster.kill(name)
        host.chaos = {}
        if host.process is not None:
            host.process.crash_in = 0
        else:
            cluster.start(name)
    if any(fault.kind in MANIFEST_LOST for fault in inflicted):
        # a newcomer cannot spread a version: clients that do not have it refuse its links
        members = [name for name in names_of(cluster.setup) if name in cluster.manifest.linked]
        cluster.give_manifest(cluster.random.choice(members or cluster.manifest.names))
    cluster.start_ended()
    if cluster.checks.set_back:
        # a client that has forgotten the end of others needs them once more; they may end a little later
        cluster.after(2 * REPORT_SECONDS, cluster.start_ended)
    if cluster.moved:  # some clients may have the old addresses of all that have the newest version
        for name in cluster.manifest.names:
            cluster.give_manifest(name)

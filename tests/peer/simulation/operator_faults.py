"""What happens to single clients: backups, bad data, damaged frames, and a request for a status."""

from __future__ import annotations

import tempfile
from pathlib import Path

from spodgt.peer.host.interfaces import WireError
from spodgt.peer.monitoring.report_validation import parse_report
from spodgt.peer.protocol.running_sums import Refused
from spodgt.peer.storage import backup
from spodgt.peer.transport.connection import fetch
from tests.peer.simulation.checks import Violation
from tests.peer.simulation.cluster import FOLDER, Cluster, PeerProcess, unchanged
from tests.peer.simulation.frames import Damage
from tests.peer.simulation.plan import Fault


def restore(cluster: Cluster, fault: Fault) -> None:
    """A backup is made while the client runs; later its state is lost and made from the backup."""
    made = _back_up(cluster, fault.target)
    if made is None:
        return

    def put_back() -> None:
        if fault.target not in cluster.manifest.names:
            return
        cluster.kill(fault.target)
        disk = cluster.hosts[fault.target].disk
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "backup"
            file.write_bytes(made)
            folder = Path(directory) / "peer"
            backup.restore(file, folder)
            disk.remove(FOLDER)
            disk.read_from(folder, FOLDER)
        cluster.issue(fault.target)  # the one of the backup may have ended
        cluster.give_manifest(fault.target)  # the one of the backup may be older than the others'
        cluster.checks.lost_state(fault.target)
        cluster.start(fault.target)

    cluster.at_end(fault.seconds, put_back)


def restore_model(cluster: Cluster, fault: Fault) -> None:
    """The model of a backup is put into a client, which begins an epoch with it."""
    made = _back_up(cluster, fault.target)
    if made is None:
        return

    def put_back() -> None:
        if fault.target not in cluster.manifest.names:
            return
        cluster.kill(fault.target)
        disk = cluster.hosts[fault.target].disk
        if not disk.has(FOLDER / "state"):
            return
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "backup"
            file.write_bytes(made)
            folder = Path(directory) / "peer"
            disk.write_to(FOLDER, folder)
            backup.restore_model(file, folder)
            disk.remove(FOLDER / "state")
            disk.read_from(folder / "state", FOLDER / "state")
        cluster.start(fault.target)

    cluster.at_end(fault.seconds, put_back)


def _back_up(cluster: Cluster, name: str) -> bytes | None:
    """The file of a backup; None if the client has no whole state."""
    host = cluster.hosts[name]
    if host.process is None or host.is_damaged:
        return None
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "peer"
        host.disk.write_to(FOLDER, folder)
        file = Path(directory) / "backup"
        backup.backup(folder, file)
        return file.read_bytes()


def bad_gradients(cluster: Cluster, fault: Fault) -> None:
    """The data of a client give gradients that are not finite."""
    host = cluster.hosts[fault.target]
    host.has_bad_data = True

    def repair() -> None:
        host.has_bad_data = False

    cluster.at_end(fault.seconds, repair)


def bad_frames(cluster: Cluster, fault: Fault) -> None:
    """A member sends frames that no peer sends; each must be refused."""
    host = cluster.hosts[fault.target]
    host.damage = Damage(int(fault.number))

    def repair() -> None:
        host.damage = unchanged

    cluster.at_end(fault.seconds, repair)


def read_status(cluster: Cluster, fault: Fault) -> None:
    """One client reads the status of another, which must be a valid report."""
    process = cluster.hosts[fault.target].process
    if process is not None and fault.other in cluster.manifest.names:
        process.spawn(_read_status(cluster, process, fault.other))


async def _read_status(cluster: Cluster, process: PeerProcess, other: str) -> None:
    identity = process.peer.membership.identity
    address = cluster.manifest.client(other).address
    try:
        data = await fetch("Status", identity, address, other, through=process.peer.host.wire)
    except (WireError, Refused, TimeoutError):
        return
    try:
        parse_report(data)
    except ValueError as error:
        cluster.fail(Violation(f"the status of {other} is not valid: {error}"))

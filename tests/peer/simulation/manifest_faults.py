"""Faults of the authority and of clients that come and go: versions of the manifest."""

from __future__ import annotations

from collections.abc import Callable

from spodgt.errors import SpodgtError
from spodgt.peer.membership import manifest_changes
from spodgt.peer.membership.manifest import Manifest
from spodgt.peer.options import Change, Ends, Table
from tests.peer.simulation.cluster import FOLDER, Cluster, first_step_size
from tests.peer.simulation.plan import Fault


def old_manifest(cluster: Cluster, fault: Fault) -> None:
    """An older version of the manifest is copied into the folder of a client."""
    file = cluster.old_manifests[int(fault.number) % len(cluster.old_manifests)]
    cluster.hosts[fault.target].disk.put(FOLDER / "manifest.toml", file)
    if fault.target not in cluster.manifest.names:
        # no member serves a removed client: only its operator can tell it that it was removed
        cluster.at_end(fault.seconds, lambda: cluster.give_manifest(fault.target))


def change_settings(cluster: Cluster, fault: Fault) -> None:
    """Another step size, rate or limit."""
    version = cluster.manifest.version
    step_size = first_step_size(cluster.setup.method) * (1 - 1e-3 * version)
    changes = (
        Change(step_size=step_size),
        Change(max_alone=5 + version),
        Change(rounds_per_second=cluster.setup.rate * (1 + 0.1 * version)),
    )
    change = changes[int(fault.number) % 3]
    _publish(cluster, lambda manifest: manifest_changes.apply_change(manifest, change))


def change_address(cluster: Cluster, fault: Fault) -> None:
    """A client listens elsewhere; neighbours that miss it need the manifest from their operators."""
    cluster.moved.add(fault.target)
    address = f"10.1.{cluster.manifest.version}.1:7000"
    change = Change(addresses={fault.target: address})
    _publish(cluster, lambda manifest: manifest_changes.apply_change(manifest, change))


def change_links(cluster: Cluster, fault: Fault) -> None:
    """A link is added, used less often, or taken away."""
    ends = (fault.target, fault.other)
    known = {(link.sender, link.receiver) for link in cluster.manifest.links}
    change = Change(links={ends: {"p_hat": 0.5}})
    if ends in known and fault.number > 3:
        change = Change(unlinked=frozenset({ends}))
    _publish(cluster, lambda manifest: manifest_changes.apply_change(manifest, change))


def change_root(cluster: Cluster, fault: Fault) -> None:
    """Another client leads."""
    _publish(
        cluster, lambda manifest: manifest_changes.apply_change(manifest, Change(root=fault.target))
    )


def quarantine(cluster: Cluster, fault: Fault) -> None:
    """A client has no links for a while."""
    if _publish(cluster, lambda manifest: manifest_changes.set_quarantine(manifest, fault.target)):
        cluster.at_end(
            fault.seconds,
            lambda: _publish(
                cluster, lambda m: manifest_changes.set_quarantine(m, fault.target, False)
            ),
        )


def remove(cluster: Cluster, fault: Fault) -> None:
    """A client leaves for ever."""
    _remove(cluster, fault.target)


def _remove(cluster: Cluster, name: str) -> bool:
    if len(cluster.manifest.linked) <= 2:
        return False
    if not _publish(cluster, lambda manifest: manifest_changes.remove_client(manifest, name)):
        return False
    cluster.give_manifest(name)
    return True


def dead_root(cluster: Cluster, fault: Fault) -> None:
    """The root of `relay` dies for ever, and is removed."""
    root = cluster.manifest.root
    if not root or not cluster.hosts[root].is_wanted:
        return
    cluster.kill(root)
    cluster.hosts[root].is_wanted = False

    def replace() -> None:
        is_member = root in cluster.manifest.names
        if is_member and not _remove(cluster, root):
            cluster.hosts[root].is_wanted = True
            cluster.start(root)

    cluster.at_end(fault.seconds, replace)


def join(cluster: Cluster, fault: Fault) -> None:
    """A client joins."""
    name = f"p{len(cluster.hosts)}"
    links: dict[Ends, Table] = {}
    for other in (fault.target, fault.other):
        links[name, other] = {}
        links[other, name] = {}

    def add_client(manifest: Manifest) -> Manifest:
        address = f"10.0.0.{len(cluster.hosts)}:7000"
        return manifest_changes.add_client(manifest, name, address=address, links=links)

    if _publish(cluster, add_client):
        cluster.add_host(name)
        cluster.at_end(fault.seconds, lambda: cluster.start(name))


def _publish(cluster: Cluster, change: Callable[[Manifest], Manifest]) -> bool:
    """Sign a next version and give it to a member; False if the version is not possible.

    The member runs, unless none does. It is never a newcomer, whose host does not exist yet.
    """
    try:
        manifest = change(cluster.manifest)
    except SpodgtError as error:
        cluster.checks.note(f"refused by the authority: {error}")
        return False
    running = [name for name in cluster.running() if name in manifest.names]
    members = [name for name in manifest.names if name in cluster.hosts]
    cluster.publish(manifest, cluster.random.choice(running or members))
    return True

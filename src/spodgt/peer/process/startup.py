"""The start of a client, also of a training site: its committed state, its node and its links."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from spodgt.errors import InvalidInput
from spodgt.peer.membership.manifest import RESETS, Manifest
from spodgt.peer.options import Options
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.membership import Membership
from spodgt.peer.process.status import SUSPECT, ModelEvaluator, Reporter
from spodgt.peer.protocol.audit import local_error
from spodgt.peer.protocol.client_state import Gradient, State, state_from
from spodgt.peer.protocol.epoch_limit import EpochRateLimiter
from spodgt.peer.protocol.node import Node
from spodgt.peer.protocol.running_sums import Incarnation
from spodgt.peer.storage.state_store import DiskStateStore, StoredState
from spodgt.peer.transport import wire_format
from spodgt.peer.transport.connection import LocalClient
from spodgt.peer.transport.links import Transport


def load_state(store: DiskStateStore, manifest: Manifest, journal: Journal) -> StoredState | None:
    """The newest undamaged state; None if the client begins anew. Damage is logged."""
    saved = store.load(_check_audit)
    if saved is not None:
        _check_owner(saved, store, manifest, journal.name)
    if store.damaged:
        consequence = "the newest undamaged commit is used"
        if saved is None:
            consequence = "the client begins anew, with an epoch reset of all"
        journal.event("damaged", f"{store.damaged}; {consequence}")
    return saved


def _check_audit(saved: StoredState) -> None:
    """Raise ValueError for a state that no client can be in: its local audit is not zero to rounding."""
    error = local_error(state_from(*saved))
    if not error <= SUSPECT:
        raise ValueError(f"its local audit is {error:.1e}")


def _check_owner(saved: StoredState, store: DiskStateStore, manifest: Manifest, name: str) -> None:
    """Refuse the state of another client, or of a later manifest."""
    meta = saved.meta
    if meta["run"] != manifest.run or meta["name"] != name:
        raise InvalidInput(
            f"{store.path} holds the state of {meta['name']} in run {meta['run']}, not of {name} in "
            f"{manifest.run}; give another folder."
        )
    if meta["epoch"] > manifest.last_epoch:
        raise InvalidInput(
            f"the state in {store.path} has version {meta['epoch'] // RESETS}, but manifest.toml has "
            f"version {manifest.version}; put the newer manifest.toml there, from the authority or "
            "from another client's folder."
        )


def start_node(
    saved: StoredState | None,
    first_state: Callable[[], State],
    gradient: Gradient,
    store: DiskStateStore,
    membership: Membership,
    journal: Journal,
) -> Node:
    """The node with its last committed state, or with a first one; committed as a new incarnation."""
    terms = membership.terms
    manifest = terms.manifest
    number = 1 if saved is None else saved.meta["incarnation"] + 1
    state = first_state() if saved is None else state_from(*saved)
    node = Node(
        terms.algorithm,
        gradient,
        store,
        incarnation=Incarnation(number, journal.host.random.getrandbits(63)),
        state=state,
        topology=terms.topology,
        member=terms.member,
        quantized=manifest.method.quantized,
        notify=journal.event,
    )
    node.new_row = store.new_row
    node.epoch_limiter = EpochRateLimiter(journal.host.clock.monotonic)
    node.last_epoch = manifest.last_epoch
    if saved is None:
        node.mark_all_dirty()
    elif state.epoch < manifest.epoch:
        node.relink(terms.topology, manifest.epoch)
    elif saved.meta.get("crew", [0])[0]:
        # release 0.2.0: clients had changed the root among themselves
        node.relink(terms.topology, state.epoch + 1)
    node.commit()  # the new incarnation is on disk before any message leaves
    return node


def make_links(
    folder: Path,
    node: Node,
    membership: Membership,
    evaluator: ModelEvaluator,
    journal: Journal,
    options: Options,
) -> tuple[Transport, Reporter]:
    """The links of a client, not connected yet, and the reporter of its status."""
    manifest = membership.manifest
    context = wire_format.Context(
        manifest.run,
        bytes.fromhex(manifest.layout),
        manifest.parameters,
        journal.name,
        metadata.version("spodgt"),
        manifest.method.quantized,
    )
    local = LocalClient(context, membership.identity, node.receive, journal.event, journal.host)
    local.new_row = node.new_row
    transport = Transport(local)
    reporter = Reporter(folder, node, evaluator, transport, journal, options)

    def report_for(name: str) -> bytes | None:
        return reporter.to_json() if membership.may_read(name) else None

    def look_for_manifest(name: str) -> None:
        """Request the manifest of a member after one end has refused a link: it may be newer than ours.

        No frame brings a newer version to a client that has none of its old links in it. Here it gets the
        beginning of a quarantine, from a neighbour that refuses it, and the end, from one that it refuses.
        """
        if name in membership.manifest.names:
            node.newer_manifest = name

    local.on_refused_link = look_for_manifest
    transport.calls.manifest = membership.manifest_for
    transport.calls.status = report_for
    return transport, reporter

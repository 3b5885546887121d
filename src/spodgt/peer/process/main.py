"""A client as a process: rounds in one thread, network calls in another, and a clean end of both."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

from spodgt.errors import Failed, InvalidInput, SpodgtError
from spodgt.peer.host.fault_injection import Chaos
from spodgt.peer.host.interfaces import Host
from spodgt.peer.membership.certificates import OBSERVER, Identity
from spodgt.peer.membership.manifest import RESETS, Manifest
from spodgt.peer.options import Options
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.local_problem import LocalProblem
from spodgt.peer.process.membership import Membership, Terms
from spodgt.peer.process.round_loop import RoundLoop
from spodgt.peer.process.status import SUSPECT, Reporter
from spodgt.peer.protocol.audit import local_error
from spodgt.peer.protocol.client_state import State, initial_state, state_from
from spodgt.peer.protocol.epoch_limit import EpochRateLimiter
from spodgt.peer.protocol.node import Node
from spodgt.peer.protocol.running_sums import Incarnation
from spodgt.peer.storage.state_store import DiskStateStore, StoredState
from spodgt.peer.transport import wire_format
from spodgt.peer.transport.connection import LocalClient
from spodgt.peer.transport.grpc_wire import system_host
from spodgt.peer.transport.links import Transport


class Peer:
    """Client `name` of a run, put together from its folder of certificate, manifest and state.

    Args:
        folder: of the client.
        name: of the client, as in its certificate.
        options: how it runs.
        host: its clocks, disk and wire; default: those of this process.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str,
        options: Options = Options(),  # noqa: B008
        host: Host | None = None,
    ) -> None:
        folder = Path(folder)
        host = host or system_host()
        self.name = name
        self.options = options
        self.host = host
        identity = Identity.read(folder, name, host.files, host.clock.wall())
        self.journal = Journal(folder / "log.jsonl", name, host)
        self.membership = Membership(folder, identity, self.journal.event, host)
        manifest = self.membership.manifest
        self.local_problem = LocalProblem(
            name, manifest, self.membership.terms.capacity, host.clock
        )
        labels = {"run": manifest.run, "name": name, "layout": manifest.layout}
        self.store = DiskStateStore(
            folder / "state", durability=options.durability, labels=labels, files=host.files
        )
        try:
            self.node = restore_node(self.store, self.membership, self.local_problem, self.journal)
        except SpodgtError:
            self.store.close()
            raise
        self.context = wire_format.Context(
            manifest.run,
            bytes.fromhex(manifest.layout),
            manifest.parameters,
            name,
            metadata.version("spodgt"),
            manifest.method.quantized,
        )
        receive = Chaos.parse(self.node.receive, os.environ.get("SPODGT_CHAOS", ""))
        local = LocalClient(self.context, identity, receive, self.journal.event, host)
        self.transport = Transport(local, self.membership.manifest_for, self._report_for)
        self.transport.on_unknown_link = self._look_for_manifest
        self.reporter = Reporter(
            folder, self.node, self.local_problem, self.transport, self.journal, options
        )
        self.rounds = RoundLoop(
            self.node, self.transport, self.membership, self.local_problem, self.reporter, options
        )

    def _look_for_manifest(self, name: str) -> None:
        """Request the manifest of a member that has opened an unknown link: it may be newer than ours.

        A client in quarantine has no links, so this is how it learns that the quarantine has ended.
        """
        if name in self.membership.manifest.names:
            self.node.newer_manifest = name

    def _report_for(self, name: str) -> bytes | None:
        """The status and the latest events, for members and observers."""
        if name != OBSERVER and name not in self.membership.manifest.names:
            return None
        status = self.reporter.status.to_dict(self.host.clock.wall())
        return json.dumps({"status": status, "events": self.journal.recent_rows()}).encode()

    def run(self, view: Callable[[], None] = lambda: None) -> None:
        """Run in this process until the rounds are done, or SIGTERM or SIGINT ends them cleanly.

        `view` is called twice a second.
        """
        _raise_descriptor_limit()
        torch.set_num_threads(1)  # several peers may share a host; a peer's step is small
        # The 200,000 objects of imported modules are no garbage. Python collects its oldest generation only
        # after growth by a quarter of all objects that it counts; frozen objects are not counted.
        gc.freeze()
        try:
            asyncio.run(self._run(view))
        finally:
            gc.unfreeze()

    async def start(self) -> None:
        """Listen and connect to the neighbours."""
        manifest = self.membership.manifest
        address = self.options.listen or manifest.client(self.name).address
        try:
            await self.transport.start(address, *manifest.neighbours(self.name))
        except RuntimeError:
            raise Failed(
                f"{self.name} cannot listen at {address}; is another process there?"
            ) from None

    async def stop(self) -> None:
        """Close all links, report for the last time, and close the state."""
        await asyncio.sleep(0.05)  # the last frames leave
        await self.transport.stop()
        self.reporter.report(last=True)
        self.store.close()

    async def _run(self, view: Callable[[], None]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.rounds.stop)
        await self.start()
        rounds = asyncio.create_task(asyncio.to_thread(self.rounds.run))
        try:
            while not self.rounds.halt.is_set() and not rounds.done():
                view()
                await asyncio.wait({rounds}, timeout=0.5)
        finally:
            self.rounds.stop()
            await asyncio.wait({rounds})
            failure = rounds.exception()
            if failure is None:
                await self.stop()
            else:
                self.journal.event("failed", str(failure))
                await self.transport.stop()
                self.store.close()
        rounds.result()


def _raise_descriptor_limit() -> None:
    """Take as many descriptors as the host allows: every connection of a stranger costs one."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_state(saved: StoredState) -> None:
    """Raise ValueError for a state that no client can be in: its local audit is not zero to rounding."""
    error = local_error(state_from(*saved))
    if not error <= SUSPECT:
        raise ValueError(f"its local audit is {error:.1e}")


def restore_node(
    store: DiskStateStore, membership: Membership, local_problem: LocalProblem, journal: Journal
) -> Node:
    """The client as its last incarnation has committed it, or a new one; committed as a new incarnation."""
    terms = membership.terms
    manifest = terms.manifest
    saved = store.load(check_state)
    if saved is None:
        if store.damaged:
            text = f"{store.damaged}; the client begins anew, with an epoch reset of all"
            journal.event("damaged", text)
        number = 1
        state = _first_state(terms, local_problem)
    else:
        _check_owner(saved, store, manifest, journal.name)
        if store.damaged:
            journal.event("damaged", f"{store.damaged}; the newest undamaged commit is used")
        number = saved.meta["incarnation"] + 1
        state = state_from(*saved)
    node = Node(
        terms.algorithm,
        local_problem.gradient,
        store,
        incarnation=Incarnation(number, journal.host.random.getrandbits(63)),
        state=state,
        topology=terms.topology,
        member=terms.member,
        quantized=manifest.method.quantized,
        notify=journal.event,
    )
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


def _first_state(terms: Terms, local_problem: LocalProblem) -> State:
    """The state of a client without a committed one."""
    return initial_state(
        terms.algorithm,
        local_problem.gradient,
        local_problem.start(),
        local_problem.capacity.computes(0),
        terms.topology.role,
        epoch=terms.manifest.epoch,
        member=terms.member,
        private=local_problem.private(),
    )


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
            f"the state in {store.path} is of version {meta['epoch'] // RESETS}, but manifest.toml is "
            f"of version {manifest.version}; put the newer manifest.toml there, from the authority or "
            "from another client's folder."
        )

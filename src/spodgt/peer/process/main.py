"""A client as a process: rounds in one thread, network calls in another, and a clean end of both."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from pathlib import Path

import torch

from spodgt.errors import Failed, SpodgtError
from spodgt.peer.host.files import raise_descriptor_limit
from spodgt.peer.host.interfaces import Host
from spodgt.peer.membership.certificates import Identity
from spodgt.peer.options import Options
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.local_problem import LocalProblem
from spodgt.peer.process.membership import Membership
from spodgt.peer.process.round_loop import RoundLoop
from spodgt.peer.process.startup import load_state, make_links, start_node
from spodgt.peer.protocol.client_state import State, initial_state
from spodgt.peer.storage.state_store import DiskStateStore
from spodgt.peer.transport.grpc_wire import system_host


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
            saved = load_state(self.store, manifest, self.journal)
            self.node = start_node(
                saved,
                self._first_state,
                self.local_problem.gradient,
                self.store,
                self.membership,
                self.journal,
            )
        except SpodgtError:
            self.store.close()
            raise
        self.transport, self.reporter = make_links(
            folder, self.node, self.membership, self.local_problem, self.journal, options
        )
        self.rounds = RoundLoop(
            self.node, self.transport, self.membership, self.local_problem, self.reporter, options
        )

    def _first_state(self) -> State:
        """The state of a client without a committed one."""
        terms = self.membership.terms
        return initial_state(
            terms.algorithm,
            self.local_problem.gradient,
            self.local_problem.start(),
            self.local_problem.capacity.computes(0),
            terms.topology.role,
            epoch=terms.manifest.epoch,
            member=terms.member,
            private=self.local_problem.private(),
        )

    def run(self, view: Callable[[], None] = lambda: None) -> None:
        """Run in this process until the rounds are done, or SIGTERM or SIGINT ends them cleanly.

        `view` is called twice a second.
        """
        raise_descriptor_limit()  # every connection of a stranger costs one
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

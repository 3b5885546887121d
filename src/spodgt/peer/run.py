"""A client as a process: rounds in one thread, sockets in another, and both stop cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import secrets
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from spodgt.errors import Failed, InvalidInput
from spodgt.peer import wire
from spodgt.peer.capacity import capacity
from spodgt.peer.faults.injection import Chaos
from spodgt.peer.identity import Identity
from spodgt.peer.journal import Journal
from spodgt.peer.manifest import RESETS, Manifest
from spodgt.peer.membership import Membership
from spodgt.peer.node import Node
from spodgt.peer.options import Options
from spodgt.peer.protocol import Incarnation
from spodgt.peer.rounds import Rounds
from spodgt.peer.states import Member, begin, state_from
from spodgt.peer.status import Reporter
from spodgt.peer.store import Store
from spodgt.peer.transport import Local, Transport
from spodgt.peer.work import Work


class Peer:
    """Client `name` of a run, put together from its folder of certificate, manifest and state."""

    def __init__(self, folder: str | Path, name: str, options: Options = Options()) -> None:  # noqa: B008
        folder = Path(folder)
        self.name, self.options = name, options
        identity = Identity.read(folder, name)
        self.membership = Membership(folder, identity)
        manifest = self.membership.manifest
        own = manifest.client(name)
        device = capacity(own.compute, manifest.seed, own.place)
        self.work = Work(name, manifest, device, options.problem)
        self.journal = Journal(folder / "log.jsonl", name)
        labels = {"run": manifest.run, "name": name, "layout": manifest.layout}
        self.store = Store(folder / "state", durability=options.durability, labels=labels)
        member = Member(own.place, len(manifest.clients), device.p)
        self.node = restore(self.store, manifest, self.work, member, self.journal)
        self.context = wire.Context(
            manifest.run, bytes.fromhex(manifest.layout), manifest.parameters, name, version()
        )
        hear = Chaos.parse(self.node.hear, os.environ.get("SPODGT_CHAOS", ""))
        local = Local(self.context, identity, hear, self.journal.event)
        self.transport = Transport(local, lambda: self.membership.current[1:])
        self.reporter = Reporter(folder, self.node, self.work, self.transport, self.journal, options)
        self.rounds = Rounds(self.node, self.transport, self.membership, device, self.reporter, options)

    async def run(self, view: Callable[[], None] | None = None) -> None:
        """Run until the rounds are done or `rounds.halt` is set; `view` is called twice a second."""
        loop, idle = asyncio.get_running_loop(), asyncio.Event()
        manifest = self.membership.manifest
        address = self.options.listen or manifest.client(self.name).address
        try:
            await self.transport.start(address, *manifest.neighbours(self.name))
        except RuntimeError:
            raise Failed(f"{self.name} cannot listen at {address}; is another process there?") from None

        def work() -> None:
            self.rounds.run()
            loop.call_soon_threadsafe(idle.set)

        threading.Thread(target=work, name="rounds", daemon=True).start()
        try:
            while not self.rounds.halt.is_set() and not idle.is_set():
                if view:
                    view()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(idle.wait(), 0.5)
        finally:
            self.rounds.halt.set()
            self.node.arrived.set()
            await idle.wait()
            await asyncio.sleep(0.05)
            await self.transport.stop()
            if not self.rounds.failure:
                self.reporter.final()
            self.store.close()
        if self.rounds.failure:
            self.journal.event("failed", str(self.rounds.failure))
            raise self.rounds.failure


def restore(store: Store, manifest: Manifest, work: Work, member: Member, journal: Journal) -> Node:
    """The client as it was when its last incarnation committed, or at its beginning; committed again."""
    name, algorithm = journal.name, manifest.method.build()
    out, into = manifest.weights_of(name)
    saved, nonce = store.load(), secrets.randbits(63)
    if saved is None:
        first = work.capacity.computes(0)
        state = begin(
            algorithm, work.gradient, work.start(), first, out, into, epoch=manifest.epoch, member=member
        )
        incarnation = Incarnation(1, nonce)
    else:
        if saved.meta["run"] != manifest.run or saved.meta["name"] != name:
            raise InvalidInput(
                f"{store.path} holds the state of {saved.meta['name']} in run {saved.meta['run']}, not of "
                f"{name} in {manifest.run}; give another folder."
            )
        state = state_from(*saved)
        incarnation = Incarnation(saved.meta["incarnation"] + 1, nonce)
        if store.damaged:
            journal.event(
                "damaged", f"the newest commit cannot be used ({store.damaged}); the one before it is"
            )
    node = Node(
        algorithm,
        work.gradient,
        store,
        incarnation=incarnation,
        state=state,
        member=member,
        notify=journal.event,
    )
    node.last_epoch = manifest.epoch + RESETS - 1
    if saved is None:
        node.touch()
    elif state.epoch < manifest.epoch:
        node.relink(out, into, manifest.epoch)
    node.commit()  # the new incarnation is on disk before anybody hears of it
    return node


def version() -> str:
    """Of the installed package."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("spodgt")
    return "unknown"


def run_peer(peer: Peer, view: Callable[[], None] | None = None) -> None:
    """Run a peer in this process; SIGTERM and SIGINT end it cleanly."""
    torch.set_num_threads(1)  # several peers may share a host; a peer's step is small

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, peer.rounds.halt.set)
        await peer.run(view)

    asyncio.run(main())

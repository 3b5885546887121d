"""The local rounds of a peer, in their own thread, and the manifest that it follows.

take what has arrived ▶ step ▶ commit ▶ only now send and acknowledge ▶ again
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from spodgt.errors import InvalidInput
from spodgt.peer.faults import crash_point
from spodgt.peer.identity import Identity
from spodgt.peer.manifest import SignedManifest
from spodgt.peer.node import Node
from spodgt.peer.options import Options
from spodgt.peer.status import Reporter
from spodgt.peer.transport import Transport, fetch_manifest
from spodgt.peer.work import Capacity, active_links

_WAIT = 0.2  # seconds, the longest pause before `halt` is checked again
_PAUSE = 0.5  # seconds between two requests for a manifest


class Membership:
    """The signed manifest in force, and a newer one once it is known: from the folder or from a neighbour."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder, self.identity = folder, identity
        self.current = SignedManifest.read(folder, identity.authority)
        self.update: SignedManifest | None = None
        self._request: concurrent.futures.Future[None] | None = None

    def shown_to(self, name: str) -> tuple[bytes, bytes] | None:
        """Text and signature for the client `name`; None if it is no member, or none any more."""
        _, text, signature = self.current
        return (text, signature) if name in self.current.manifest.names else None

    def adopt(self) -> bool:
        """Put the newer manifest in force and keep it in the folder, if there is one."""
        if self.update is None:
            return False
        self.current, self.update = self.update, None
        self.current.write(self.folder)
        return True

    def check_folder(self) -> None:
        """Somebody may have put a newer manifest into the folder."""
        with contextlib.suppress(InvalidInput, OSError):  # half written, or not ours: checked again later
            if (self.folder / "manifest.toml").read_bytes() != self.current.text:
                self._consider(SignedManifest.read(self.folder, self.identity.authority))

    def ask(self, neighbour: str, loop: asyncio.AbstractEventLoop) -> None:
        """Fetch a neighbour's manifest in `loop`; one request at a time."""
        if self._request is None or self._request.done():
            self._request = asyncio.run_coroutine_threadsafe(self._fetch(neighbour), loop)

    async def _fetch(self, neighbour: str) -> None:
        with contextlib.suppress(Exception):  # the neighbour's next frame asks again
            address = self.current.manifest.client(neighbour).address
            text, signature = await fetch_manifest(self.identity, address, neighbour)
            self._consider(SignedManifest.verify(text, signature, self.identity.authority))
        await asyncio.sleep(_PAUSE)

    def _consider(self, newer: SignedManifest) -> None:
        ours, theirs = self.current.manifest, newer.manifest
        if theirs.run == ours.run and theirs.version > ours.version and theirs.layout == ours.layout:
            theirs.client(self.identity.name)  # raises if we have left
            self.update = newer


@dataclass(eq=False)
class Rounds:
    """Advances a node round by round, and sends what it has committed."""

    node: Node
    transport: Transport
    membership: Membership
    capacity: Capacity
    reporter: Reporter
    options: Options

    def __post_init__(self) -> None:
        self.name = self.membership.identity.name
        self.halt = threading.Event()
        self.begun = time.monotonic()
        self._next = 0.0  # when the next round is due, if their rate is limited
        self._alone = 0  # rounds since a message arrived

    def run(self) -> None:
        """Rounds until a limit is reached or `halt` is set."""
        while not self.halt.is_set() and not self._done():
            self._round()
        if self.node.dirty:
            self._publish()
        while self.options.linger and not self.halt.is_set():
            self._rest()

    def _done(self) -> bool:
        o, state = self.options, self.node.state
        return (
            (o.rounds is not None and state.k > o.rounds)
            or (o.gradients is not None and state.gradients >= o.gradients)
            or (o.seconds is not None and time.monotonic() - self.begun >= o.seconds)
        )

    def _round(self) -> None:
        node, manifest, k = self.node, self.membership.current.manifest, self.node.state.k
        if self._follow_manifest():
            return
        self._pace(manifest.rounds_per_second)
        # theory wants bounded delays: without news from anybody a client drifts towards its own data
        waiting = bool(manifest.max_alone) and self._alone >= manifest.max_alone and not node.inbox
        self.reporter.status.waiting = waiting
        if waiting:
            self._wait()
        else:
            links = active_links(manifest.probabilities(self.name), manifest.seed, node.member.place, k)
            node.advance(self.capacity.computes(k), links)
            self._alone = 0 if node.heard else self._alone + 1
            crash_point("frames taken")
            if k % self.options.commit_every == 0:
                self._publish()
        self._report()

    def _rest(self) -> None:
        """After the last round: take what neighbours send and acknowledge it."""
        self._wait()
        if not self._follow_manifest() and (self.node.inbox or self.node.acks):
            self.node.absorb()
            self._publish()
        self._report()

    def _wait(self) -> None:
        self.node.arrived.wait(_WAIT)
        self.node.arrived.clear()

    def _pace(self, rate: float) -> None:
        if rate:
            self._next = max(self._next + 1 / rate, time.monotonic() - 1)
            self.halt.wait(max(0.0, self._next - time.monotonic()))

    def _publish(self) -> None:
        """Commit, then send what others have not acknowledged, and acknowledge what was taken."""
        owed = self.node.commit()
        for target in self.node.state.out:
            if self.node.waits(target) and (message := self.node.message(target)):
                self.transport.send_latest(target, message)
        for source in owed:
            if ack := self.node.ack(source):
                self.transport.send_ack(source, ack)

    def _follow_manifest(self) -> bool:
        """Ask a neighbour for the newer manifest it has; adopt one that is here: other links, a new epoch."""
        if self.node.newer_manifest is not None:
            self.membership.ask(self.node.newer_manifest, self.transport.loop)
            self.node.newer_manifest = None
        if not self.membership.adopt():
            return False
        manifest = self.membership.current.manifest
        self.node.last_epoch = manifest.last_epoch
        self.node.relink(*manifest.weights_of(self.name), manifest.epoch)
        self._publish()
        told = f"version {manifest.version} with {len(manifest.clients)} clients"
        self.reporter.journal.event("manifest", told)
        self.transport.loop.call_soon_threadsafe(self.transport.relink, *manifest.neighbours(self.name))
        return True

    def _report(self) -> None:
        if self.reporter.due:
            self.membership.check_folder()
            self._drop_silent()
            self.reporter.report()

    def _drop_silent(self) -> None:
        """Go on without neighbours that have been silent for too long, if that is wanted."""
        limit = self.options.drop_after
        for name, seconds in self.reporter.silence().items() if limit else ():
            if seconds > (limit or 0) and self.node.drop(name, f"silent for {seconds:.0f} s"):
                self._publish()

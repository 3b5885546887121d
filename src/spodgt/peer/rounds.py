"""The local rounds of a peer, in their own thread.

take what has arrived ▶ step ▶ commit ▶ only now send and acknowledge ▶ again
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from dataclasses import dataclass

from spodgt.errors import InvalidInput
from spodgt.peer.faults import crash_point
from spodgt.peer.identity import days_left
from spodgt.peer.manifest import RESETS
from spodgt.peer.membership import Membership
from spodgt.peer.node import Node
from spodgt.peer.options import Options
from spodgt.peer.status import Reporter
from spodgt.peer.transport import Transport
from spodgt.peer.work import Work, active_links

_CHECK_SECONDS = 10.0  # between two looks at the server's connections
_WAIT = 0.2  # seconds, the longest pause before `halt` is checked again
_SEND_AGAIN = 1.0  # seconds between two sends of the committed state while no local rounds are made


@dataclass(eq=False)
class Rounds:
    """Advances a node round by round, and sends what it has committed."""

    node: Node
    transport: Transport
    membership: Membership
    work: Work
    reporter: Reporter
    options: Options

    def __post_init__(self) -> None:
        self.name = self.membership.identity.name
        self.halt = threading.Event()
        self.begun = time.monotonic()
        self._checked = self.begun  # when the server's connections were looked at last
        self._next = 0.0  # when the next round is due, if their rate is limited
        self._sent_at = -math.inf  # monotonic time of the last send

    def run(self) -> None:
        """Rounds until a limit is reached or `halt` is set."""
        self._send_unacknowledged()  # after an outage every client may be waiting for a first message
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
        node, manifest, k = self.node, self.membership.manifest, self.node.state.k
        if self._follow_manifest():
            return
        self._pace(manifest.rounds_per_second)
        # theory wants bounded delays: without news from anybody a client drifts towards its own data
        alone = k - node.state.heard_at
        limit = self._max_alone()
        is_alone = limit is not None and alone >= limit
        waiting = is_alone and not node.inbox
        self.reporter.status.waiting = waiting
        if waiting:
            self._wait()
            self._exchange_without_round(bool(node.acks) and not node.inbox)
        else:
            node.advance(self.work.capacity.computes(k), self._active_links(k))
            crash_point("frames taken")
            if is_alone or k % self.options.commit_every == 0:
                self._publish()
        self._report()

    def _max_alone(self) -> int | None:
        """Local rounds without news after which the client waits; None: it never waits."""
        max_alone = self.membership.manifest.max_alone
        if not max_alone:
            return None
        return max(max_alone, 2 * self.node.exchange_every)  # at least one exchange falls into them

    def _active_links(self, k: int) -> list[str]:
        """The out-links drawn for round k.

        The last exchange before the client waits uses all of them. Otherwise a run could stop for ever:
        all messages acknowledged, and every client waiting for a message of another.
        """
        node = self.node
        if k % node.exchange_every:
            return []
        limit = self._max_alone()
        if limit is not None and k - node.state.heard_at + node.exchange_every >= limit:
            return list(node.state.out)
        manifest = self.membership.manifest
        return active_links(
            manifest.probabilities(self.name), manifest.seed, node.member.client_index, k
        )

    def _rest(self) -> None:
        """After the last round: take what neighbours send and acknowledge it."""
        self._wait()
        if not self._follow_manifest():
            self._exchange_without_round(bool(self.node.inbox or self.node.acks))
        self._report()

    def _exchange_without_round(self, has_frames: bool) -> None:
        """Apply and acknowledge received frames if there are any; else send again what is unacknowledged."""
        if has_frames:
            self.node.absorb()
        if has_frames or self.node.dirty:  # rounds may share a commit that is not due yet
            self._publish()
        elif time.monotonic() - self._sent_at >= _SEND_AGAIN:
            self._send_unacknowledged()

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
        self._send_unacknowledged()
        for source in owed:
            if ack := self.node.ack(source):
                self.transport.send_ack(source, ack)

    def _send_unacknowledged(self) -> None:
        """Send the committed message of each out-link whose receiver has not acknowledged it."""
        self._sent_at = time.monotonic()
        for target in self.node.state.out:
            if self.node.waits(target) and (message := self.node.message(target)):
                self.transport.send_latest(target, message)

    def _follow_manifest(self) -> bool:
        """Ask a neighbour for the newer manifest it has; adopt one that is here: other links, a new epoch."""
        if self.node.newer_manifest is not None:
            self.membership.ask(self.node.newer_manifest, self.transport.loop)
            self.node.newer_manifest = None
        if self.membership.left:
            raise InvalidInput(self.membership.left)
        terms = self.membership.adopt()
        if terms is None:
            return False
        manifest, node = terms.manifest, self.node
        good = self.membership.good_model(node.state.epoch // RESETS)
        if good is not None:
            node.go_to(good)
        node.member, node.last_epoch = terms.member, manifest.last_epoch
        node.use(terms.algorithm)
        self.work.capacity = terms.capacity
        node.relink(terms.seats, manifest.epoch)
        self._publish()
        told = f"version {manifest.version} with {len(manifest.clients)} clients"
        self.reporter.journal.event("manifest", told)
        self.transport.loop.call_soon_threadsafe(
            self.transport.relink, *manifest.neighbours(self.name)
        )
        return True

    def _report(self) -> None:
        if self.reporter.due:
            renewed = self.membership.check_folder()
            loop, transport = self.transport.loop, self.transport
            if renewed is not None:
                loop.call_soon_threadsafe(transport.renew, renewed)
            address = self.options.listen or self.membership.manifest.client(self.name).address
            if address != transport.address:
                asyncio.run_coroutine_threadsafe(transport.move(address), loop)
            if time.monotonic() - self._checked >= _CHECK_SECONDS:
                self._checked = time.monotonic()
                asyncio.run_coroutine_threadsafe(transport.check_full(), loop)
            self.reporter.status.days_left = days_left(self.membership.identity)
            self._drop_silent()
            self.reporter.report()

    def _drop_silent(self) -> None:
        """Go on without neighbours that have been silent for too long, if that is wanted."""
        limit = self.options.drop_after
        for name, seconds in self.reporter.silence().items() if limit else ():
            if seconds > (limit or 0) and self.node.drop(name, f"silent for {seconds:.0f} s"):
                self._publish()

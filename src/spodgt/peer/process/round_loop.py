"""The local rounds of a peer.

    apply received frames ▶ step ▶ commit ▶ send messages and acknowledgements ▶ next round

`RoundLoop.step` makes one round and returns how long to wait; `RoundLoop.run` calls it in its own thread.
"""

from __future__ import annotations

import asyncio
import math
import threading
from dataclasses import dataclass

from spodgt.errors import InvalidInput
from spodgt.peer.host.fault_injection import crash_point
from spodgt.peer.options import Options
from spodgt.peer.process.local_problem import LocalProblem, active_links
from spodgt.peer.process.membership import Membership
from spodgt.peer.process.status import Reporter
from spodgt.peer.protocol.node import Node
from spodgt.peer.transport.links import Transport

_CHECK_SECONDS = 10.0  # between two checks of the server's connections
_WAIT = 0.2  # seconds, the longest pause of a client that waits for frames
_END_SECONDS = 3.0  # after the last round, in which senders get an answer
_LAST_SECONDS = 60.0  # after the last round; then the client ends without neighbours that are down
_SEND_AGAIN = 1.0  # seconds between two sends of the committed state while no local rounds are made


@dataclass(eq=False)
class RoundLoop:
    """Advances a node round by round, and sends what it has committed."""

    node: Node
    transport: Transport
    membership: Membership
    local_problem: LocalProblem
    reporter: Reporter
    options: Options

    def __post_init__(self) -> None:
        self.name = self.membership.identity.name
        self.clock = self.membership.host.clock
        self.halt = threading.Event()
        self.begun = self.clock.monotonic()
        self._checked = self.begun  # monotonic time of the last check of the connections
        self._next = 0.0  # when the next round is due, if their rate is limited
        self._sent_at = -math.inf  # monotonic time of the last send
        self._ended_at = math.inf  # monotonic time at which all rounds were made

    def run(self) -> None:
        """Rounds until a limit is reached or `stop` is called."""
        while True:
            seconds = self.step()
            if seconds is None:
                return
            if seconds > 0:
                self.node.inbox.arrived.wait(seconds)
                self.node.inbox.arrived.clear()

    def stop(self) -> None:
        """Let `run` return after the current round; called from any thread."""
        self.halt.set()
        self.node.inbox.arrived.set()

    def step(self) -> float | None:
        """Make a local round, or what takes its place.

        Returns:
            Seconds to wait before the next call, less if a frame arrives; None: the rounds have ended.
        """
        if self._sent_at == -math.inf:
            # after an outage every client may be waiting for a first message
            self._send_unacknowledged()
        if self.halt.is_set() or self._done():
            if self.node.dirty:
                self._publish()
            if self.halt.is_set() or not self.options.linger:
                return None
            self._rest()
            return _WAIT
        if self._follow_manifest():
            return 0.0
        if 0 < self.membership.manifest.rounds < self.node.state.k:
            return self._end()
        early = self._pace(self.membership.manifest.rounds_per_second)
        if early > 0:
            return early
        pause = self._round()
        self._report()
        return pause

    def _done(self) -> bool:
        limits = self.options
        state = self.node.state
        return (
            (limits.rounds is not None and state.k > limits.rounds)
            or (limits.gradients is not None and state.gradients >= limits.gradients)
            or (limits.seconds is not None and self._elapsed() >= limits.seconds)
        )

    def _end(self) -> float | None:
        """Announce the end to all neighbours, in each epoch, and remain until they have acknowledged it."""
        if not self.node.has_ended:
            self.node.announce_end()
            self._publish()
        if self._ended_at == math.inf:
            self._ended_at = self.clock.monotonic()
            self.reporter.status.waiting = False
            self.reporter.journal.event("ended", f"all {self.node.state.k - 1} rounds were made")
            self.reporter.report()  # seen by those that request it before the process ends
        self._rest()
        seconds = self.clock.monotonic() - self._ended_at
        is_known = self.node.is_end_acknowledged() and seconds >= _END_SECONDS
        if (is_known or seconds >= _LAST_SECONDS) and not self.options.linger:
            return None
        return _WAIT

    def _elapsed(self) -> float:
        return self.clock.monotonic() - self.begun

    def _round(self) -> float:
        """A local round, or an exchange without one after many rounds without a message.

        Returns:
            Seconds to wait before the next round.
        """
        node = self.node
        k = node.state.k
        # Convergence requires bounded delays: a client without messages drifts towards its own data.
        limit = self._max_alone()
        is_alone = limit is not None and k - node.state.last_received_round >= limit
        waiting = is_alone and not node.inbox.messages
        self.reporter.status.waiting = waiting
        if waiting:
            self._exchange_without_round(bool(node.inbox.acks))
            return _WAIT
        node.advance(self.local_problem.capacity.computes(k), self._active_links(k))
        crash_point("frames taken")
        if is_alone or k % self.options.commit_every == 0:
            self._publish()
        return 0.0

    def _max_alone(self) -> int | None:
        """Local rounds without a message after which the client waits; None: it never waits."""
        max_alone = self.membership.manifest.max_alone
        if not max_alone or self.node.state.into.keys() <= self.node.state.ended:
            return None
        exchange_every = self.node.method_step.exchange_every
        return max(max_alone, 2 * exchange_every)  # at least one exchange falls into them

    def _active_links(self, k: int) -> list[str]:
        """The out-links drawn for round k.

        The last exchange before the client waits uses all of them. Otherwise a run could stop for ever:
        all messages acknowledged, and every client waiting for a message of another.
        """
        node = self.node
        exchange_every = node.method_step.exchange_every
        if k % exchange_every:
            return []
        limit = self._max_alone()
        rounds_alone = k - node.state.last_received_round
        if limit is not None and rounds_alone + exchange_every >= limit:
            return list(node.state.out)
        manifest = self.membership.manifest
        return active_links(
            manifest.probabilities(self.name), manifest.seed, node.member.client_index, k
        )

    def _rest(self) -> None:
        """After the last round: apply what neighbours send and acknowledge it."""
        if not self._follow_manifest():
            self._exchange_without_round(bool(self.node.inbox))
        self._report()

    def _exchange_without_round(self, has_frames: bool) -> None:
        """Apply and acknowledge received frames; without any, retransmit unacknowledged messages."""
        if has_frames:
            self.node.apply_received()
        if has_frames or self.node.dirty:  # rounds may share a commit that is not due yet
            self._publish()
        elif self.clock.monotonic() - self._sent_at >= _SEND_AGAIN:
            self._send_unacknowledged()

    def _pace(self, rate: float) -> float:
        """Seconds until the next round is due (rate limit); 0 if it is due now."""
        if not rate:
            return 0.0
        now = self.clock.monotonic()
        if now < self._next:
            return self._next - now
        self._next = max(self._next, now - 1) + 1 / rate
        return 0.0

    def _publish(self) -> None:
        """Commit, then send what is unacknowledged, and acknowledge what was received."""
        pending_acks = self.node.commit()
        self._send_unacknowledged()
        for source in sorted(pending_acks):
            ack = self.node.ack(source)
            if ack:
                self.transport.send_ack(source, ack)

    def _send_unacknowledged(self) -> None:
        """Send the committed message of each out-link whose receiver has not acknowledged it."""
        self._sent_at = self.clock.monotonic()
        for target in self.node.state.out:
            if not self.node.has_unacknowledged(target):
                continue
            message = self.node.message(target)
            if message:
                self.transport.send_latest(target, message)

    def _follow_manifest(self) -> bool:
        """Request the newer manifest of a neighbour; adopt one that has arrived: other links, a new epoch."""
        if self.node.newer_manifest is not None:
            self.membership.request_manifest(self.node.newer_manifest, self.transport.loop)
            self.node.newer_manifest = None
        if self.membership.removal_notice:
            raise InvalidInput(self.membership.removal_notice)
        terms = self.membership.adopt()
        if terms is None:
            return False
        manifest = terms.manifest
        node = self.node
        node.last_epoch = manifest.last_epoch
        node.member = terms.member
        node.use_algorithm(terms.algorithm)
        self.local_problem.capacity = terms.capacity
        node.relink(terms.topology, manifest.epoch)
        self._ended_at = math.inf  # newcomers must learn of the end, too
        self._publish()
        text = f"version {manifest.version} with {len(manifest.clients)} clients"
        self.reporter.journal.event("manifest", text)
        self.transport.loop.call_soon_threadsafe(
            self.transport.relink, *manifest.neighbours(self.name)
        )
        return True

    def _report(self) -> None:
        if not self.reporter.due:
            return
        transport = self.transport
        renewed = self.membership.check_folder()
        if renewed is not None:
            transport.loop.call_soon_threadsafe(transport.renew, renewed)
        address = self.options.listen or self.membership.manifest.client(self.name).address
        if address != transport.address:
            asyncio.run_coroutine_threadsafe(transport.move(address), transport.loop)
        now = self.clock.monotonic()
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            asyncio.run_coroutine_threadsafe(transport.check_full(), transport.loop)
        self.reporter.status.days_left = self.membership.days_left
        self._drop_silent()
        self.reporter.report()

    def _drop_silent(self) -> None:
        """Begin an epoch without neighbours that are silent for longer than `drop_after`, if it is set."""
        limit = self.options.drop_after
        if limit is None:
            return
        for name, seconds in self.reporter.silent_seconds().items():
            if seconds > limit and self.node.drop_neighbour(name, f"silent for {seconds:.0f} s"):
                self._publish()

"""The local rounds of a peer.

    apply received frames ▶ step ▶ commit ▶ send messages and acknowledgements ▶ next round

`RoundLoop.step` makes one round and returns how long to wait; `RoundLoop.run` calls it in its own thread.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from spodgt.peer.host.clock import Clock
from spodgt.peer.host.fault_injection import crash_point
from spodgt.peer.options import Options
from spodgt.peer.process.link_schedule import LinkSchedule
from spodgt.peer.process.local_problem import LocalProblem
from spodgt.peer.process.membership import Membership
from spodgt.peer.process.publisher import Publisher
from spodgt.peer.process.status import Reporter
from spodgt.peer.process.upkeep import Upkeep
from spodgt.peer.protocol.node import Node
from spodgt.peer.transport.links import Transport

_WAIT = 0.2  # seconds, the longest pause of a client that waits for frames
_LONGEST_PAUSE = 1.0  # seconds, between two rounds: reports and checks continue
_END_SECONDS = 3.0  # after the last round, in which senders get an answer
_LAST_SECONDS = 60.0  # after the last round; then the client ends without neighbours that are down


class RateLimiter:
    """Spaces rounds evenly; up to a second of delay is caught up."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.next = 0.0  # monotonic time at which the next round is due

    def seconds_until_due(self, rate: float) -> float:
        """Seconds until the next round; 0, and the round counts, if it is due now.

        Args:
            rate: Rounds per second; 0: no limit.
        """
        if not rate:
            return 0.0
        now = self.clock.monotonic()
        if now < self.next:
            return self.next - now
        self.next = max(self.next, now - 1) + 1 / rate
        return 0.0


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
        journal = self.reporter.journal
        self.clock = journal.host.clock
        self.publisher = Publisher(self.node, self.transport)
        self.schedule = LinkSchedule(self.node, self.membership)
        self.upkeep = Upkeep(
            self.node, self.transport, self.membership, journal, self.options.listen
        )
        self.halt = threading.Event()
        self.begun = self.clock.monotonic()
        self.limiter = RateLimiter(self.clock)
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
        if self.publisher.sent_at == -math.inf:
            # after an outage every client may be waiting for a first message
            self.publisher.send_unacknowledged()
        if self.halt.is_set() or self._has_reached_limit():
            if self.node.dirty:
                self.publisher.publish()
            if self.halt.is_set() or not self.options.linger:
                return None
            self._serve_neighbours()
            return _WAIT
        if self._follow_manifest():
            return 0.0
        if 0 < self.membership.manifest.rounds < self.node.state.k:  # all were made
            return self._finish()
        early = self.limiter.seconds_until_due(self.membership.manifest.rounds_per_second)
        if early > 0:
            self._report()
            return min(early, _LONGEST_PAUSE)
        pause = self._round()
        self._report()
        return pause

    def _has_reached_limit(self) -> bool:
        """Whether one of the process's own limits is reached."""
        limits = self.options
        state = self.node.state
        if limits.rounds is not None and state.k > limits.rounds:
            return True
        if limits.gradients is not None and state.gradients >= limits.gradients:
            return True
        return limits.seconds is not None and self.clock.monotonic() - self.begun >= limits.seconds

    def _finish(self) -> float | None:
        """After the rounds of the manifest: announce the end, and remain until it is acknowledged.

        Returns:
            As `step`.
        """
        if not self.node.has_ended:
            self.node.announce_end()
            self.publisher.publish()
        if self._ended_at == math.inf:
            self._ended_at = self.clock.monotonic()
            self.reporter.status.waiting = False
            self.reporter.journal.event("ended", f"all {self.node.state.k - 1} rounds were made")
            self.reporter.report()  # seen by those that request it before the process ends
        self._serve_neighbours()
        seconds = self.clock.monotonic() - self._ended_at
        is_known = self.node.is_end_acknowledged() and seconds >= _END_SECONDS
        if (is_known or seconds >= _LAST_SECONDS) and not self.options.linger:
            return None
        return _WAIT

    def _round(self) -> float:
        """A local round, or an exchange without one after many rounds without a message.

        Returns:
            Seconds to wait before the next round.
        """
        node = self.node
        k = node.state.k
        is_alone = self.schedule.is_alone()
        waiting = is_alone and not node.inbox.messages
        self.reporter.status.waiting = waiting
        if waiting:
            self._exchange_without_round(bool(node.inbox.acks))
            return _WAIT
        node.advance(self.local_problem.capacity.computes(k), self.schedule.active_links(k))
        crash_point("frames taken")
        if is_alone or k % self.options.commit_every == 0:
            self.publisher.publish()
        return 0.0

    def _serve_neighbours(self) -> None:
        """After the last round: apply what neighbours send and acknowledge it."""
        if not self._follow_manifest():
            self._exchange_without_round(bool(self.node.inbox))
        self._report()

    def _exchange_without_round(self, has_frames: bool) -> None:
        """Apply and acknowledge received frames; without any, retransmit unacknowledged messages."""
        if has_frames:
            self.node.apply_received()
        if has_frames or self.node.dirty:  # rounds may share a commit that is not due yet
            self.publisher.publish()
        else:
            self.publisher.send_again()

    def _follow_manifest(self) -> bool:
        """Adopt a newer manifest, if there is one."""
        terms = self.upkeep.adopt_manifest()
        if terms is None:
            return False
        self.node.use_algorithm(terms.algorithm)
        self.local_problem.capacity = terms.capacity
        self._ended_at = math.inf  # newcomers must learn of the end, too
        self.publisher.publish()
        return True

    def _report(self) -> None:
        """Report if it is due, and check what has changed around the client."""
        if not self.reporter.due:
            return
        self.upkeep.check()
        self.reporter.status.days_left = self.membership.certificate.days_left
        self._drop_silent()
        self.reporter.report()

    def _drop_silent(self) -> None:
        """Begin an epoch without neighbours that are silent for longer than `drop_after`, if it is set.

        Not after the last round: an epoch serves the rounds that follow, and forgets which neighbours have
        acknowledged the end.
        """
        limit = self.options.drop_after
        if limit is None or self.node.has_ended:
            return
        for name, seconds in self.reporter.silent_seconds().items():
            if seconds > limit and self.node.drop_neighbour(name, f"silent for {seconds:.0f} s"):
                self.publisher.publish()

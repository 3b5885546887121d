"""Access control of the server: a limit of streams per client, and a ban after invalid frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spodgt.peer.host.clock import SYSTEM_CLOCK
from spodgt.peer.protocol.running_sums import Refused

STREAMS = 2  # of a client at a time: the one in use, and one that replaces it
REFUSALS = 5  # invalid frames of a client within BAN_SECONDS after which it is banned
BAN_SECONDS = 30.0


class AccessControl:
    """Counts open streams and invalid frames by client.

    Args:
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.clock = clock
        self.open: Counter[str] = Counter()
        self.refused: dict[str, list[float]] = {}  # times of the latest invalid frames

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """Hold a stream for the client `name`; `Refused` if it holds enough or is banned."""
        seconds = self.ban_seconds_left(name)
        if seconds > 0:
            raise Refused(
                f"{name} sent {REFUSALS} invalid frames and is banned for another {seconds:.0f} s"
            )
        if self.open[name] >= STREAMS:
            raise Refused(f"{name} holds {STREAMS} streams already")
        self.open[name] += 1
        try:
            yield
        finally:
            self.open[name] -= 1

    def note_invalid_frame(self, name: str) -> None:
        """Note a frame that an honest peer does not send."""
        self.refused[name] = [*self.refused.get(name, ()), self.clock()][-REFUSALS:]

    def ban_seconds_left(self, name: str) -> float:
        """Seconds until the ban of a client ends; 0 or less without a ban."""
        times = self.refused.get(name, [])
        if len(times) < REFUSALS or times[-1] - times[0] > BAN_SECONDS:
            return 0.0
        return times[-1] + BAN_SECONDS - self.clock()

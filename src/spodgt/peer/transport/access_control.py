"""Who is let in at the server: few streams for each name, and none for a while after many bad frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spodgt.peer.host.clock import SYSTEM_CLOCK
from spodgt.peer.protocol.running_sums import Refused

STREAMS = 2  # of a name at a time: the one in use, and one that takes over
REFUSALS = 5  # bad frames of a name within BAN_SECONDS after which it is kept out
BAN_SECONDS = 30.0


class AccessControl:
    """Counts what each name holds and has done wrong; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.clock = clock
        self.open: Counter[str] = Counter()
        self.refused: dict[str, list[float]] = {}  # when the latest bad frames of a name came

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """Hold a stream for `name`; `Refused` if it holds enough or is kept out."""
        wait = self.ban_seconds_left(name)
        if wait > 0:
            raise Refused(
                f"{name} sent {REFUSALS} bad frames and is kept out for {wait:.0f} s more"
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
        """Seconds for which `name` is still kept out; not above 0 if it is not."""
        times = self.refused.get(name, [])
        if len(times) < REFUSALS or times[-1] - times[0] > BAN_SECONDS:
            return 0.0
        return times[-1] + BAN_SECONDS - self.clock()

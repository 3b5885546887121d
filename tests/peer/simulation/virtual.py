"""Virtual time: an event loop that never sleeps, and the clocks of simulated hosts."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

START = 1_800_000_000.0  # seconds of the wall clock at the beginning of every simulation


class Stuck(Exception):
    """Nothing is left to do, and the simulation has not ended."""


class NoSelector(selectors.BaseSelector):
    """Waits for nothing: instead of sleeping until the next timer, time jumps to it."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is scheduled any more")
        if timeout > 0 and self.loop is not None:
            self.loop.now += timeout
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = NoSelector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.now

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.Handle:
        """There is one thread: no other one has to be woken."""
        return self.call_soon(callback, *arguments, context=context)


class SimulatedClock:
    """The clocks of one host; its wall clock may be wrong."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.error = 0.0  # seconds by which the wall clock is ahead

    def monotonic(self) -> float:
        return 1000.0 + self.loop.now

    def wall(self) -> float:
        return START + self.loop.now + self.error

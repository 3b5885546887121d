"""How large what a neighbour sends is, against what it usually sends: who it was that ruined a model."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median

_KEPT = 64  # messages that the median is taken of
_KNOWN = 16  # messages before anything can be called unusual
FAR = 100.0  # times the median
_SMALL = 0.1  # of the own gradient or model


@dataclass
class Norms:
    """Norms of the mass and of the distance X - x of one in-link's messages."""

    mass: float = math.nan  # of the last message
    distance: float = math.nan
    far: float = 0.0  # the last that was far above its median, in medians
    flags: int = 0  # how many were
    seen: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT)))

    def note(self, mass: float, distance: float, own: tuple[float, float]) -> list[str]:
        """Take the norms of a message; returns a sentence for each that is far above its running median.

        `own` are the norms of the client's gradient and model: what is small against these harms nobody.
        """
        self.mass, self.distance = mass, distance
        sentences = []
        for what, value, size in zip(("mass", "model"), (mass, distance), own, strict=True):
            past = self.seen[what]
            usual = median(past) if len(past) >= _KNOWN else math.inf
            if value > max(FAR * usual, _SMALL * size):
                self.far, self.flags = value / max(usual, 1e-300), self.flags + 1
                how = "its norm" if what == "mass" else "its distance from ours"
                sentences.append(f"{what}: {how} is {value:.2g}, {self.far:.1g} times the median")
            past.append(value)
        return sentences

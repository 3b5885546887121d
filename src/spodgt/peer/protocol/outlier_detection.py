"""How large what a neighbour sends is, against what it usually sends: who it was that ruined a model."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

_KEPT = 64  # messages that the median is taken of
_KNOWN = 16  # messages before anything can be called unusual
FAR = 100.0  # times the median
_SMALL = 0.1  # of the own gradient or model
SILENT_ROUNDS = 50  # own rounds without a message after which earlier norms are no measure


@dataclass
class OutlierDetector:
    """Norms of the mass and of the distance X - x of one in-link's messages."""

    mass: float = math.nan  # of the last message
    distance: float = math.nan
    far: float = 0.0  # the last that was far above its median, in medians
    flags: int = 0  # how many were
    largest_own: dict[str, float] = field(
        default_factory=dict
    )  # norms of the own gradient and model
    last_round: int | None = None  # the own round of the last message
    pull: float = 0.0  # by how much this neighbour's models have lengthened the own one
    largest: dict[str, float] = field(
        default_factory=dict
    )  # norms of this epoch that were not unusual
    largest_before: dict[str, float] = field(default_factory=dict)  # the same of earlier epochs
    seen: dict[str, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT))
    )

    def note(self, mass: float, distance: float, own: tuple[float, float]) -> list[str]:
        """Take the norms of a message; returns a sentence for each that is far above its running median.

        `own` are the norms of the client's gradient and model: what is small against these harms nobody.
        """
        self.mass, self.distance = mass, distance
        sentences = []
        for what, value, size in zip(("mass", "model"), (mass, distance), own, strict=True):
            past = self.seen[what]
            self.largest_own[what] = max(size, self.largest_own.get(what, 0.0))
            if len(past) >= _KNOWN:
                usual = self._usual(what, size)
            else:
                usual = self._usual_at_first(what, size)
            if value > max(FAR * usual, _SMALL * size):
                self.far, self.flags = value / usual, self.flags + 1
                how = "its norm" if what == "mass" else "its distance from ours"
                sentences.append(f"{what}: {how} is {value:.2g}, {self.far:.1g} times the median")
            else:
                self.largest[what] = max(value, self.largest.get(what, 0.0))
            past.append(value)
        return sentences

    def _usual(self, what: str, own: float) -> float:
        """The median of the past norms that are not negligible.

        A link may carry nothing for long, and models may agree to rounding: the median of all norms is then
        zero or nearly so, and any ordinary message is far above it. Where all are negligible, a tenth of the
        own largest norm takes the place of the median, so that only what is huge is unusual.
        """
        negligible = _SMALL / FAR * own
        norms = [value for value in self.seen[what] if value > negligible]
        if norms:
            return median(norms)
        return _SMALL * self.largest_own[what] or math.inf

    def note_round(self, k: int) -> None:
        """Note that a message was received in the own round k.

        After a long silence of the link the running medians are forgotten: models that were trained
        apart are far from each other, and much mass has accumulated.
        """
        if self.last_round is not None and k - self.last_round >= SILENT_ROUNDS:
            self.begin_epoch()
        self.last_round = k

    def begin_epoch(self) -> None:
        """Forget the running medians: the numbers of an epoch begin large, but not larger than ever."""
        for what, value in self.largest.items():
            self.largest_before[what] = max(value, self.largest_before.get(what, 0.0))
        self.largest = {}
        self.seen.clear()

    def _usual_at_first(self, what: str, own: float) -> float:
        """What takes the place of the median in the first messages of an epoch; none in the first epoch."""
        before = self.largest_before.get(what, 0.0)
        return max(before, own) if before else math.inf


def norm(vector: Tensor) -> float:
    """The Euclidean norm, also where the squares of float32 numbers would overflow."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def outward(step: Tensor, x: Tensor) -> float:
    """By how much a small step lengthens the vector x; the length of the step if x is zero."""
    length = norm(x)
    if not length:
        return norm(step)
    return float(torch.dot(step.flatten(), x.flatten() / length))

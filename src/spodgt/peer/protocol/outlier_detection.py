"""Outlier detection on message norms, per in-link.

A neighbour that sends much larger numbers than it did is flagged, so that an operator learns which client has
ruined the models. Numbers that are already large, but not unusual, are found by the growth of the own model.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from spodgt.peer.protocol.running_sums import Message
from spodgt.tensors import norm, slices

_WINDOW = 64  # messages that the median is taken of
_MIN_MESSAGES = 16  # before the median is used
FAR = 100.0  # an outlier is this many times as large as the median
_SMALL = 0.1  # of the own gradient or model
SILENT_ROUNDS = 50  # own rounds without a message after which earlier norms are no measure


@dataclass
class OutlierDetector:
    """Norms of the mass and of the distance X - x of one in-link's messages."""

    mass: float = math.nan  # of the last message
    distance: float = math.nan
    last_ratio: float = 0.0  # of the last outlier to the median
    flags: int = 0  # number of outliers
    growth: float = 0.0  # by how much this neighbour's models have lengthened the own one
    last_round: int | None = None  # the own round of the last message
    largest_own: dict[str, float] = field(default_factory=dict)  # norms of the own g and x
    largest: dict[str, float] = field(default_factory=dict)  # in this epoch, without outliers
    largest_before: dict[str, float] = field(default_factory=dict)  # in earlier epochs
    recent: dict[str, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_WINDOW))
    )

    def check(self, mass: float, distance: float, own: tuple[float, float]) -> list[str]:
        """Record the norms of a message.

        Args:
            mass: Norm of the mass that the message brought.
            distance: Norm of X - x.
            own: Norms of the client's gradient and model; what is not larger is harmless.

        Returns:
            One sentence for each norm that is far above its running median.
        """
        self.mass = mass
        self.distance = distance
        sentences = []
        for quantity, value, own_size in zip(("mass", "model"), (mass, distance), own, strict=True):
            usual = self._usual(quantity, own_size)
            # up to the own norm is ordinary: after a client has come or gone, or a link has changed
            if value > max(FAR * usual, own_size):
                self.last_ratio = value / usual
                self.flags += 1
                subject = "its norm" if quantity == "mass" else "its distance from ours"
                size = f"{value:.2g}, {self.last_ratio:.1g} times the median"
                sentences.append(f"{quantity}: {subject} is {size}")
            else:
                self.largest[quantity] = max(value, self.largest.get(quantity, 0.0))
            self.recent[quantity].append(value)
        return sentences

    def _usual(self, quantity: str, own: float) -> float:
        self.largest_own[quantity] = max(own, self.largest_own.get(quantity, 0.0))
        if len(self.recent[quantity]) < _MIN_MESSAGES:
            return self._usual_at_first(quantity, own)
        return self._running_median(quantity, own)

    def _running_median(self, quantity: str, own: float) -> float:
        """The median of the recent norms that are not negligible.

        A link may carry nothing for long, and models may agree to rounding: the median of all norms is then
        zero or nearly so, and any ordinary message is far above it. Where all are negligible, a tenth of the
        own largest norm takes the place of the median, so that only what is huge is unusual.
        """
        negligible = _SMALL / FAR * own
        norms = [value for value in self.recent[quantity] if value > negligible]
        if norms:
            return median(norms)
        return _SMALL * self.largest_own[quantity] or math.inf

    def _usual_at_first(self, quantity: str, own: float) -> float:
        """Replaces the median in the first messages of an epoch; infinite in the first epoch."""
        before = self.largest_before.get(quantity, 0.0)
        return max(before, own) if before else math.inf

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
        for quantity, value in self.largest.items():
            self.largest_before[quantity] = max(value, self.largest_before.get(quantity, 0.0))
        self.largest = {}
        self.recent.clear()


class LinkOutliers:
    """The detectors of all in-links, and the growth of the own model."""

    def __init__(self) -> None:
        self.detectors: dict[str, OutlierDetector] = {}  # by in-link
        self.own_growth = 0.0  # by how much the own steps have lengthened the model

    @property
    def neighbour_growth(self) -> float:
        """By how much the models of all neighbours have lengthened the own one."""
        return sum(detector.growth for detector in self.detectors.values())

    def detector(self, name: str) -> OutlierDetector:
        """The detector of an in-link."""
        return self.detectors.setdefault(name, OutlierDetector())

    def begin_epoch(self) -> None:
        for detector in self.detectors.values():
            detector.begin_epoch()

    def flag_model_outlier(self, length: float) -> tuple[str, str] | None:
        """Flag the neighbour whose models have moved the own one away since its norm was `length`.

        Returns:
            The neighbour and a sentence; None if none is flagged anew, or if the model was moved by the own
            steps: then the step size may be too large.
        """
        if not self.detectors:
            return None
        name = max(self.detectors, key=lambda name: self.detectors[name].growth)
        detector = self.detectors[name]
        if detector.flags or not detector.growth > max(FAR * length, self.own_growth):
            return None
        detector.flags = 1
        detector.last_ratio = detector.growth / max(length, 1e-300)
        moved = f"it has moved our model by {detector.growth:.2g}, which had the norm {length:.2g}"
        return name, f"model: {moved}, and the loss is ruined"


class Distance(NamedTuple):
    """How a received model differs from the own one."""

    norm: float  # of X - x
    growth: float  # by how much a small step towards X lengthens x; the norm if x is zero


def distance(message: Message, x: Tensor) -> Distance:
    """Compare the model of a message with x, (n,), in parts."""
    norms = []
    growth = 0.0
    length = norm(x)
    for part in slices(len(x)):
        own = x[part].double()
        difference = message.model(x, part) - own
        norms.append(norm(difference))
        growth += float(torch.dot(difference, own))
    size = math.hypot(*norms)
    return Distance(size, growth / length if length else size)

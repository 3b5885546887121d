"""What the training thread and the exchange thread hand over to each other."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from spodgt.errors import Failed

_CHECK_SECONDS = 0.2  # between two checks of a condition that no thread announces


class Block(NamedTuple):
    """A finished block of local steps."""

    x: Tensor  # (columns,) float32: the model at its end
    gradient: (
        Tensor | None
    )  # (columns,): mean raw gradient, replaced by the contribution; None: no step
    steps: int


class ReceivedModel(NamedTuple):
    """The model of a neighbour."""

    row: Tensor  # (columns,)
    weight: float  # a of the link
    half: Tensor | None = None  # (columns,): the row is known up to this much; None: exactly


class TrackerAndContribution(NamedTuple):
    """The terms of the correction y - c, (columns,) each."""

    y: Tensor
    c: Tensor


class Update(NamedTuple):
    """What the training thread takes over between two steps."""

    correction: TrackerAndContribution | None  # None: as before
    models: list[ReceivedModel]  # the newest of each neighbour


class Handover:
    """One block in one direction, the newest corrections and models in the other."""

    def __init__(self) -> None:
        self.block: Block | None = None
        self.is_waiting = False  # the training thread waits for a message
        self.is_ending = False  # no more blocks follow
        self.is_stopped = False
        self.failure: BaseException | None = None  # of the exchange thread
        self.is_correction_in_use = False  # the training thread may read the newest one
        self._correction: TrackerAndContribution | None = None
        self._models: dict[str, ReceivedModel] = {}
        self._initial: Tensor | None = None
        self._changed = threading.Condition()

    # --- training thread -------------------------------------------------------------------------
    def submit(self, block: Block) -> None:
        """Hand over a block; waits while the one before is still being written."""
        self.wait_until(lambda: self.block is None)
        self.block = block

    def take_update(self) -> Update | None:
        """What has changed since the last call, or None. Raises failures of the exchange."""
        if self.failure is not None:
            raise self.failure
        if self._correction is None and not self._models:
            return None
        with self._changed:
            update = Update(self._correction, list(self._models.values()))
            self._correction = None
            self._models = {}
        return update

    def finish_correction(self) -> None:
        """The correction that was taken has been read."""
        with self._changed:
            self.is_correction_in_use = self._correction is not None

    def take_initial_model(self) -> Tensor:
        """(columns,): the initial model, from the neighbour that sends it first; waits for it."""
        self.wait_for_news(lambda: self._initial is not None)
        with self._changed:
            row = self._initial
            self._initial = None
        if row is None:
            raise Failed("the exchange was stopped before the initial model arrived.")
        return row

    def wait_for_news(self, has_arrived: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait for a condition that depends on received messages; these are committed at once
        meanwhile.

        Returns:
            Whether it is met.
        """
        self.is_waiting = True
        try:
            return self.wait_until(has_arrived, seconds)
        finally:
            self.is_waiting = False

    def wait_until(self, condition: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait for a condition, at most `seconds`; failures of the exchange are raised here.

        Returns:
            Whether it is met.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while not condition() and not self.is_stopped and time.monotonic() < deadline:
                if self.failure is not None:
                    raise self.failure
                self._changed.wait(_CHECK_SECONDS)
        if self.failure is not None:
            raise self.failure
        return condition()

    # --- exchange thread -------------------------------------------------------------------------
    def offer_correction(self, correction: TrackerAndContribution) -> None:
        with self._changed:
            self._correction = correction
            self.is_correction_in_use = True
            self._changed.notify_all()

    def offer_model(self, name: str, model: ReceivedModel) -> None:
        with self._changed:
            self._models[name] = model
            self._changed.notify_all()

    def offer_initial_model(self, row: Tensor) -> None:
        with self._changed:
            self._initial = row
            self._changed.notify_all()

    def finish_block(self) -> None:
        """The block is committed; the next one may be handed over."""
        with self._changed:
            self.block = None
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the exchange; the training thread raises `error` at its next step."""
        with self._changed:
            self.failure = error
            self._changed.notify_all()

"""How a comparison is executed, as opposed to what is run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

import torch

from spodgt.runtimes.loop import EvaluationSchedule, Stop
from spodgt.training.progress import Progress
from spodgt.training.stopping import Callback, StopRules


@dataclass(frozen=True)
class ExecutionSettings:
    """Limits, evaluations, numbers and reports of all runs.

    Args:
        stop: limits of all runs.
        schedule: rounds or delays of the evaluations.
        dtype: of models and states.
        device: of models and states.
        keep_states: whether the states of all rounds are kept.
        gradient_norm: whether the global gradient is evaluated; None: where it is affordable.
        progress: called with reports of the progress, about ten times a second.
        callbacks: called with every evaluation.
        stopping: which evaluations stop a run, and whether its best models are kept.
        checkpoint_every: seconds between two checkpoints.
        max_state_bytes: size of the final state of one run that is kept for an extension.
        workers: number of processes; 1: all runs are computed in this process.
        one_thread: whether torch uses one thread in this process, as it does in worker processes.
    """

    stop: Stop
    schedule: EvaluationSchedule
    dtype: torch.dtype
    device: torch.device
    keep_states: bool = False
    gradient_norm: bool | None = None
    progress: Callable[[Progress], None] | None = None
    callbacks: tuple[Callback, ...] = ()
    stopping: StopRules = StopRules()  # noqa: RUF009 (rules are frozen)
    checkpoint_every: float = 30.0
    max_state_bytes: int = 0
    workers: int = 1
    one_thread: bool = False


class Interrupt:
    """Delays Ctrl-C and SIGTERM until the end of a round, so that its state is saved.

    A second signal raises KeyboardInterrupt immediately.
    """

    def __init__(self) -> None:
        self.requested = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle both signals in this block; does nothing outside the main thread."""
        previous_handlers = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    previous_handlers[number] = signal.signal(number, self._request)
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

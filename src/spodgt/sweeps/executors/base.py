"""What every executor can do."""

from __future__ import annotations

import os
from typing import Protocol

from spodgt.sweeps.cell import Job, Tell

SAVE_SECONDS = 120.0  # seconds a cell gets to save what it has when its sweep ends


class Executor(Protocol):
    """Runs jobs, in any order, anywhere."""

    def submit(self, job: Job) -> None:
        """Take a job; returns at once."""
        ...

    def wait(self, tell: Tell) -> None:
        """Tell the outcome of every job as it comes, and progress where there is any; then return.

        Who is told may submit more jobs.
        """
        ...

    def close(self) -> None:
        """End whatever still runs, letting it save first; called once, however the sweep ends."""
        ...


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

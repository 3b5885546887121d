"""The interface of executors."""

from __future__ import annotations

import os
from typing import Protocol

from spodgt.sweeps.cell import Job, OnEvent

SAVE_SECONDS = 120.0  # time for a cell to save a checkpoint when its sweep is interrupted


class JobExecutor(Protocol):
    """Runs jobs, in any order and place."""

    def submit(self, job: Job) -> None:
        """Queue a job; returns at once."""
        ...

    def wait(self, on_event: OnEvent) -> None:
        """Run all jobs; the callback receives their progress and outcomes.

        The callback may submit further jobs.
        """
        ...

    def close(self) -> None:
        """Stop running jobs after they have saved a checkpoint; called once at the end."""
        ...


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""Cells one after the other in this process."""

from __future__ import annotations

from collections import deque

from spodgt.sweeps.cell import Job, Tell, perform


class Inline:
    """One job after the other in this process, with all its threads."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, tell: Tell) -> None:
        while self.jobs:
            outcome = perform(self.jobs.popleft(), tell)
            tell(outcome)
            if not outcome.complete and not outcome.error:  # Ctrl-C, after the run had saved its work
                raise KeyboardInterrupt

    def close(self) -> None:
        self.jobs.clear()

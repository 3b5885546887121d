"""Cells one after the other in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from spodgt.experiment import Experiment
from spodgt.sweeps.cell import Job, Tell, perform


class Inline:
    """One job after the other in this process, with all its threads.

    `known` are the experiments of jobs, by name, that a config cannot hold: of objects made in Python.
    """

    def __init__(self, known: Mapping[str, Experiment] | None = None) -> None:
        self.jobs: deque[Job] = deque()
        self.known = {} if known is None else known

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, tell: Tell) -> None:
        while self.jobs:
            job = self.jobs.popleft()
            outcome = perform(job, tell, self.known.get(job.name))
            tell(outcome)
            if (
                not outcome.complete and not outcome.error
            ):  # Ctrl-C, after the run had saved its work
                raise KeyboardInterrupt

    def close(self) -> None:
        self.jobs.clear()

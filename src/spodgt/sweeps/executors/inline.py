"""An executor that runs jobs in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from spodgt.experiment import Experiment
from spodgt.sweeps.cell import Job, OnEvent, run_job


class Inline:
    """Runs one job after the other in this process, with all its threads.

    Args:
        experiments: Experiments by the names of their jobs, if they hold Python objects, which a
            config cannot describe.
    """

    def __init__(self, experiments: Mapping[str, Experiment] | None = None) -> None:
        self.jobs: deque[Job] = deque()
        self.experiments = {} if experiments is None else experiments

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, on_event: OnEvent) -> None:
        while self.jobs:
            job = self.jobs.popleft()
            outcome = run_job(job, on_event, self.experiments.get(job.name))
            on_event(outcome)
            is_interrupted = not outcome.complete and not outcome.error
            if is_interrupted:  # by Ctrl-C; the run has saved a checkpoint
                raise KeyboardInterrupt

    def close(self) -> None:
        self.jobs.clear()

"""An executor on a Ray cluster: `spodgt sweep FILE --backend ray [--address auto]`.

Ray schedules the cells, and restarts those of a lost worker from their last checkpoint. Results are
files in the cells' folders, so clusters of several hosts need a shared file system. Without an
address, a cluster of this machine alone is started, on the loopback interface.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spodgt._util.text import first_line
from spodgt.errors import Failed, InvalidInput
from spodgt.experiment.toml import Table
from spodgt.sweeps.cell import Event, Job, OnEvent, Outcome, from_line, run_job, to_line
from spodgt.sweeps.executors.base import SAVE_SECONDS, cores

RETRIES = 5  # times that a cell is restarted after its worker was lost
_PROGRESS_EVERY = 1.0  # seconds between two events of a cell's progress


class RayTasks:
    """Runs every job as one Ray task."""

    def __init__(self, workers: int, address: str | None = None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Tasks do not request GPUs; without this variable Ray would hide the GPUs from them.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
            from ray.util.queue import Queue
        except ImportError:
            fix = "use pip install 'spodgt[ray]'"
            raise InvalidInput(f"--backend='ray' needs the package ray; {fix}.") from None
        self.ray = ray
        self.jobs: deque[Job] = deque()
        self.running: dict[object, Job] = {}  # by Ray reference
        address = address or os.environ.get("RAY_ADDRESS")
        quiet: dict[str, object] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address:
                ray.init(address=address, **quiet)
            else:
                ray.init(
                    num_cpus=workers, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet
                )
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = first_line(error)
            where = f"at {address!r}" if address else "of this machine"
            raise Failed(f"no Ray cluster {where}: {reason}; start one with ray start.") from None
        self.threads = 1 if address else max(1, cores() // workers)
        self.events = Queue(actor_options={"num_cpus": 0})
        self.task = ray.remote(num_cpus=1, max_retries=RETRIES)(_run_job)

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, on_event: OnEvent) -> None:
        while self.jobs or self.running:
            while self.jobs:
                job = self.jobs.popleft()
                fields = asdict(job)
                fields["out"] = str(Path(job.out).resolve())  # workers have another directory
                self.running[self.task.remote(fields, self.threads, self.events)] = job
            done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=_PROGRESS_EVERY)
            self._forward_progress(on_event)
            for reference in done:
                on_event(self._outcome(reference, self.running.pop(reference)))

    def close(self) -> None:
        """Stop running tasks after a checkpoint, and disconnect; a local cluster is shut down."""
        for reference in self.running:
            self.ray.cancel(reference)  # KeyboardInterrupt in the task, which saves
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=SAVE_SECONDS)
        self.running.clear()
        self.ray.shutdown()

    def _forward_progress(self, on_event: OnEvent) -> None:
        with contextlib.suppress(Exception):  # progress is optional; its host may be down
            for line in self.events.get_nowait_batch(self.events.qsize()):
                on_event(from_line(line))

    def _outcome(self, reference: object, job: Job) -> Outcome:
        try:
            outcome = from_line(self.ray.get(reference))
        except self.ray.exceptions.RayError as error:
            reason = first_line(error)
            lost = f"its worker was lost {RETRIES + 1} times: {reason}; run again."
            return Outcome(job.name, False, lost)
        assert isinstance(outcome, Outcome)
        if outcome.complete and not (Path(job.out) / "summary.json").exists():
            missing = f"its folder {job.out} is on another host; use a shared folder."
            return Outcome(job.name, False, missing)
        return outcome


def _run_job(job: Table, threads: int, events: Any) -> str:
    """Run a job in a Ray worker; returns its outcome as a line of JSON."""
    import torch

    torch.set_num_threads(threads)
    last_sent = 0.0

    def send(event: Event) -> None:
        nonlocal last_sent
        if time.monotonic() - last_sent >= _PROGRESS_EVERY:
            last_sent = time.monotonic()
            with contextlib.suppress(Exception):
                events.put_nowait(to_line(event))

    return to_line(run_job(Job(**job), send))

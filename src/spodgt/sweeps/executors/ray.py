"""Cells of a sweep on a Ray cluster: `spodgt sweep FILE --backend ray [--address auto]`.

Ray places the cells, and runs those of a lost worker again; a cell goes on from its last checkpoint.
Results are files in the cells' folders, so on several hosts these must lie on a shared file system.
Without an address a cluster of this machine alone is started, on the loopback interface.
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
from spodgt.experiment.config import Table
from spodgt.sweeps.cell import Event, Job, Outcome, Tell, from_line, perform, to_line
from spodgt.sweeps.executors.base import SAVE_SECONDS, cores

RETRIES = 5  # times a cell is begun again after its worker was lost
_TELL_EVERY = 1.0  # seconds between two words about a cell's progress


class RayTasks:
    """An `Executor` that hands every job to Ray as one task."""

    def __init__(self, workers: int, address: str | None = None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # We do not use GPUs by count, so Ray need not hide them from tasks that ask for none.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
            from ray.util.queue import Queue
        except ImportError:
            fix = "use pip install 'spodgt[ray]'"
            raise InvalidInput(f"--backend='ray' needs the package ray; {fix}.") from None
        self.ray, self.jobs, self.running = ray, deque[Job](), dict[object, Job]()
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
        self.words = Queue(actor_options={"num_cpus": 0})
        self.task = ray.remote(num_cpus=1, max_retries=RETRIES)(_perform)

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, tell: Tell) -> None:
        while self.jobs or self.running:
            while self.jobs:
                job = self.jobs.popleft()
                fields = asdict(job) | {
                    "out": str(Path(job.out).resolve())
                }  # workers stand elsewhere
                self.running[self.task.remote(fields, self.threads, self.words)] = job
            done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=_TELL_EVERY)
            self._listen(tell)
            for reference in done:
                tell(self._outcome(reference, self.running.pop(reference)))

    def close(self) -> None:
        """Ask what still runs to save and end, and leave the cluster; one of our own ends with it."""
        for reference in self.running:
            self.ray.cancel(reference)  # Ctrl-C for the task: it ends its round and saves
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=SAVE_SECONDS)
        self.running.clear()
        self.ray.shutdown()

    def _listen(self, tell: Tell) -> None:
        with contextlib.suppress(Exception):  # progress is a courtesy: its host may be gone
            for line in self.words.get_nowait_batch(self.words.qsize()):
                tell(from_line(line))

    def _outcome(self, reference: object, job: Job) -> Outcome:
        try:
            outcome = from_line(self.ray.get(reference))
        except self.ray.exceptions.RayError as error:
            reason = first_line(error)
            return Outcome(
                job.name, False, f"its worker was lost {RETRIES + 1} times: {reason}; run again."
            )
        assert isinstance(outcome, Outcome)
        if outcome.complete and not (Path(job.out) / "summary.json").exists():
            lost = f"its folder {job.out} is on another host; use a shared folder."
            return Outcome(job.name, False, lost)
        return outcome


def _perform(job: Table, threads: int, words: Any) -> str:
    """In a Ray worker: run a job and tell how it goes, a word now and then."""
    import torch

    torch.set_num_threads(threads)
    told = 0.0

    def tell(event: Event) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_EVERY:
            told = time.monotonic()
            with contextlib.suppress(Exception):
                words.put_nowait(to_line(event))

    return to_line(perform(Job(**job), tell))

"""An executor that runs jobs in worker processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO

from spodgt.sweeps.cell import Event, Job, OnEvent, Outcome, from_line
from spodgt.sweeps.executors.base import SAVE_SECONDS


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[str]
    job: Job | None = None  # None: idle


class Processes:
    """Worker processes, which share the cores; a worker that dies loses only its own job."""

    def __init__(self, workers: int, threads: int) -> None:
        self.max_workers = workers
        self.threads = threads  # per worker
        self.jobs: deque[Job] = deque()
        self.workers: list[_Worker] = []
        # events by worker; None: the worker has ended
        self.events: queue.Queue[tuple[_Worker, Event | None]] = queue.Queue()

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, on_event: OnEvent) -> None:
        while True:
            self._assign_jobs()
            if not any(worker.job for worker in self.workers):
                return
            try:
                worker, event = self.events.get(timeout=1)  # Ctrl-C needs a timeout on Windows
            except queue.Empty:
                continue
            if event is None:
                self._remove(worker, on_event)
                continue
            if isinstance(event, Outcome):
                worker.job = None
            on_event(event)

    def _remove(self, worker: _Worker, on_event: OnEvent) -> None:
        """Remove a worker that has ended; its job, if any, has failed."""
        self.workers.remove(worker)
        _close(worker.process.stdin)
        code = worker.process.wait()
        if worker.job is not None:
            reason = f"signal {-code}" if code < 0 else f"exit code {code}"
            error = f"its worker process ended with {reason}; run again."
            on_event(Outcome(worker.job.name, False, error))

    def close(self) -> None:
        for worker in self.workers:
            if worker.job:
                worker.process.terminate()
            _close(worker.process.stdin)
        for worker in self.workers:
            try:
                worker.process.wait(SAVE_SECONDS)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self.workers.clear()

    def _assign_jobs(self) -> None:
        """Give the next jobs to idle workers; start workers while there are fewer than allowed."""
        idle = [worker for worker in self.workers if not worker.job]
        while self.jobs and (idle or len(self.workers) < self.max_workers):
            worker = idle.pop() if idle else self._start()
            worker.job = self.jobs.popleft()
            assert worker.process.stdin is not None
            with contextlib.suppress(OSError):  # a dead worker is reported by its reader thread
                worker.process.stdin.write(json.dumps(asdict(worker.job)) + "\n")
                worker.process.stdin.flush()

    def _start(self) -> _Worker:
        threads = str(self.threads)
        with _ignored_interrupts():
            process = subprocess.Popen(
                [sys.executable, "-m", "spodgt.sweeps.cell", threads],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            )
        worker = _Worker(process)
        self.workers.append(worker)
        threading.Thread(target=self._read_events, args=(worker,), daemon=True).start()
        return worker

    def _read_events(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        with worker.process.stdout as lines, contextlib.suppress(ValueError, OSError):
            for line in lines:
                self.events.put((worker, from_line(line)))
        self.events.put((worker, None))


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Processes started here ignore Ctrl-C; the parent handles it and sends SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def _close(stream: IO[str] | None) -> None:
    with contextlib.suppress(OSError):
        if stream is not None:
            stream.close()

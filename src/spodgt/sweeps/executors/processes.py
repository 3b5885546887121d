"""Cells in worker processes of this machine."""

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

from spodgt.sweeps.cell import Event, Job, Outcome, Tell, from_line
from spodgt.sweeps.executors.base import SAVE_SECONDS


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[str]
    job: Job | None = None  # what it works on


class Processes:
    """Worker processes, which divide the cores; one that dies loses only its own job."""

    def __init__(self, workers: int, threads: int) -> None:
        self.count, self.threads = workers, threads
        self.jobs: deque[Job] = deque()
        self.workers: list[_Worker] = []
        self.events: queue.Queue[tuple[_Worker, Event | None]] = queue.Queue()  # None: it is gone

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, tell: Tell) -> None:
        while True:
            self._hand_out()
            if not any(worker.job for worker in self.workers):
                return
            try:
                worker, event = self.events.get(
                    timeout=1
                )  # Ctrl-C arrives in between, on Windows too
            except queue.Empty:
                continue
            if event is None:
                self.workers.remove(worker)
                _close(worker.process.stdin)
                code = worker.process.wait()
                if worker.job is not None:
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    tell(
                        Outcome(
                            worker.job.name,
                            False,
                            f"its worker process ended with {how}; run again.",
                        )
                    )
                continue
            if isinstance(event, Outcome):
                worker.job = None
            tell(event)

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

    def _hand_out(self) -> None:
        idle = [worker for worker in self.workers if not worker.job]
        while self.jobs and (idle or len(self.workers) < self.count):
            worker = idle.pop() if idle else self._start()
            worker.job = self.jobs.popleft()
            assert worker.process.stdin is not None
            with contextlib.suppress(OSError):  # it died meanwhile: its listener says so
                worker.process.stdin.write(json.dumps(asdict(worker.job)) + "\n")
                worker.process.stdin.flush()

    def _start(self) -> _Worker:
        threads = str(self.threads)
        with _ignoring_interrupts():
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
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        with worker.process.stdout as lines, contextlib.suppress(ValueError, OSError):
            for line in lines:
                self.events.put((worker, from_line(line)))
        self.events.put((worker, None))


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """A process started now ignores Ctrl-C: its parent handles it and ends it with SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _close(stream: IO[str] | None) -> None:
    with contextlib.suppress(OSError):
        if stream is not None:
            stream.close()

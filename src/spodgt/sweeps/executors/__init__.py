"""Where the cells of a sweep are run: here, in worker processes, or on whatever is registered.

To add a backend, such as a cluster, put a function that makes an `Executor` into `BACKENDS`; sweeps and
the command line then know it. Jobs and outcomes are plain values, and all results are files in the
job's folder, so a backend needs no more than that folder and a way to call `spodgt.sweeps.cell.perform`.
"""

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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import IO, Protocol

from spodgt.errors import InvalidInput
from spodgt.sweeps.cell import Event, Job, Outcome, Tell, from_line, perform

_PATIENCE = 120.0  # seconds a worker gets to save what it has


class Executor(Protocol):
    """Runs jobs, in any order, anywhere."""

    def submit(self, job: Job) -> None:
        """Take a job; returns at once."""
        ...

    def wait(self, tell: Tell) -> None:
        """Tell the outcome of every job as it comes, and progress where there is any; then return."""
        ...

    def close(self) -> None:
        """End whatever still runs, letting it save first; called once, however the sweep ends."""
        ...


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


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[str]
    job: Job | None = None  # what it is at


class Processes:
    """Worker processes, each with its share of the cores; one that dies takes only its own job with it."""

    def __init__(self, workers: int, threads: int) -> None:
        self.count, self.threads = workers, threads
        self.jobs: deque[Job] = deque()
        self.workers: list[_Worker] = []
        self.heard: queue.Queue[tuple[_Worker, Event | None]] = queue.Queue()  # None: it is gone

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, tell: Tell) -> None:
        while True:
            self._hand_out()
            if not any(worker.job for worker in self.workers):
                return
            try:
                worker, event = self.heard.get(timeout=1)  # Ctrl-C is heard in between, on Windows too
            except queue.Empty:
                continue
            if event is None:
                self.workers.remove(worker)
                _close(worker.process.stdin)
                code = worker.process.wait()
                if worker.job is not None:
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    tell(Outcome(worker.job.name, False, f"its worker process ended with {how}; run again."))
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
                worker.process.wait(_PATIENCE)
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
        with _deaf():
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
                self.heard.put((worker, from_line(line)))
        self.heard.put((worker, None))


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started now never hears Ctrl-C: it is the parent's, who ends it with SIGTERM."""
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


def _local(workers: int) -> Executor:
    if workers == 1:
        return Inline()
    return Processes(workers, max(1, cores() // workers))


def _ray(workers: int) -> Executor:
    from spodgt.sweeps.executors.ray import RayTasks

    return RayTasks(workers)


BACKENDS: dict[str, Callable[[int], Executor]] = {"local": _local, "ray": _ray}


def executor(backend: str, workers: int) -> Executor:
    """An executor by the name of its backend."""
    check_backend(backend)
    return BACKENDS[backend](workers)


def check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise InvalidInput(f"--backend={backend!r} is not known; choose from {', '.join(BACKENDS)}.")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

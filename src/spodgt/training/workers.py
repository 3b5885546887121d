"""Worker processes for independent runs: every run (method, seed) in a forked process, some at a time.

A forked process shares the memory of data and models with its parent. It sends evaluations, progress and
checkpoints through a pipe; the parent alone writes the run folder. Nothing is pickled: checkpoints have the
format of their files, the rest is JSON.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.multiprocessing as mp

from spodgt import errors
from spodgt.errors import Failed, InvalidInput, SpodgtError
from spodgt.kernels.steps import State
from spodgt.problems.protocols import CompiledGradient
from spodgt.record.folder import Checkpoint, slug, write
from spodgt.runtimes.loop import STRIDE, Stop, begin, run_rounds
from spodgt.runtimes.simulator import Simulator
from spodgt.runtimes.world import Run, Runtime, Saved
from spodgt.thread_pool import thread_count
from spodgt.training.log import MethodLog
from spodgt.training.observer import Observer, Progress
from spodgt.types import Problem

if TYPE_CHECKING:
    from spodgt.training.executor import Executor, RunPoint, Settings

LOGS = "workers"  # the folder of the workers' logs, in the run folder
_POLL = 0.2  # seconds between two checks for Ctrl-C
_SAVE_SECONDS = 120.0  # seconds that workers get to send their last checkpoints
_LONG = 2e8  # gradients times parameters from which workers pay for their start: some seconds
_FIXED_COST = 10_000  # parameters whose gradient costs as much as calling the module

# First byte of a message from a worker.
_ROW = b"r"  # an evaluation, JSON
_PROGRESS = b"p"  # JSON
_SAVED = b"s"  # a checkpoint
_FINISHED = b"f"  # the last checkpoint
_ERROR = b"e"  # type and text of an exception, JSON


# --- how many ------------------------------------------------------------------------------------
def count_workers(
    requested: int | None,
    batches: Mapping[str, Sequence[Run]],
    runtime: Runtime,
    stop: Stop,
    dtype: torch.dtype,
    *,
    keep_states: bool,
) -> int:
    """The number of worker processes; 1 means that this process computes all runs.

    Args:
        requested: the option `workers`. None: one per thread of torch if there are several runs of a network
            on a CPU, which together take more than some seconds.
    """
    obstacle = _find_obstacle(runtime, keep_states)
    runs = sum(map(len, batches.values()))
    if requested is None:
        if obstacle is None and sys.platform == "linux" and _is_long(batches, stop, dtype):
            return min(thread_count(), runs)
        return 1
    if requested > 1 and obstacle is not None:
        raise InvalidInput(f"workers={requested} cannot be used {obstacle}; use workers=1.")
    return min(requested, runs)


def _find_obstacle(runtime: Runtime, keep_states: bool) -> str | None:
    """Why worker processes cannot be used here; None if they can."""
    if not isinstance(runtime, Simulator):
        return "with several processes of torchrun"
    if runtime.device.type != "cpu":
        return f"with device={str(runtime.device)!r}"
    if keep_states:
        return "with keep_states=True"
    if "fork" not in mp.get_all_start_methods():
        return "on a system without fork"
    if torch.accelerator.is_available():
        return "on a machine with an accelerator, whose driver does not survive a fork"
    if mp.current_process().daemon:
        return "inside a daemonic process"
    return None


def _is_long(batches: Mapping[str, Sequence[Run]], stop: Stop, dtype: torch.dtype) -> bool:
    """Whether the work on networks, in gradients times parameters, is worth the start of workers."""
    rounds = min(
        stop.rounds or math.inf, stop.delay or math.inf
    )  # a round takes a delay of at least 1
    work = 0.0
    for runs in batches.values():
        for run in runs:
            if not _has_loops(run.problem, dtype):
                clients, parameters = run.start.shape
                work += rounds * clients * (parameters + _FIXED_COST)
    return work >= _LONG


def _has_loops(problem: Problem, dtype: torch.dtype) -> bool:
    """Whether compiled loops compute the gradients, on several threads already."""
    if not isinstance(problem, CompiledGradient):
        return True  # quadratics: rounds are short
    return problem.linear_data(dtype) is not None


# --- the parent ----------------------------------------------------------------------------------
@dataclass(eq=False)
class Job:
    """One run of one method, and the process that computes it."""

    label: str
    number: int  # of the run among those of the method
    run: Run
    known: RunPoint
    log_file: Path
    process: ForkProcess | None = None
    progress: Progress | None = None
    finished: bool = False

    @property
    def name(self) -> str:
        return f"{self.label} (seed {self.run.seed})"


@dataclass(eq=False)
class WorkerPool:
    """Runs the methods of an executor in worker processes, and writes what they send."""

    executor: Executor
    jobs: list[Job] = field(default_factory=list)
    running: dict[Connection, Job] = field(default_factory=dict)  # by the pipe from its process

    def run(self, labels: Sequence[str]) -> None:
        """Run methods to their end; raises KeyboardInterrupt after Ctrl-C, when all workers have saved."""
        executor = self.executor
        logs = (
            executor.folder.path / LOGS
            if executor.folder
            else Path(tempfile.mkdtemp("-spodgt-workers"))
        )
        logs.mkdir(exist_ok=True)
        self._create_jobs(labels, logs)
        waiting = [job for job in self.jobs if not job.finished]
        failed = True
        try:
            for label in labels:
                self._finish_method(label)  # nothing may be left to run
            while waiting or self.running:
                if executor.interrupt.requested:
                    break
                while waiting and len(self.running) < executor.settings.workers:
                    self._start(waiting.pop(0))
                self._receive(_POLL)
            self._stop_all()
            if executor.interrupt.requested:
                raise KeyboardInterrupt
            failed = False
        except SpodgtError:
            self._stop_all()
            raise
        finally:
            self._kill_all()
            self._join_logs(labels)
            executor.save(None)
            if not executor.folder and not failed:
                shutil.rmtree(logs, ignore_errors=True)
            with contextlib.suppress(OSError):  # some logs have text
                logs.rmdir()

    def _create_jobs(self, labels: Sequence[str], logs: Path) -> None:
        """Make a job of every run, from what the folder holds; its checkpoint becomes one for each run."""
        executor = self.executor
        for label in labels:
            for number, run in enumerate(executor.batches[label]):
                known = executor.resume_run(label, number)
                log_file = (
                    logs / f"{executor.labels.index(label):02d}-{slug(label)}-seed-{run.seed}.log"
                )
                job = Job(label, number, run, known, log_file)
                job.finished = known.point is None and 0 in known.log.ended
                self.jobs.append(job)
                if executor.folder and (known.point is not None or job.finished):
                    checkpoint = known.log.checkpoint(executor.notes(), known.point)
                    executor.folder.save(checkpoint, executor.run_file(label, number))
        executor.save(None)

    def _start(self, job: Job) -> None:
        receiver, sender = mp.get_context("fork").Pipe(duplex=False)
        worker = Worker(self.executor, job, sender)
        job.process = mp.get_context("fork").Process(
            target=worker.run, args=(receiver,), daemon=True
        )
        with (
            warnings.catch_warnings()
        ):  # Python 3.12: threads of this process do not exist in the new one
            warnings.filterwarnings(
                "ignore", "This process .* is multi-threaded", DeprecationWarning
            )
            job.process.start()
        sender.close()
        self.running[receiver] = job

    def _receive(self, timeout: float) -> None:
        """Handle the messages that are there, and processes that have ended."""
        for receiver in wait(list(self.running), timeout):
            assert isinstance(receiver, Connection)
            try:
                message = receiver.recv_bytes()
            except (EOFError, OSError):
                receiver.close()
                self._check_end(self.running.pop(receiver))
            else:
                self._handle(self.running[receiver], message[:1], message[1:])

    def _handle(self, job: Job, kind: bytes, data: bytes) -> None:
        executor = self.executor
        if kind == _ROW:
            for callback in executor.settings.callbacks:
                callback(json.loads(data))
        elif kind == _PROGRESS:
            job.progress = Progress(**json.loads(data))
            self._show_progress(job.label)
        elif kind == _ERROR:
            _raise_error(job, **json.loads(data))
        else:
            job.finished = kind == _FINISHED
            job.known = job.known._replace(log=_read_log(data))
            if executor.folder:
                write(executor.folder.path / executor.run_file(job.label, job.number), data)
            if job.finished:
                self._finish_method(job.label)

    def _check_end(self, job: Job) -> None:
        """Raise if a process ended without a result and without being stopped."""
        assert job.process is not None
        job.process.join()
        code = job.process.exitcode or 0
        if code == 0:
            if job.finished and not job.log_file.stat().st_size:
                job.log_file.unlink()
            return
        how = f"exit code {code}"
        if code < 0:
            how = signal.Signals(-code).name
        if code == -signal.SIGKILL:
            how += " (often out of memory: use fewer workers)"
        raise Failed(
            f"the worker of {job.name} ended with {how}; see {job.log_file}, and run again with --resume."
        )

    def _stop_all(self) -> None:
        """Ask all workers to send a last checkpoint and to end."""
        for job in self.running.values():
            assert job.process is not None
            job.process.terminate()
        deadline = time.monotonic() + _SAVE_SECONDS
        while self.running and time.monotonic() < deadline:
            with contextlib.suppress(Failed):  # the first failure is reported
                self._receive(_POLL)

    def _kill_all(self) -> None:
        for job in self.running.values():
            assert job.process is not None
            job.process.kill()
            job.process.join()
        self.running.clear()

    def _finish_method(self, label: str) -> None:
        """Record a method all of whose runs have ended."""
        executor = self.executor
        jobs = [job for job in self.jobs if job.label == label]
        if label in executor.finished or not all(job.finished for job in jobs):
            return
        self._join_logs([label])
        executor.finish(executor.logs[label], executor.batches[label], {})
        if executor.folder:
            for job in jobs:
                (executor.folder.path / executor.run_file(label, job.number)).unlink(
                    missing_ok=True
                )

    def _join_logs(self, labels: Sequence[str]) -> None:
        for label in labels:
            parts = {job.number: job.known.log for job in self.jobs if job.label == label}
            self.executor.logs[label] = MethodLog.join(label, self.executor.batches[label], parts)

    def _show_progress(self, label: str) -> None:
        """Report the progress of a method: means over its runs, and the round of the slowest run."""
        show = self.executor.settings.progress
        if show is None:
            return
        jobs = [job for job in self.jobs if job.label == label]
        reports = [job.progress for job in jobs if job.progress is not None]
        fraction = sum(report.fraction for report in reports) / len(jobs)
        accuracies = [report.accuracy for report in reports if not math.isnan(report.accuracy)]
        accuracy = sum(accuracies) / len(accuracies) if accuracies else math.nan
        slowest = min(reports, key=lambda report: report.fraction)
        show(replace(slowest, fraction=fraction, accuracy=accuracy))


def _read_log(data: bytes) -> MethodLog:
    log, _ = MethodLog.read(Checkpoint.from_bytes(data))
    return log


def _raise_error(job: Job, kind: str, text: str) -> NoReturn:
    """Raise what a worker could not handle: errors of this package as they are, others with the log."""
    error = getattr(errors, kind, None)
    if isinstance(error, type) and issubclass(error, SpodgtError):
        raise error(text)
    raise Failed(f"{job.name} failed with {kind}: {text}; see {job.log_file}.")


# --- the worker ----------------------------------------------------------------------------------
class Worker:
    """The `Recorder` of one run in a process of its own: sends what the executor would write."""

    def __init__(self, executor: Executor, job: Job, sender: Connection) -> None:
        self.job = job
        self.sender = sender
        self.notes = executor.notes()
        self.runtime = executor.runtime
        self.interrupt = executor.interrupt
        self.labels = executor.labels
        self.kept = executor.kept
        self.state_bytes = executor.state_bytes
        callbacks = (self._send_row,)
        self.settings: Settings = replace(
            executor.settings, callbacks=callbacks, progress=self._send_progress
        )

    def run(self, receiver: Connection) -> None:
        """The main function of the process."""
        receiver.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and sends SIGTERM
        self._open_log()
        torch.set_num_threads(
            1
        )  # before any other operation: threads of the parent do not exist here
        try:
            with self.interrupt.heard():
                self._compute()
        except KeyboardInterrupt:
            pass
        except BrokenPipeError:  # the parent is gone
            os._exit(1)
        except Exception as error:
            traceback.print_exc()
            self._send(
                _ERROR, json.dumps({"kind": type(error).__name__, "text": str(error)}).encode()
            )
        sys.stderr.flush()

    def _open_log(self) -> None:
        """Write to the log file what this process prints; the parent's streams may hold locks."""
        file = open(self.job.log_file, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 (until the end)
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        sys.stdout = file
        sys.stderr = file
        faulthandler.enable(file)

    def _compute(self) -> None:
        log, point = self.job.known
        runs = [self.job.run]
        dtype = self.settings.dtype
        if point is None:
            start = begin(self.runtime.world(runs, dtype))
        else:
            log.finite_at[0] = min(log.finite_at.get(0, 0), point.k)
            log.ended.pop(0, None)
            start = self.runtime.restore(runs, dtype, point)
        observer = Observer(self, log, runs)
        world = run_rounds(
            start, self.settings.stop, self.settings.schedule, observer, STRIDE
        ).world
        tally = world.tally()
        world.close()
        observer.close(tally)

    def save(self, log: MethodLog | None, where: Saved | None = None) -> None:
        if log is not None:
            self._send(_SAVED, log.checkpoint(self.notes, where).to_bytes())

    def finish(self, log: MethodLog, runs: Sequence[Run], states: dict[int, State]) -> None:
        self._send(_FINISHED, log.checkpoint(self.notes).to_bytes())

    def _send_row(self, row: dict[str, Any]) -> None:
        self._send(_ROW, json.dumps(row, default=float).encode())

    def _send_progress(self, progress: Progress) -> None:
        self._send(_PROGRESS, json.dumps(asdict(progress)).encode())

    def _send(self, kind: bytes, data: bytes) -> None:
        self.sender.send_bytes(kind + data)

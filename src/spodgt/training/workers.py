"""Worker processes for independent runs: every run (method, seed) is computed in a forked process.

A forked process shares the memory of data and models with its parent, and needs no pickling of the
user's code. It sends evaluations, progress and checkpoints through a pipe; the parent alone writes
the run folder. Sweeps use other processes (`spodgt.sweeps.executors`), which read their experiments
from files.
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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NoReturn

import torch
import torch.multiprocessing as mp

from spodgt import errors
from spodgt._util.deprecation import RenamedKey
from spodgt.errors import Failed, InvalidInput, SpodgtError
from spodgt.problems.protocols import CompiledGradient
from spodgt.record.run_folder import CheckpointFile, RunFolder, write
from spodgt.runtimes.loop import STRIDE, Stop, begin, run_rounds
from spodgt.runtimes.world import Run, RunCheckpoint, Runtime
from spodgt.thread_pool import thread_count
from spodgt.training.checkpoint import MethodLog
from spodgt.training.comparison import Comparison
from spodgt.training.comparison_files import ComparisonFiles
from spodgt.training.observer import Observer, ObserverCallbacks
from spodgt.training.progress import Progress
from spodgt.training.resume import group_by_round
from spodgt.training.settings import ExecutionSettings, Interrupt
from spodgt.training.stopping import STOP, Row, call_callbacks
from spodgt.types import Problem

LOGS = "workers"  # the folder of the workers' logs, in the run folder
_POLL_SECONDS = 0.2  # between two checks for Ctrl-C
_SAVE_SECONDS = 120.0  # for workers to send their last checkpoints
_MIN_WORK = 2e8  # gradients times parameters that justify workers: some seconds
_CALL_COST = 10_000  # parameters with a gradient as expensive as the call of a module

# First byte of a message from a worker.
_ROW = b"r"  # an evaluation, JSON
_PROGRESS = b"p"  # JSON
_CHECKPOINT = b"c"  # the log of the run, with a checkpoint
_FINISHED = b"f"  # the log of the run, with its final checkpoint
_ERROR = b"e"  # type and text of an exception, JSON

# Answers of the parent to an evaluation, if there are callbacks that may stop a run.
_CONTINUE = b"c"
_STOP = b"s"
_SAVE = b"x"  # a callback failed: save and end


# --- number of workers ---------------------------------------------------------------------------
def count_workers(
    requested: int | None,
    batches: Mapping[str, Sequence[Run]],
    runtime: Runtime,
    settings: ExecutionSettings,
) -> int:
    """The number of worker processes; 1: this process computes all runs.

    Args:
        requested: the option `workers`. None: one per thread of torch if there are several runs of
            a network on a CPU, and together they take more than some seconds.
    """
    obstacle = _find_obstacle(runtime, settings)
    runs = sum(map(len, batches.values()))
    if requested is None:
        is_long = _is_long(batches, settings.stop, settings.dtype)
        if obstacle is None and sys.platform == "linux" and is_long:
            return min(thread_count(), runs)
        return 1
    if requested > 1 and obstacle is not None:
        raise InvalidInput(f"workers={requested} cannot be used {obstacle}; use workers=1.")
    return min(requested, runs)


def uses_one_thread(
    requested: int | None, batches: Mapping[str, Sequence[Run]], settings: ExecutionSettings
) -> bool:
    """Whether torch uses one thread for every run, even in this process.

    Sums of several threads differ in the last digits. With one thread, the results of networks are
    the same for every number of workers that is requested. Compiled loops do not depend on the
    number of threads.
    """
    if requested is None or settings.device.type != "cpu":
        return False
    first_runs = [runs[0] for runs in batches.values()]
    return not all(_is_compiled(run.problem, settings.dtype) for run in first_runs)


def _find_obstacle(runtime: Runtime, settings: ExecutionSettings) -> str | None:
    """Why worker processes cannot be used; None if they can."""
    if runtime.processes > 1:
        return "with several processes of torchrun"
    if settings.device.type != "cpu":
        return f"with device={str(settings.device)!r}"
    if settings.keep_states:
        return "with keep_states=True"
    if "fork" not in mp.get_all_start_methods():
        return "on a system without fork"
    if _has_accelerator():
        return "on a machine with an accelerator: its driver does not work in forked processes"
    if mp.current_process().daemon:
        return "inside a daemonic process"
    return None


def _has_accelerator() -> bool:
    """Whether torch can use a device other than the CPU; `torch.accelerator` is new in torch 2.6."""
    if hasattr(torch, "accelerator"):
        return torch.accelerator.is_available()
    return torch.cuda.is_available() or torch.backends.mps.is_available()


def _is_long(batches: Mapping[str, Sequence[Run]], stop: Stop, dtype: torch.dtype) -> bool:
    """Whether the work without compiled loops takes longer than the start of workers."""
    rounds = min(stop.rounds or math.inf, stop.delay or math.inf)  # each has a delay of at least 1
    work = 0.0
    for runs in batches.values():
        for run in runs:
            if not _is_compiled(run.problem, dtype):
                clients, parameters = run.start.shape
                work += rounds * clients * (parameters + _CALL_COST)
    return work >= _MIN_WORK


def _is_compiled(problem: Problem, dtype: torch.dtype) -> bool:
    """Whether gradients are cheap or computed by compiled loops, which use several threads."""
    if not isinstance(problem, CompiledGradient):
        return True  # quadratics
    return problem.linear_data(dtype) is not None


# --- the parent process --------------------------------------------------------------------------
@dataclass(eq=False)
class RunJob:
    """One run of one method, and the process that computes it."""

    label: str
    number: int  # of the run among those of the method
    run: Run
    log_file: Path  # output of the process
    process: ForkProcess | None = None
    progress: Progress | None = None
    finished: bool = False

    @property
    def name(self) -> str:
        return f"{self.label} (seed {self.run.seed})"

    def check_exit(self) -> None:
        """Raise if a process ended without a result and without a request."""
        assert self.process is not None
        self.process.join()
        code = self.process.exitcode or 0
        if self.finished and code == 0:
            if self.log_file.stat().st_size == 0:
                self.log_file.unlink()
            return
        cause = f"exit code {code}"
        if code < 0:
            cause = signal.Signals(-code).name
        if code == -signal.SIGKILL:
            cause += " (often out of memory: use fewer workers)"
        raise Failed(
            f"the worker of {self.name} ended with {cause}; see {self.log_file}, "
            "and run again with --resume."
        )


@dataclass(eq=False)
class WorkerPool:
    """Computes methods in worker processes, and writes what they send."""

    comparison: Comparison
    files: ComparisonFiles
    settings: ExecutionSettings
    runtime: Runtime
    interrupt: Interrupt
    finish: Callable[[str], None]  # called with a method when all its runs have ended
    jobs: list[RunJob] = field(default_factory=list)
    running: dict[Connection, RunJob] = field(default_factory=dict)  # by the pipe to the process
    is_stopping: bool = False  # whether workers were requested to save and end

    def run(self, labels: Sequence[str]) -> None:
        """Run methods to their end.

        Raises:
            KeyboardInterrupt: after Ctrl-C, when all workers have saved.
            Failed: if a worker died; the other workers have saved.
        """
        logs = _create_log_folder(self.files.folder)
        succeeded = False
        try:
            self._create_jobs(labels, logs)
            self._run_jobs()
            succeeded = True
        except BaseException:  # also those of callbacks
            self._stop_workers()
            raise
        finally:
            self._kill_workers()
            self.files.save(None)
            if self.files.folder is None and succeeded:
                shutil.rmtree(logs, ignore_errors=True)
            with contextlib.suppress(OSError):  # some logs are not empty
                logs.rmdir()

    def _create_jobs(self, labels: Sequence[str], logs: Path) -> None:
        """Create a job for every run, and write its checkpoint to a file of its own."""
        for label in labels:
            runs = self.comparison.batches[label]
            log = self.comparison.logs[label]
            group_by_round(log, runs, self.settings.stop)  # raises if one cannot be continued
            for number, run in enumerate(runs):
                log_file = logs / f"{self.files.file_stem(label)}-seed-{run.seed}.log"
                job = RunJob(label, number, run, log_file)
                job.finished = log.is_finished(number, self.settings.stop)
                self.jobs.append(job)
                if self.files.folder is not None and number in log.checkpoints:
                    file = log.extract(number, run.seed).to_file(self.comparison.notes())
                    self.files.folder.save(file, self.files.run_file(label, number))
        self.files.save(None)
        for label in labels:
            self._finish_method(label)  # all its runs may have ended already

    def _run_jobs(self) -> None:
        waiting = deque(job for job in self.jobs if not job.finished)
        while waiting or self.running:
            if self.interrupt.requested:
                raise KeyboardInterrupt
            while waiting and len(self.running) < self.settings.workers:
                self._start(waiting.popleft())
            self._receive()

    def _start(self, job: RunJob) -> None:
        context = mp.get_context("fork")
        receiver, sender = context.Pipe()
        log = self.comparison.logs[job.label].extract(job.number, job.run.seed)
        worker = Worker(
            run=job.run,
            log=log,
            log_file=job.log_file,
            settings=self.settings,
            runtime=self.runtime,
            interrupt=self.interrupt,
            labels=self.comparison.labels,
            notes=self.comparison.notes() if self.files.folder is not None else None,
            connection=sender,
        )
        pipes = [receiver, *self.running]  # of the parent
        job.process = context.Process(target=worker.main, args=(pipes,), daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns that threads of this process do not exist in the new one.
            warnings.filterwarnings(
                "ignore", "This process .* is multi-threaded", DeprecationWarning
            )
            job.process.start()
        sender.close()
        self.running[receiver] = job
        if job.number in self.comparison.logs[job.label].checkpoints:
            # it is in the worker's memory
            self.comparison.logs[job.label].take_checkpoint(job.number)

    def _receive(self) -> None:
        """Handle one message of every worker that has sent some, and workers that have ended."""
        for receiver in wait(list(self.running), _POLL_SECONDS):
            assert isinstance(receiver, Connection)
            try:
                message = receiver.recv_bytes()
            except (EOFError, OSError):
                receiver.close()
                self.running.pop(receiver).check_exit()
            else:
                self._handle(receiver, message[:1], message[1:])

    def _handle(self, connection: Connection, kind: bytes, data: bytes) -> None:
        job = self.running[connection]
        if kind == _ROW:
            self._call_callbacks(connection, RenamedKey(json.loads(data), "algorithm", "method"))
        elif kind == _PROGRESS:
            job.progress = Progress(**json.loads(data))
            self._show_progress(job.label)
        elif kind == _ERROR:
            _raise_error(job, **json.loads(data))
        else:
            self._record(job, data, finished=kind == _FINISHED)

    def _call_callbacks(self, connection: Connection, row: Row) -> None:
        """Call the user's callbacks, and answer a worker that waits for what they return."""
        settings = self.settings
        answer = _SAVE
        try:
            answer = _STOP if call_callbacks(settings.callbacks, row) else _CONTINUE
        finally:
            if settings.stopping.has_callbacks:
                with contextlib.suppress(OSError):  # a worker that died is reported by its pipe
                    connection.send_bytes(answer)

    def _record(self, job: RunJob, data: bytes, *, finished: bool) -> None:
        """Write the log of a run, and add it to that of its method."""
        if self.files.folder is not None:
            write(self.files.folder.path / self.files.run_file(job.label, job.number), data)
        part = MethodLog.from_file(CheckpointFile.from_bytes(data))
        if not finished and not self.is_stopping:
            part.checkpoints.clear()  # it is in the file, and in the worker's memory
        self.comparison.logs[job.label].update(job.number, job.run.seed, part)
        job.finished = finished
        if finished:
            self._finish_method(job.label)

    def _finish_method(self, label: str) -> None:
        """Finish a method if all its runs have ended."""
        jobs = [job for job in self.jobs if job.label == label]
        if label not in self.comparison.finished and all(job.finished for job in jobs):
            self.finish(label)

    def _stop_workers(self) -> None:
        """Request a last checkpoint from every worker, and wait until it has ended."""
        if self.files.folder is None:
            return
        self.is_stopping = True
        for job in self.running.values():
            assert job.process is not None
            job.process.terminate()
        deadline = time.monotonic() + _SAVE_SECONDS
        while self.running and time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # the first failure is reported
                self._receive()

    def _kill_workers(self) -> None:
        for receiver, job in self.running.items():
            assert job.process is not None
            job.process.kill()
            job.process.join()
            receiver.close()
        self.running.clear()

    def _show_progress(self, label: str) -> None:
        """Report the progress of a method: means over runs, and the round of the slowest."""
        show = self.settings.progress
        if show is None:
            return
        jobs = [job for job in self.jobs if job.label == label]
        show(_mean_progress(jobs))


def _create_log_folder(folder: RunFolder | None) -> Path:
    """The folder of the workers' logs: in the run folder, or a temporary one."""
    if folder is None:
        return Path(tempfile.mkdtemp("-spodgt-workers"))
    logs = folder.path / LOGS
    logs.mkdir(exist_ok=True)
    return logs


def _mean_progress(jobs: Sequence[RunJob]) -> Progress:
    """The progress of a method with these runs, of which at least one has reported."""
    reports = [job.progress for job in jobs if job.progress is not None]
    silent = [job for job in jobs if job.progress is None]
    finished = sum(job.finished for job in silent)  # in an earlier session
    fraction = (finished + sum(report.fraction for report in reports)) / len(jobs)
    accuracies = [report.accuracy for report in reports if not math.isnan(report.accuracy)]
    accuracy = sum(accuracies) / len(accuracies) if accuracies else math.nan
    slowest = min(reports, key=lambda report: report.fraction)
    return replace(slowest, fraction=min(1.0, fraction), accuracy=accuracy)


def _raise_error(job: RunJob, kind: str, text: str) -> NoReturn:
    """Raise an exception of a worker: one of this package as it is, others with the log."""
    error = getattr(errors, kind, None)
    if isinstance(error, type) and issubclass(error, SpodgtError):
        raise error(text)
    raise Failed(f"{job.name} failed with {kind}: {text}; see {job.log_file}.")


# --- the worker process --------------------------------------------------------------------------
@dataclass(eq=False)
class Worker:
    """Computes one run in a process of its own, and sends what the parent writes."""

    run: Run
    log: MethodLog  # of this run alone, with the number 0
    log_file: Path
    settings: ExecutionSettings
    runtime: Runtime
    interrupt: Interrupt
    labels: Sequence[str]
    notes: Mapping[str, object] | None  # facts for checkpoints; None: the run is not saved
    connection: Connection

    def main(self, pipes: Sequence[Connection]) -> None:
        """The main function of the process; `pipes` are those of the parent."""
        for pipe in pipes:
            pipe.close()  # so that a worker gets an error when it sends to a parent that has died
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and sends SIGTERM
        self._open_log_file()
        torch.set_num_threads(1)  # before any operation: threads of the parent do not exist here
        try:
            with self.interrupt.installed():
                self._compute()
        except KeyboardInterrupt:
            pass
        except BrokenPipeError:  # the parent has ended
            os._exit(1)
        except Exception as error:
            traceback.print_exc()
            self._send_json(_ERROR, {"kind": type(error).__name__, "text": str(error)})
        sys.stderr.flush()

    def _open_log_file(self) -> None:
        """Redirect the output of this process; locks of the parent's streams may be held."""
        file = self.log_file.open("w", encoding="utf-8", buffering=1)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = file
        sys.stderr = file
        faulthandler.enable(file)

    def _compute(self) -> None:
        settings = replace(
            self.settings,
            callbacks=(self._report_row,),
            progress=lambda progress: self._send_json(_PROGRESS, asdict(progress)),
        )
        callbacks = ObserverCallbacks(
            stop_requested=lambda: self.interrupt.requested,
            save=None if self.notes is None else self._send_checkpoint,
            labels=self.labels,
        )
        observer = Observer(self.log, [self.run], settings, callbacks)
        if 0 in self.log.checkpoints:
            checkpoints = {0: self.log.take_checkpoint(0)}
            start = self.runtime.restore([self.run], settings.dtype, checkpoints)
        else:
            start = begin(self.runtime.world([self.run], settings.dtype))
        run_rounds(start, settings.stop, settings.schedule, observer, STRIDE)
        observer.close()
        self._send(_FINISHED, self.log.to_file(self.notes or {}).to_bytes())

    def _report_row(self, row: Row) -> object:
        """The callback of the observer: the callbacks of the user are called by the parent."""
        self._send_json(_ROW, row)
        if not self.settings.stopping.has_callbacks:
            return None
        answer = self.connection.recv_bytes()
        if answer == _SAVE:
            raise KeyboardInterrupt
        return STOP if answer == _STOP else None

    def _send_checkpoint(self, checkpoints: Mapping[int, RunCheckpoint]) -> None:
        file = self.log.to_file(self.notes or {}, checkpoints)
        self._send(_CHECKPOINT, file.to_bytes())

    def _send_json(self, kind: bytes, value: Mapping[str, object]) -> None:
        self._send(kind, json.dumps(value, default=float).encode())

    def _send(self, kind: bytes, data: bytes) -> None:
        self.connection.send_bytes(kind + data)

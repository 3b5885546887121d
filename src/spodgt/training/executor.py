"""Runs a comparison: executes methods, records metrics, writes checkpoints and resumes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spodgt.engine import describe_engine
from spodgt.errors import Failed
from spodgt.experiment.toml import checksum
from spodgt.kernels.steps import State
from spodgt.problems.protocols import HasModel
from spodgt.record.metrics import declare
from spodgt.record.models import BEST, MAX_MODEL_BYTES, RUNNING_MEAN, write_models
from spodgt.record.networks import networks_table
from spodgt.record.record import Diverged, Stopped, versions
from spodgt.record.run_folder import (
    FINISHED,
    SINGLE_RUNS,
    CheckpointFile,
    RunFolder,
    parquet,
    slug,
    write,
)
from spodgt.runtimes.loop import MEETING, STRIDE, EvaluationSchedule, begin, run_rounds
from spodgt.runtimes.world import Draw, Run, RunCheckpoint, Runtime, Snapshot
from spodgt.training.checkpoint import MAX_STATE_BYTES, MethodLog, with_statistics
from spodgt.training.observer import Observer, ObserverCallbacks
from spodgt.training.result import Result
from spodgt.training.resume import ResumeGroup, group_by_round, is_extension, update_if_newer
from spodgt.training.settings import ExecutionSettings, Interrupt
from spodgt.training.stopping import Row
from spodgt.training.tables import (
    clients_table,
    method_traits,
    metrics_table,
    objective_of,
    participation_table,
)
from spodgt.training.workers import WorkerPool
from spodgt.types import Better

if TYPE_CHECKING:
    import pandas as pd

_FIELDS_OF_STATE = 5  # at most, for an estimate of the disk space
_TABLE_BYTES = 10_000_000  # of tables and figures, for the same


@dataclass(eq=False)
class Executor:
    """Runs the methods of a comparison one after the other, all seeds of each together.

    Args:
        batches: the runs of every method, by its label.
        draws: the draws they were made from, by seed.
        settings: how to run.
        runtime: creates the worlds in which runs advance.
        config: the experiment as plain tables.
        identity: what the config only names, such as checksums of data, for resuming.
        folder: for checkpoints and results; None: nothing is written.
    """

    batches: dict[str, list[Run]]
    draws: dict[int, Draw]
    settings: ExecutionSettings
    runtime: Runtime
    config: dict[str, Any]
    identity: dict[str, Any] = field(default_factory=dict)
    folder: RunFolder | None = None

    def __post_init__(self) -> None:
        self.labels = list(self.batches)
        self.interrupt = Interrupt()
        self.scores: dict[str, Better] = dict(next(iter(self.draws.values())).problem.metrics)
        declare(self.scores)
        self.logs = {label: MethodLog(label) for label in self.labels}
        self.states: dict[int, State] = {}  # of all rounds, with keep_states
        self.finished: list[str] = []  # labels
        self.started_at = time.monotonic()
        self.seconds_before_resume = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """Config and identity as plain JSON values; experiments with equal facts are the same."""
        facts: dict[str, Any] = json.loads(json.dumps(self.config | self.identity, default=str))
        return facts

    # --- running ---------------------------------------------------------------------------------
    def execute(self, config_text: Callable[[], str], *, resume: bool) -> Result:
        """Run all methods.

        Args:
            config_text: returns the text of config.toml.
            resume: continue the run in the folder.

        Returns:
            The same result in every process; states and models only in the one that records.
        """
        self._check_processes()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.runtime.running())
            prepare = partial(self._prepare, stack, config_text, resume)
            self.finished, pending, schedule = self.runtime.broadcast_from_main(prepare)
            self.settings = dataclasses.replace(
                self.settings, schedule=EvaluationSchedule(**schedule)
            )
            if self.folder is None:  # Ctrl-C is handled by the caller
                self._run_methods(pending)
                return self._broadcast_result()
            with self.interrupt.installed():
                try:
                    self._run_methods(pending)
                except KeyboardInterrupt:
                    pass  # checkpoints are written by then
                except Exception:
                    self._write_partial_result()
                    raise
                if self.runtime.is_main:
                    self.result().write(self.folder.path)
            return self._broadcast_result()

    def _write_partial_result(self) -> None:
        """Write what was evaluated before an error, if anything."""
        if self.folder is None or not self.runtime.is_main:
            return
        if any(log.rows for log in self.logs.values()):
            with contextlib.suppress(Failed):  # the first failure is reported
                self.result().write(self.folder.path)

    def _check_processes(self) -> None:
        """Check that all processes run the same experiment with the same versions."""
        text = json.dumps(self.facts, sort_keys=True)
        facts = {"settings": hashlib.sha256(text.encode()).hexdigest(), **versions()}
        if self.runtime.processes > 1:  # a module made without a seed differs between processes
            starts = []
            for draw in self.draws.values():
                starts += [draw.start[0], draw.start[-1]]
            facts["initial models"] = checksum(*starts)
        self.runtime.check_equal(facts)

    def _prepare(
        self, stack: contextlib.ExitStack, config_text: Callable[[], str], resume: bool
    ) -> tuple[list[str], list[str], dict[str, Any]]:
        """Open the folder and read its checkpoints, in the process that records.

        Returns:
            The finished methods, those that are left to run, and the schedule of evaluations.
        """
        if self.folder is not None:
            resume = resume or self.runtime.restarted
            opened = self.folder.opened(config_text, self._disk_space(), resume=resume)
            stack.enter_context(opened)
            if self._restore(self.folder):
                write(self.folder.path / "config.toml", config_text().encode())
        return self.finished, self._pending_labels(), dataclasses.asdict(self.settings.schedule)

    def _disk_space(self) -> int:
        """Bytes of two checkpoints and of the final states and models of every method, at most."""
        runs = next(iter(self.batches.values()))
        itemsize = self.settings.dtype.itemsize
        model_bytes = sum(run.start.numel() for run in runs) * itemsize
        average_bytes = sum(run.start.shape[1] for run in runs) * itemsize
        state_bytes = _FIELDS_OF_STATE * model_bytes
        final_bytes = min(state_bytes, MAX_STATE_BYTES)
        final_bytes += min(model_bytes, MAX_MODEL_BYTES * len(runs)) + average_bytes
        return 2 * state_bytes + final_bytes * len(self.batches) + _TABLE_BYTES

    def _pending_labels(self) -> list[str]:
        """The methods that are left to run, an interrupted one first.

        checkpoint.zip holds one method, so an interrupted method must finish before another method
        writes a checkpoint.
        """
        interrupted: list[str] = []
        others: list[str] = []
        for label in self.labels:
            if label in self.finished:
                continue
            log = self.logs[label]
            if any(log.is_interrupted(run) for run in log.checkpoints):
                interrupted.append(label)
            else:
                others.append(label)
        return interrupted + others

    def _run_methods(self, labels: list[str]) -> None:
        """Run the methods that are left."""
        if self.settings.workers == 1:
            with _torch_threads(1 if self.settings.one_thread else torch.get_num_threads()):
                for label in labels:
                    self._run_method(label)
            return
        WorkerPool(self).run(labels)

    def _run_method(self, label: str) -> None:
        """Run one method to its end, in groups of runs that continue in the same round."""
        runs = self.batches[label]
        log = self.logs[label]
        observer = Observer(
            log,
            runs,
            self.settings,
            ObserverCallbacks(
                stop_requested=lambda: self.interrupt.requested,
                save=None if self.folder is None else partial(self.save, label),
                labels=self.labels,
            ),
            records=self.runtime.is_main,
        )
        groups = self.runtime.broadcast_from_main(
            partial(group_by_round, log, runs, self.settings.stop)
        )
        for group in groups:
            start = self._start(label, ResumeGroup(*group))
            stride = STRIDE if start.world.communicator.size == 1 else MEETING
            if self.settings.keep_states:
                stride = 1
            end = run_rounds(start, self.settings.stop, self.settings.schedule, observer, stride)
            end.world.close()
        try:
            self.states |= observer.close()
        except BaseException:  # of a callback, at the last evaluations
            self.save(label)
            raise
        self.finish(label)

    def _start(self, label: str, group: ResumeGroup) -> Snapshot:
        """The runs of a group at round 0, or as their checkpoints hold them."""
        runs = self.batches[label]
        if not group.is_new:
            checkpoints = None
            if self.runtime.is_main:
                log = self.logs[label]
                checkpoints = {number: log.take_checkpoint(number) for number in group.runs}
            return self.runtime.restore(runs, self.settings.dtype, checkpoints)
        start = begin(self.runtime.world(runs, self.settings.dtype))
        is_in_group = np.isin(np.arange(len(runs)), group.runs)
        if is_in_group.all():
            return start
        world, state = start.world.select_runs(is_in_group, start.state)
        return Snapshot(start.k, start.delay[is_in_group], world, state)

    def finish(self, label: str) -> None:
        """Write the checkpoints and models of a finished method."""
        self.finished.append(label)
        if self.folder is None or not self.runtime.is_main:
            return
        log = self.logs[label]
        self.folder.save(log.to_file(self.notes()), self._method_file(label))
        for number, run in enumerate(self.batches[label]):
            self._write_models(log, number, run)
        self.save(None)
        for number in range(len(self.batches[label])):
            (self.folder.path / self.run_file(label, number)).unlink(missing_ok=True)

    def _write_models(self, log: MethodLog, number: int, run: Run) -> None:
        """Write the final models of a run, and their running means if there are any."""
        if self.folder is None or not isinstance(run.problem, HasModel):
            return
        models: dict[str, Tensor] = {}
        ending = log.endings[number]
        checkpoint = log.checkpoints[number]
        if not ending.diverged:
            models[log.label] = with_statistics(checkpoint)
            if "mean" in checkpoint.state:
                models[log.label + RUNNING_MEAN] = with_statistics(checkpoint, "mean")
        if number in log.best:
            models[log.label + BEST] = log.best[number].models
        clients = run.network.clients
        for label, rows in models.items():
            write_models(self.folder.path, label, rows, run.seed, run.problem, len(rows) == clients)

    # --- results ---------------------------------------------------------------------------------
    @property
    def seconds(self) -> float:
        """Time of this call and of those that it continues."""
        return round(self.seconds_before_resume + time.monotonic() - self.started_at, 3)

    def result(self) -> Result:
        """The result so far; all tables are in the order of methods and seeds."""
        rows: list[Row] = []
        clients: list[pd.DataFrame] = []
        diverged: list[Diverged] = []
        stopped: list[Stopped] = []
        models = {}
        best_models = {}
        for label, runs in self.batches.items():
            log = self.logs[label]
            rows += log.rows.values()
            for number, run in enumerate(runs):
                diverged += [each for each in log.diverged if each.seed == run.seed]
                if run.seed in log.clients:
                    clients.append(log.clients[run.seed])
                if number in log.checkpoints:
                    models[label, run.seed] = with_statistics(log.checkpoints[number])
                if number in log.best:
                    best_models[label, run.seed] = log.best[number].models
                if number in log.endings and log.endings[number].stopped:
                    k = log.checkpoints[number].k
                    stopped.append(Stopped(label, run.seed, k, log.endings[number].stopped))
        return Result(
            metrics_table(rows, self.labels),
            self._participation(),
            networks_table((d.seed, d.network, d.availability) for d in self.draws.values()),
            self.config,
            versions(),
            diverged,
            stopped=stopped,
            complete=len(self.finished) == len(self.batches),
            seconds=self.seconds,
            scores=self.scores,
            clients=clients_table(clients),
            traits=method_traits(self.batches),
            objective=objective_of(next(iter(self.draws.values())).problem),
            states=self.states,
            draws=self.draws,
            engine=describe_engine(),
            models=models,
            best_models=best_models,
        )

    def _participation(self) -> pd.DataFrame:
        """The table of participation of all finished methods."""
        counts = []
        for label in self.labels:
            if label in self.finished:
                for number, checkpoint in sorted(self.logs[label].checkpoints.items()):
                    counts.append((label, self.batches[label][number], checkpoint.counts))
        return participation_table(counts)

    def _broadcast_result(self) -> Result:
        """The result of the process that records, in all processes."""
        import pandas as pd

        from spodgt.record.frames import with_old_names

        result = self.result()
        if self.runtime.processes == 1:
            return result
        facts: dict[str, Any] = {
            "diverged": [dataclasses.asdict(each) for each in result.diverged],
            "stopped": [dataclasses.asdict(each) for each in result.stopped],
            "complete": result.complete,
            "seconds": result.seconds,
        }
        facts = self.runtime.broadcast_from_main(partial(dict, facts))
        tables = []
        for table in (result.frame, result.participation, result.clients):
            tables.append(self.runtime.broadcast_bytes(partial(parquet, table)))
        if self.runtime.is_main:
            return result
        result.frame = with_old_names(pd.read_parquet(BytesIO(tables[0])))
        result.participation = with_old_names(pd.read_parquet(BytesIO(tables[1])))
        result.clients = with_old_names(pd.read_parquet(BytesIO(tables[2])))
        result.diverged = [Diverged.from_dict(each) for each in facts["diverged"]]
        result.stopped = [Stopped(**each) for each in facts["stopped"]]
        result.complete = facts["complete"]
        result.seconds = facts["seconds"]
        return result

    # --- checkpoints -----------------------------------------------------------------------------
    def _method_file(self, label: str) -> str:
        """The file of a finished method."""
        return f"{FINISHED}/{self.file_stem(label)}.zip"

    def run_file(self, label: str, number: int) -> str:
        """The file of a run that a worker computes; it exists until the method has finished."""
        seed = self.batches[label][number].seed
        return f"{SINGLE_RUNS}/{self.file_stem(label)}-seed-{seed}.zip"

    def file_stem(self, label: str) -> str:
        return f"{self.labels.index(label):02d}-{slug(label)}"

    def notes(self) -> dict[str, Any]:
        """Facts that every checkpoint holds."""
        schedule = dataclasses.asdict(self.settings.schedule)
        return {"config": self.facts, "schedule": schedule, "seconds": self.seconds}

    def save(self, label: str | None, running: Mapping[int, RunCheckpoint] | None = None) -> None:
        """Write checkpoint.zip, with the method that is running and the state of its runs."""
        if self.folder is None:
            return
        if label is None:
            self.folder.save(CheckpointFile(self.notes()))
        else:
            self.folder.save(self.logs[label].to_file(self.notes(), running))

    def _restore(self, folder: RunFolder) -> bool:
        """Read the checkpoints of the folder, if any; returns whether the run is extended."""
        current = folder.load()
        if current is None:
            return False
        extended = is_extension(current.notes["config"], self.facts, str(folder.path))
        # The spacing of evaluations does not change when a run is extended.
        schedule = EvaluationSchedule(**current.notes["schedule"])
        self.settings = dataclasses.replace(self.settings, schedule=schedule)
        self.seconds_before_resume = float(current.notes["seconds"])
        for label in self.labels:
            self._restore_method(folder, label, current)
        return extended

    def _restore_method(self, folder: RunFolder, label: str, current: CheckpointFile) -> None:
        """Read the newest checkpoints of a method: finished, interrupted, or of workers."""
        runs = self.batches[label]
        file = folder.load(self._method_file(label))
        if file is not None:
            self.logs[label] = MethodLog.from_file(file)
            stop = self.settings.stop
            if all(self.logs[label].is_finished(number, stop) for number in range(len(runs))):
                self.finished.append(label)
                return
        if current.notes.get("label") == label:
            self.logs[label] = MethodLog.from_file(current)
        for number, run in enumerate(runs):
            file = folder.load(self.run_file(label, number))
            if file is not None:
                part = MethodLog.from_file(file)
                update_if_newer(self.logs[label], number, run.seed, part)


@contextlib.contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads in this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

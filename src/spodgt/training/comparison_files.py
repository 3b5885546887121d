"""The files of a comparison in its run folder: checkpoints, models and results."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spodgt.errors import Failed
from spodgt.problems.protocols import HasModel
from spodgt.record.models import BEST, RUNNING_MEAN, write_models
from spodgt.record.run_folder import FINISHED, SINGLE_RUNS, CheckpointFile, RunFolder, slug
from spodgt.runtimes.loop import EvaluationSchedule, Stop
from spodgt.runtimes.world import Run, RunCheckpoint
from spodgt.training.checkpoint import MethodLog, with_statistics
from spodgt.training.comparison import Comparison
from spodgt.training.resume import is_extension, update_if_newer


@dataclass(eq=False)
class ComparisonFiles:
    """Reads and writes the files of a comparison; without a folder, nothing is written."""

    comparison: Comparison
    folder: RunFolder | None

    def _method_file(self, label: str) -> str:
        """The file of a finished method."""
        return f"{FINISHED}/{self.file_stem(label)}.zip"

    def run_file(self, label: str, number: int) -> str:
        """The file of a run that a worker computes; it exists until the method has finished."""
        seed = self.comparison.batches[label][number].seed
        return f"{SINGLE_RUNS}/{self.file_stem(label)}-seed-{seed}.zip"

    def file_stem(self, label: str) -> str:
        return f"{self.comparison.labels.index(label):02d}-{slug(label)}"

    def save(self, label: str | None, running: Mapping[int, RunCheckpoint] | None = None) -> None:
        """Write checkpoint.zip, with the method that is running and the state of its runs."""
        if self.folder is None:
            return
        if label is None:
            self.folder.save(CheckpointFile(self.comparison.notes()))
        else:
            self.folder.save(self.comparison.logs[label].to_file(self.comparison.notes(), running))

    def save_finished(self, label: str) -> None:
        """Write the checkpoints and models of a finished method."""
        if self.folder is None:
            return
        log = self.comparison.logs[label]
        runs = self.comparison.batches[label]
        self.folder.save(log.to_file(self.comparison.notes()), self._method_file(label))
        for number, run in enumerate(runs):
            self._write_models(log, number, run)
        self.save(None)
        for number in range(len(runs)):
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

    def write_partial_result(self) -> None:
        """Write what was evaluated before an error, if anything."""
        if self.folder is not None and any(log.rows for log in self.comparison.logs.values()):
            with contextlib.suppress(Failed):  # the first failure is reported
                self.comparison.result().write(self.folder.path)

    def restore(self, folder: RunFolder, stop: Stop) -> bool:
        """Read the checkpoints of the folder, if any; returns whether the run is extended."""
        current = folder.load()
        if current is None:
            return False
        extended = is_extension(current.notes["config"], self.comparison.facts, str(folder.path))
        # The spacing of evaluations does not change when a run is extended.
        self.comparison.schedule = EvaluationSchedule(**current.notes["schedule"])
        self.comparison.seconds_before_resume = float(current.notes["seconds"])
        for label in self.comparison.labels:
            self._restore_method(folder, label, current, stop)
        return extended

    def _restore_method(
        self, folder: RunFolder, label: str, current: CheckpointFile, stop: Stop
    ) -> None:
        """Read the newest checkpoints of a method: finished, interrupted, or of workers."""
        runs = self.comparison.batches[label]
        file = folder.load(self._method_file(label))
        if file is not None:
            self.comparison.logs[label] = MethodLog.from_file(file)
            if all(
                self.comparison.logs[label].is_finished(number, stop) for number in range(len(runs))
            ):
                self.comparison.finished.append(label)
                return
        if current.notes.get("label") == label:
            self.comparison.logs[label] = MethodLog.from_file(current)
        for number, run in enumerate(runs):
            file = folder.load(self.run_file(label, number))
            if file is not None:
                part = MethodLog.from_file(file)
                update_if_newer(self.comparison.logs[label], number, run.seed, part)

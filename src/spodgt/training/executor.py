"""Runs a comparison: executes methods, records metrics, writes checkpoints and resumes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from spodgt.experiment.toml import checksum
from spodgt.record.record import versions
from spodgt.record.run_folder import write
from spodgt.runtimes.loop import (
    STRIDE,
    SYNCHRONIZATION_STRIDE,
    EvaluationSchedule,
    begin,
    run_rounds,
)
from spodgt.runtimes.world import Runtime, Snapshot
from spodgt.training.broadcast import broadcast_result
from spodgt.training.comparison import Comparison
from spodgt.training.comparison_files import ComparisonFiles
from spodgt.training.observer import Observer, ObserverCallbacks
from spodgt.training.result import Result
from spodgt.training.resume import ResumeGroup, group_by_round
from spodgt.training.settings import ExecutionSettings, Interrupt
from spodgt.training.workers import WorkerPool


@dataclass(eq=False)
class Executor:
    """Runs the methods of a comparison one after the other, all seeds of each together.

    Args:
        comparison: the runs, and what is recorded of them.
        files: checkpoints and results.
        settings: how to run.
        runtime: creates the worlds in which runs advance.
        interrupt: requests of the user to stop.
    """

    comparison: Comparison
    files: ComparisonFiles
    settings: ExecutionSettings
    runtime: Runtime
    interrupt: Interrupt = field(default_factory=Interrupt)

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
            self.comparison.finished, pending, schedule = self.runtime.broadcast_from_main(prepare)
            self.settings = dataclasses.replace(
                self.settings, schedule=EvaluationSchedule(**schedule)
            )
            if self.files.folder is None:  # Ctrl-C is handled by the caller
                self._run_methods(pending)
                return broadcast_result(self.comparison.result(), self.runtime)
            with self.interrupt.installed():
                try:
                    self._run_methods(pending)
                except KeyboardInterrupt:
                    pass  # checkpoints are written by then
                except Exception:
                    if self.runtime.is_main:
                        self.files.write_partial_result()
                    raise
                result = self.comparison.result()
                if self.runtime.is_main:
                    result.write(self.files.folder.path)
            return broadcast_result(result, self.runtime)

    def _check_processes(self) -> None:
        """Check that all processes run the same experiment with the same versions."""
        text = json.dumps(self.comparison.facts, sort_keys=True)
        facts = {"settings": hashlib.sha256(text.encode()).hexdigest(), **versions()}
        if self.runtime.processes > 1:  # a module made without a seed differs between processes
            starts = []
            for draw in self.comparison.draws.values():
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
        comparison = self.comparison
        folder = self.files.folder
        if folder is not None:
            resume = resume or self.runtime.restarted
            stack.enter_context(folder.opened(config_text, resume=resume))
            if self.files.restore(folder, self.settings.stop):
                write(folder.path / "config.toml", config_text().encode())
        schedule = dataclasses.asdict(comparison.schedule)
        return comparison.finished, comparison.pending_labels(), schedule

    def _run_methods(self, labels: list[str]) -> None:
        """Run the methods that are left."""
        if self.settings.workers == 1:
            with _torch_threads(1 if self.settings.one_thread else torch.get_num_threads()):
                for label in labels:
                    self._run_method(label)
            return
        workers = WorkerPool(
            self.comparison, self.files, self.settings, self.runtime, self.interrupt, self.finish
        )
        workers.run(labels)

    def _run_method(self, label: str) -> None:
        """Run one method to its end, in groups of runs that continue in the same round."""
        runs = self.comparison.batches[label]
        log = self.comparison.logs[label]
        observer = Observer(
            log,
            runs,
            self.settings,
            ObserverCallbacks(
                stop_requested=lambda: self.interrupt.requested,
                save=None if self.files.folder is None else partial(self.files.save, label),
                labels=self.comparison.labels,
            ),
            records=self.runtime.is_main,
        )
        groups = self.runtime.broadcast_from_main(
            partial(group_by_round, log, runs, self.settings.stop)
        )
        for group in groups:
            start = self._start(label, ResumeGroup(*group))
            stride = STRIDE if start.world.communicator.size == 1 else SYNCHRONIZATION_STRIDE
            if self.settings.keep_states:
                stride = 1
            run_rounds(start, self.settings.stop, self.settings.schedule, observer, stride)
        try:
            self.comparison.states |= observer.close()
        except BaseException:  # of a callback, at the last evaluations
            self.files.save(label)
            raise
        self.finish(label)

    def _start(self, label: str, group: ResumeGroup) -> Snapshot:
        """The runs of a group at round 0, or as their checkpoints hold them."""
        runs = self.comparison.batches[label]
        if not group.is_new:
            checkpoints = None
            if self.runtime.is_main:
                log = self.comparison.logs[label]
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
        self.comparison.finished.append(label)
        if self.runtime.is_main:
            self.files.save_finished(label)


@contextlib.contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads in this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Runs a comparison: executes each method, records metrics, writes checkpoints and resumes from them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from types import FrameType
from typing import Any, NamedTuple

import torch

from spodgt.engine import describe_engine
from spodgt.errors import Failed, InvalidInput
from spodgt.experiment.config import checksum
from spodgt.kernels.steps import State
from spodgt.problems.protocols import HasModel
from spodgt.record.folder import FINISHED, SINGLE_RUNS, Checkpoint, RunFolder, parquet, slug, write
from spodgt.record.metrics import declare
from spodgt.record.models import MODELS, RUNNING_MEAN, write_models
from spodgt.record.record import Diverged, networks_table, versions
from spodgt.runtimes.loop import MEETING, STRIDE, EvaluationSchedule, Stop, begin, run_rounds
from spodgt.runtimes.world import Draw, Run, Runtime, Saved, Snapshot, Tally
from spodgt.training.log import STATES, MethodLog
from spodgt.training.observer import Observer, Progress
from spodgt.training.result import Result
from spodgt.training.tables import (
    clients_table,
    difference,
    method_traits,
    metrics_table,
    objective_of,
    participation_table,
)
from spodgt.training.workers import WorkerPool
from spodgt.types import Better


@dataclass(frozen=True)
class Settings:
    """How to run, as opposed to what."""

    stop: Stop
    schedule: EvaluationSchedule
    dtype: torch.dtype
    device: torch.device
    keep_states: bool = False
    gradient_norm: bool | None = None  # None: where affordable
    progress: Callable[[Progress], None] | None = None
    callbacks: tuple[Callable[[dict[str, Any]], None], ...] = ()
    checkpoint_every: float = 30.0  # seconds
    workers: int = 1  # processes; 1: all runs in this process


class Interrupt:
    """Ctrl-C and SIGTERM wait for the end of the round, so that it is saved; a second one does not wait."""

    def __init__(self) -> None:
        self.requested = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        before = {}
        if threading.current_thread() is threading.main_thread():  # only there do signals arrive
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, self._request)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class RunPoint(NamedTuple):
    """One run of a method, numbered 0: its log, and where it continues if it has not ended."""

    log: MethodLog
    point: Saved | None


@dataclass(eq=False)
class Executor:
    """Runs the methods of a comparison one after the other, all seeds of each together.

    Args:
        batches: the runs of every method, by its label.
        draws: the draws they were made from, by seed.
        settings: how to run.
        runtime: where.
        config: the experiment as plain tables.
        identity: what the config only names, such as check sums of data, for resuming.
        folder: where the work is kept; None keeps nothing.
    """

    batches: dict[str, list[Run]]
    draws: dict[int, Draw]
    settings: Settings
    runtime: Runtime
    config: dict[str, Any]
    identity: dict[str, Any] = field(default_factory=dict)
    folder: RunFolder | None = None

    def __post_init__(self) -> None:
        self.interrupt = Interrupt()
        self.scores: dict[str, Better] = dict(next(iter(self.draws.values())).problem.metrics)
        declare(self.scores)
        self.logs: dict[str, MethodLog] = {}  # label → what is known of it
        self.states: dict[int, State] = {}
        self.in_progress: dict[
            str, Saved
        ] = {}  # label → where its unfinished runs stand; one method at most
        self.single_runs: dict[
            tuple[str, int], RunPoint
        ] = {}  # (label, run) → what workers had saved
        self.finished: list[str] = []
        self.began, self.before = time.monotonic(), 0.0  # seconds of earlier sittings

    @property
    def labels(self) -> list[str]:
        return list(self.batches)

    @property
    def kept(self) -> bool:
        return self.folder is not None

    @property
    def state_bytes(self) -> int:
        if not self.kept:
            return 0  # a run without a folder is never resumed
        return STATES // len(self.draws)

    @property
    def facts(self) -> dict[str, Any]:
        """The whole experiment, as JSON gives it back."""
        found: dict[str, Any] = json.loads(json.dumps(self.config | self.identity, default=str))
        return found

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()

    def footprint(self) -> int:
        """Bytes that the folder may take: two checkpoints, and the last states and models of every method."""
        runs = next(iter(self.batches.values()))
        numbers = sum(run.start.numel() for run in runs)
        size = self.settings.dtype.itemsize
        state, models = 5 * numbers * size, numbers * size
        kept = (
            min(state, STATES)
            + min(models, MODELS * len(runs))
            + sum(run.start.shape[1] for run in runs) * size
        )
        return 2 * state + kept * len(self.batches) + 10_000_000

    # --- running ---------------------------------------------------------------------------------
    def execute(self, config_text: Callable[[], str], *, resume: bool) -> Result:
        """Run everything; every process gets the same result, states and models only where it is recorded.

        Args:
            config_text: gives the text of config.toml.
            resume: go on with what the folder holds.
        """
        facts = {"settings": self.fingerprint, **versions()}
        if (
            self.runtime.processes > 1
        ):  # a module made without a seed starts elsewhere in each of them
            starts = [draw.start[client] for draw in self.draws.values() for client in (0, -1)]
            facts["initial models"] = checksum(*starts)
        self.runtime.check_alike(facts)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.runtime.working())

            def prepare() -> tuple[list[str], list[str], dict[str, Any]]:
                if self.folder:
                    again = resume or self.runtime.restarted
                    stack.enter_context(
                        self.folder.opened(config_text, self.footprint(), resume=again)
                    )
                    if self._restore(self.folder):
                        write(self.folder.path / "config.toml", config_text().encode())
                return self.finished, self._pending(), dataclasses.asdict(self.settings.schedule)

            self.finished, pending, schedule = self.runtime.first(prepare)
            self.settings = dataclasses.replace(
                self.settings, schedule=EvaluationSchedule(**schedule)
            )
            work = self._methods
            if self.settings.workers > 1 or self.single_runs:
                work = self._run_in_workers
            if not self.folder:  # Ctrl-C is the caller's to catch
                work(pending)
                return self._shared()
            with self.interrupt.heard():
                with contextlib.suppress(KeyboardInterrupt):  # what is saved is on disk by then
                    work(pending)
                if self.runtime.records:
                    self.result().write(self.folder.path)
            return self._shared()

    def _pending(self) -> list[str]:
        """The methods that are left to run, in their order, but one that was interrupted first.

        A checkpoint holds the state of one method, so an interrupted method must reach its end before
        another method writes a checkpoint.
        """
        waiting = [label for label in self.labels if label not in self.finished]
        return sorted(waiting, key=lambda label: label not in self.in_progress)

    def _methods(self, pending: Sequence[str]) -> None:
        """Run the methods that are left, one after the other."""
        for label in pending:
            runs = self.batches[label]
            points: list[Saved | None] = []  # stays empty on processes that do not record
            starts_fresh = self.runtime.first(
                partial(self._collect_resume_points, label, runs, points)
            )
            log = self.logs.setdefault(label, MethodLog(label))
            observer = Observer(self, log, runs)
            tally: Tally | None = None
            for number, fresh in enumerate(starts_fresh):
                point = points[number] if points else None
                if point is not None:
                    if tally is not None:
                        point = point._replace(
                            tally=tally
                        )  # counts go on from one point to the next
                    for run in point.runs.tolist():
                        log.finite_at[run] = min(log.finite_at.get(run, 0), point.k)
                        log.ended.pop(run, None)
                start = self._start(runs, point, fresh=fresh)
                stride = (
                    1
                    if self.settings.keep_states
                    else STRIDE
                    if start.world.processes == 1
                    else MEETING
                )
                world = run_rounds(
                    start, self.settings.stop, self.settings.schedule, observer, stride
                ).world
                tally = world.tally()
                world.close()
            observer.close(tally)

    def _collect_resume_points(
        self, label: str, runs: Sequence[Run], points: list[Saved | None]
    ) -> list[bool]:
        """Fill `points`; returns for each whether it is round 0, which other processes need to know."""
        points += self._resume_points(label, runs)
        return [point is None for point in points]

    def _resume_points(self, label: str, runs: Sequence[Run]) -> list[Saved | None]:
        """Where the runs of a method continue: those a checkpoint interrupted, then those that ended earlier.

        The runs of one entry are in the same round. None: all runs start at round 0.
        """
        if label not in self.logs:
            return [None]
        fields = runs[0].algorithm.traits.state
        ended = self.logs[label].pieces(self.settings.stop, fields)
        if ended is None:
            raise InvalidInput(_cannot_be_extended(label))
        interrupted = self.in_progress.pop(label, None)
        if interrupted is None:
            return [*ended]
        return [interrupted, *ended]

    def _run_in_workers(self, pending: Sequence[str]) -> None:
        """Run the methods that are left, every run in a process of its own."""
        try:
            WorkerPool(self).run(pending)
        except Failed:
            if self.folder:
                with contextlib.suppress(Failed):  # the first failure is reported
                    self.result().write(self.folder.path)
            raise

    def resume_run(self, label: str, number: int) -> RunPoint:
        """What is known of one run, and where it continues; the run has the number 0 there."""
        runs = self.batches[label]
        known = self.single_runs.get((label, number))
        if known is None:
            log = self.logs.get(label, MethodLog(label)).of_run(runs, number)
            interrupted = self.in_progress.get(label)
            known = RunPoint(log, interrupted and interrupted.of_run(runs, number))
        if known.point is not None:
            return known
        ended = known.log.pieces(self.settings.stop, runs[number].algorithm.traits.state)
        if ended is None:
            raise InvalidInput(_cannot_be_extended(label))
        return known._replace(point=ended[0] if ended else None)

    def _start(self, runs: Sequence[Run], point: Saved | None, *, fresh: bool) -> Snapshot:
        """Round 0, or where a point stands."""
        if fresh:
            return begin(self.runtime.world(runs, self.settings.dtype))
        return self.runtime.restore(runs, self.settings.dtype, point)

    def finish(self, log: MethodLog, runs: Sequence[Run], states: dict[int, State]) -> None:
        """Take in what a finished method leaves, and write its models."""
        self.finished.append(log.label)
        self.states |= states
        if self.folder and self.runtime.records:
            self.folder.save(log.checkpoint(self.notes()), self._file(log.label))
            for number, run in enumerate(runs):
                if isinstance(run.problem, HasModel) and not log.ended[number].diverged:
                    end, to = log.ended[number], self.folder.path
                    facts = run.seed, run.problem, not end.averaged
                    write_models(to, log.label, end.models, *facts)
                    if end.means is not None:
                        write_models(to, log.label + RUNNING_MEAN, end.means, *facts)
            self.save(None)

    # --- results ---------------------------------------------------------------------------------
    @property
    def seconds(self) -> float:
        return round(self.before + time.monotonic() - self.began, 3)

    def result(self) -> Result:
        """What there is so far."""
        drawn = ((d.seed, d.network, d.availability) for d in self.draws.values())
        logs = [self.logs[label] for label in self.labels if label in self.logs]
        done = [
            (log.label, self.batches[log.label], log.tally)
            for log in logs
            if log.label in self.finished
        ]
        return Result(
            metrics_table([row for log in logs for row in log.rows.values()], self.labels),
            participation_table((label, runs, tally) for label, runs, tally in done if tally),
            networks_table(drawn),
            self.config,
            versions(),
            [each for log in logs for each in log.diverged],
            complete=len(self.finished) == len(self.batches),
            seconds=self.seconds,
            scores=self.scores,
            clients=clients_table(log.clients.values() for log in logs),
            traits=method_traits(self.batches),
            objective=objective_of(next(iter(self.draws.values())).problem),
            states=self.states,
            draws=self.draws,
            engine=describe_engine(),
            models={
                (log.label, self.batches[log.label][run].seed): end.models
                for log in logs
                for run, end in log.ended.items()
            },
        )

    def _shared(self) -> Result:
        """The recorded result, for all processes."""
        import pandas as pd

        here = self.result()
        if self.runtime.processes == 1:  # nobody to send tables to
            return here
        own: dict[str, Any] = {
            "diverged": [dataclasses.asdict(each) for each in here.diverged],
            "complete": here.complete,
            "seconds": here.seconds,
        }
        facts = self.runtime.first(lambda: own)
        tables = [
            self.runtime.share(lambda table=table: parquet(table))  # type: ignore[misc]
            for table in (here.frame, here.participation, here.clients)
        ]
        if self.runtime.records:
            return here
        here.frame, here.participation, here.clients = (pd.read_parquet(BytesIO(t)) for t in tables)
        here.diverged = [Diverged(**each) for each in facts["diverged"]]
        here.complete, here.seconds = facts["complete"], facts["seconds"]
        return here

    # --- checkpoints -----------------------------------------------------------------------------
    def _file(self, label: str) -> str:
        return f"{FINISHED}/{self.labels.index(label):02d}-{slug(label)}.zip"

    def run_file(self, label: str, number: int) -> str:
        """The checkpoint of one run, which is there until its method has finished."""
        seed = self.batches[label][number].seed
        return f"{SINGLE_RUNS}/{self.labels.index(label):02d}-{slug(label)}-seed-{seed}.zip"

    def notes(self) -> dict[str, Any]:
        schedule = dataclasses.asdict(self.settings.schedule)
        return {"config": self.facts, "schedule": schedule, "seconds": self.seconds}

    def save(self, log: MethodLog | None, where: Saved | None = None) -> None:
        """Write a checkpoint; with a log and `where`, the method that is running."""
        if self.folder:
            found = log.checkpoint(self.notes(), where) if log else Checkpoint(self.notes())
            self.folder.save(found)

    def _restore(self, folder: RunFolder) -> bool:
        """Take up the work that the folder holds, if any; tells whether the run is extended."""
        found = folder.load()
        if found is None:
            return False
        extended = self._extends(found.notes["config"], str(folder.path))
        schedule = EvaluationSchedule(
            **found.notes["schedule"]
        )  # its spacing stays when a run is extended
        self.settings = dataclasses.replace(self.settings, schedule=schedule)
        self.before = float(found.notes["seconds"])
        for label in self.labels:
            part = folder.load(self._file(label))
            if part is not None:
                self.logs[label], _ = MethodLog.read(part)
                if not self.logs[label].waiting(self.settings.stop):
                    self.finished.append(label)
        running = found.notes.get("label")  # the method that was running, if any
        if running is not None and running not in self.finished:
            self.logs[running], interrupted = MethodLog.read(found)
            if interrupted is not None:
                self.in_progress[running] = interrupted
        self._restore_single_runs(folder)
        return extended

    def _restore_single_runs(self, folder: RunFolder) -> None:
        """Read what worker processes had saved of methods that are not finished."""
        for label in self.labels:
            for number in range(len(self.batches[label])):
                part = folder.load(self.run_file(label, number))
                if part is not None and label not in self.finished:
                    self.single_runs[label, number] = RunPoint(*MethodLog.read(part))
        if self.single_runs and self.runtime.processes > 1:
            raise InvalidInput(
                f"{folder.path} holds unfinished runs of worker processes, but several processes were "
                "started; resume it without torchrun."
            )

    def _extends(self, old: dict[str, Any], where: str) -> bool:
        """Whether this is the run in the folder with a later end; raises where it is another run."""
        new = self.facts
        keys = ("rounds", "delay", "seconds")
        ends = [{key: tables["run"].pop(key, None) for key in keys} for tables in (old, new)]
        if old != new:
            raise InvalidInput(difference(old, new, where))
        for key, was in ends[0].items():
            now = ends[1][key]
            if was != now and now is not None and (was is None or now < was):
                raise InvalidInput(
                    f"{where} holds another run: {key} is {was!r} there and {now!r} here; a run can be "
                    "extended but not shortened, so use a later end or another folder."
                )
        return ends[0] != ends[1]


def _cannot_be_extended(label: str) -> str:
    return (
        f"{label} cannot be extended: its states take more than {STATES // 2**20} MiB, so they were "
        "not kept at its end; run it again with the new limits in another folder."
    )

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
from io import BytesIO
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.kernels.steps import State
from spodgt.record.folder import Checkpoint, RunFolder, parquet
from spodgt.record.metrics import declare
from spodgt.record.record import Diverged, networks_table, versions
from spodgt.runtimes.loop import STRIDE, EvaluationSchedule, Stop, begin, run_rounds
from spodgt.runtimes.world import Draw, Run, Runtime, Saved, Snapshot, Tally
from spodgt.training.observer import Observer, Progress
from spodgt.training.result import Result
from spodgt.training.tables import difference, metrics_table, participation_table
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
    checkpoint_every: float = 30.0  # seconds


@dataclass(frozen=True, eq=False)
class Unfinished:
    """The method that was running when a checkpoint was written."""

    label: str
    finite_at: int
    averages: dict[int, Tensor]  # run → its average model, of runs that have ended
    saved: Saved


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
        self.rows: list[dict[str, Any]] = []
        self.participation: list[Any] = []
        self.diverged: list[Diverged] = []
        self.averages: dict[str, Tensor] = {}  # label → (runs, parameters) average models
        self.states: dict[int, State] = {}
        self.finished: list[str] = []
        self.unfinished: Unfinished | None = None
        self.began, self.before = time.monotonic(), 0.0  # seconds of earlier sittings

    @property
    def labels(self) -> list[str]:
        return list(self.batches)

    @property
    def kept(self) -> bool:
        return self.folder is not None

    @property
    def fingerprint(self) -> str:
        text = json.dumps(self.config | self.identity, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def footprint(self) -> int:
        """Bytes that two checkpoints may take: one in place, one beside it."""
        runs = next(iter(self.batches.values()))
        numbers = sum(run.start.numel() for run in runs) * 5 + len(self.batches) * sum(
            run.start.shape[1] for run in runs
        )
        return 2 * numbers * self.settings.dtype.itemsize + 10_000_000

    # --- running ---------------------------------------------------------------------------------
    def execute(self, config_text: Callable[[], str], *, resume: bool) -> Result:
        """Run everything; every process gets the same result, states only where it is recorded.

        Args:
            config_text: gives the text of config.toml.
            resume: go on with what the folder holds.
        """
        self.runtime.check_alike({"settings": self.fingerprint, **versions()})
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.runtime.working())

            def prepare() -> list[str]:
                if self.folder:
                    again = resume or self.runtime.restarted
                    stack.enter_context(self.folder.opened(config_text, self.footprint(), resume=again))
                    self._restore(self.folder)
                return self.finished

            self.finished = self.runtime.first(prepare)
            if not self.folder:  # Ctrl-C is the caller's to catch
                self._methods()
                return self._shared()
            with self.interrupt.heard():
                with contextlib.suppress(KeyboardInterrupt):  # what is saved is on disk by then
                    self._methods()
                if self.runtime.records:
                    self.result().write(self.folder.path)
            return self._shared()

    def _methods(self) -> None:
        stride = 1 if self.settings.keep_states else STRIDE
        for label, runs in self.batches.items():
            if label in self.finished:
                continue
            observer = Observer(self, label, runs)
            limits = self.settings.stop, self.settings.schedule
            end = run_rounds(self._begin(observer), *limits, observer, stride)
            observer.close(end.world)

    def _begin(self, observer: Observer) -> Snapshot:
        """Round 0, or where a restored method stands."""
        runs, dtype, going = observer.runs, self.settings.dtype, self.unfinished
        there = self.runtime.first(lambda: going is not None and going.label == observer.label)
        if not there:
            return begin(self.runtime.world(runs, dtype))
        self.unfinished = None
        if going:
            observer.finite_at, observer.averages = going.finite_at, going.averages
        return self.runtime.restore(runs, dtype, going.saved if going else None)

    def finish(
        self, label: str, runs: Sequence[Run], tally: Tally, averages: list[Tensor], states: dict[int, State]
    ) -> None:
        """Take in what a finished method leaves."""
        self.finished.append(label)
        self.states |= states
        if self.runtime.records:
            self.averages[label] = torch.stack(averages)
            self.participation.append(participation_table(label, runs, tally))
            self.save()

    # --- results ---------------------------------------------------------------------------------
    @property
    def seconds(self) -> float:
        return round(self.before + time.monotonic() - self.began, 3)

    def result(self) -> Result:
        """What there is so far."""
        drawn = ((d.seed, d.network, d.availability) for d in self.draws.values())
        return Result(
            metrics_table(self.rows, self.labels),
            participation_table("", [], Tally.zeros([]), self.participation),
            networks_table(drawn),
            self.config,
            versions(),
            self.diverged,
            complete=len(self.finished) == len(self.batches),
            seconds=self.seconds,
            scores=self.scores,
            states=self.states,
            draws=self.draws,
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
        frame, participation = (
            self.runtime.share(lambda table=table: parquet(table))  # type: ignore[misc]
            for table in (here.frame, here.participation)
        )
        if self.runtime.records:
            return here
        here.frame, here.participation = (pd.read_parquet(BytesIO(t)) for t in (frame, participation))
        here.diverged = [Diverged(**each) for each in facts["diverged"]]
        here.complete, here.seconds = facts["complete"], facts["seconds"]
        return here

    # --- checkpoints -----------------------------------------------------------------------------
    def save(self, observer: Observer | None = None, where: Saved | None = None) -> None:
        """Write a checkpoint: what is finished and, with `where`, the method that is running."""
        if not self.folder:
            return
        import pandas as pd

        notes: dict[str, Any] = {
            "fingerprint": self.fingerprint,
            "config": json.loads(json.dumps(self.config | self.identity, default=str)),
            "finished": self.finished,
            "diverged": [dataclasses.asdict(each) for each in self.diverged],
            "seconds": self.seconds,
        }
        tensors = {f"final/{label}": models for label, models in self.averages.items()}
        tables = {"metrics": pd.DataFrame(self.rows)} if self.rows else {}
        if self.participation:
            tables["participation"] = pd.concat(self.participation, ignore_index=True)
        if observer and where:
            notes |= {"going": observer.label, "k": where.k, "finite_at": observer.finite_at}
            tensors |= {f"state/{name}": value for name, value in where.state.items()}
            tensors |= {f"average/{run}": value for run, value in observer.averages.items()}
            tensors |= {f"tally/{name}": torch.from_numpy(v) for name, v in where.tally._asdict().items()}
            tensors["delay"], tensors["runs"] = torch.from_numpy(where.delay), torch.from_numpy(where.runs)
            tensors["statistics"] = where.statistics
        self.folder.save(Checkpoint(notes, tensors, tables))

    def _restore(self, folder: RunFolder) -> None:
        """Take up the work that the folder holds, if any."""
        found = folder.load()
        if found is None:
            return
        notes, tensors = found.notes, found.tensors
        if notes["fingerprint"] != self.fingerprint:
            raise InvalidInput(difference(notes["config"], self.config | self.identity, str(folder.path)))
        self.finished, self.before = list(notes["finished"]), float(notes["seconds"])
        self.diverged = [Diverged(**each) for each in notes["diverged"]]
        self.averages = _named(tensors, "final/")
        if "metrics" in found.tables:
            rows = found.tables["metrics"].to_dict("records")
            self.rows = [{str(name): value for name, value in row.items()} for row in rows]
        if "participation" in found.tables:
            self.participation = [found.tables["participation"]]
        if "going" in notes:
            tally = Tally(*(tensors[f"tally/{name}"].numpy().copy() for name in Tally._fields))
            delay, runs = tensors["delay"].numpy(), tensors["runs"].numpy()
            saved = Saved(notes["k"], delay, runs, _named(tensors, "state/"), tensors["statistics"], tally)
            averages = {int(run): model for run, model in _named(tensors, "average/").items()}
            self.unfinished = Unfinished(notes["going"], notes["finite_at"], averages, saved)


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

"""Runs one cell of a sweep, in this process or in a worker process.

A worker, `python -m spodgt.sweeps.cell THREADS`, reads one job per line as JSON and ends with its
input. It writes events as JSON lines to the original stdout; output of libraries is redirected to
stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from spodgt import training
from spodgt.errors import SpodgtError, no_divergence_warnings
from spodgt.experiment import Experiment
from spodgt.experiment.toml import Table

ERROR = "error.txt"


@dataclass(frozen=True)
class Job:
    """An experiment, as the tables of a config, to be run in its own folder `out`."""

    name: str
    tables: dict[str, Table]
    out: str
    save_every: float = 60.0  # seconds between checkpoints
    workers: int | None = None  # processes of this job, as for `compare`


@dataclass(frozen=True)
class CellProgress:
    """Progress of a job: a fraction from 0 to 1, and a short note."""

    name: str
    fraction: float
    note: str


@dataclass(frozen=True)
class Outcome:
    """The end of a job: complete, failed (`error`), or else interrupted."""

    name: str
    complete: bool
    error: str = ""


Event = CellProgress | Outcome
OnEvent = Callable[[Event], None]
_EVENTS: dict[str, Callable[..., Event]] = {"CellProgress": CellProgress, "Outcome": Outcome}


def run_job(job: Job, on_event: OnEvent, experiment: Experiment | None = None) -> Outcome:
    """Run a job to its end; errors are returned in the outcome, not raised.

    Args:
        job: The job.
        on_event: Called with its progress.
        experiment: Its experiment, if it holds objects that the tables do not.
    """

    def show(progress: training.Progress) -> None:
        fraction = (progress.number - 1 + progress.fraction) / progress.total
        note = f"{progress.method}, delay {progress.delay:,.0f}"
        on_event(CellProgress(job.name, fraction, note))

    folder = Path(job.out)
    try:
        if experiment is None:
            experiment = Experiment.parse(job.tables)
        if job.workers is not None:
            experiment = experiment.override({"run.workers": job.workers})
        with no_divergence_warnings():  # divergence is in the record
            result = training.run(
                experiment, out=folder, resume=True, checkpoint_every=job.save_every, progress=show
            )
    except SpodgtError as error:
        return Outcome(job.name, False, str(error))
    except BrokenPipeError:  # the parent process, which reads the events, has ended
        raise
    except Exception as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        return Outcome(job.name, False, f"{type(error).__name__}: {error} (see {folder / ERROR})")
    return Outcome(job.name, result.complete)


def to_line(event: Event) -> str:
    """An event as one line of JSON."""
    return json.dumps({"kind": type(event).__name__, **asdict(event)}) + "\n"


def from_line(line: str) -> Event:
    """The event that `to_line` wrote."""
    fields = json.loads(line)
    return _EVENTS[fields.pop("kind")](**fields)


def main() -> None:
    """Run the jobs of stdin."""
    torch.set_num_threads(max(1, int(sys.argv[1])))
    # Ctrl-C is handled by the parent process, which ends this one with SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)

        def send(event: Event) -> None:
            channel.write(to_line(event))
            channel.flush()

        for line in sys.stdin:
            send(run_job(Job(**json.loads(line)), send))


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the parent has ended; the last checkpoint is continued later
        os._exit(1)

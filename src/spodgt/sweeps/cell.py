"""Runs one cell of a sweep, in this process or in a worker that reads jobs and writes events as JSON lines.

A worker is started with `python -m spodgt.sweeps.cell THREADS`, reads one job per line and ends when its
input does. Events go to the original stdout; whatever a library prints goes to stderr.
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
    workers: int | None = None  # processes of this job, see `compare`


@dataclass(frozen=True)
class CellProgress:
    """How far a job is: a fraction from 0 to 1, and a few words."""

    name: str
    fraction: float
    note: str


@dataclass(frozen=True)
class Outcome:
    """How a job ended: complete, interrupted (neither complete nor an error), or with an error."""

    name: str
    complete: bool
    error: str = ""


Event = CellProgress | Outcome
Tell = Callable[[Event], None]
_EVENTS: dict[str, Callable[..., Event]] = {kind.__name__: kind for kind in (CellProgress, Outcome)}


def perform(job: Job, tell: Tell, known: Experiment | None = None) -> Outcome:
    """Run a job to its end; what goes wrong is its outcome and never an exception.

    `known` is its experiment, where the tables alone do not hold it.
    """

    def show(now: training.Progress) -> None:
        fraction = (now.number - 1 + now.fraction) / now.total
        tell(CellProgress(job.name, fraction, f"{now.algorithm}, delay {now.delay:,.0f}"))

    folder = Path(job.out)
    try:
        experiment = known or Experiment.parse(job.tables)
        if job.workers is not None:
            experiment = experiment.override({"run.workers": job.workers})
        with no_divergence_warnings():  # the record has them
            result = training.run(
                experiment, out=folder, resume=True, checkpoint_every=job.save_every, progress=show
            )
    except SpodgtError as error:
        return Outcome(job.name, False, str(error))
    except BrokenPipeError:  # the parent that reads our events is gone
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
    """Take jobs until the input ends."""
    torch.set_num_threads(max(1, int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends us with SIGTERM
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)

        def tell(event: Event) -> None:
            channel.write(to_line(event))
            channel.flush()

        for line in sys.stdin:
            tell(perform(Job(**json.loads(line)), tell))


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the parent is gone; the last checkpoint is where the next one goes on
        os._exit(1)

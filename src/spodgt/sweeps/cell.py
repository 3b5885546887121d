"""One cell of a sweep, done: in this process, or in a worker that takes jobs and tells events as JSON lines.

A worker is started with `python -m spodgt.sweeps.cell THREADS`, reads one job per line and ends when its
input does. What its parent is told goes to the original stdout; whatever a library prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spodgt.errors import SpodgtError

TIMING = "timing.json"
ERROR = "error.txt"


@dataclass(frozen=True)
class Job:
    """A config to be run in its own folder, from wherever that folder stands."""

    name: str
    config: dict[str, Any]
    out: str
    save_every: float = 60.0  # seconds


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    name: str
    fraction: float
    note: str


@dataclass(frozen=True)
class Outcome:
    """How a job ended: complete, interrupted (neither complete nor an error), or with an error."""

    name: str
    complete: bool
    error: str = ""


Event = Progress | Outcome
Tell = Callable[[Event], None]


def perform(job: Job, tell: Tell) -> Outcome:
    """Run a job to its end; what goes wrong is its outcome and never an exception."""
    from spodgt.experiment import Experiment
    from spodgt.training import Progress as Now
    from spodgt.training import run

    def show(now: Now) -> None:
        fraction = (now.number - 1 + now.fraction) / now.total
        tell(Progress(job.name, fraction, f"{now.algorithm}, delay {now.delay:,.0f}"))

    began, folder = time.monotonic(), Path(job.out)
    try:
        result = run(
            Experiment.parse(job.config),
            out=folder,
            resume=True,
            checkpoint_every=job.save_every,
            progress=show,
        )
    except SpodgtError as error:
        return Outcome(job.name, False, str(error))
    except BrokenPipeError:  # whom we told is gone
        raise
    except Exception as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        return Outcome(job.name, False, f"{type(error).__name__}: {error} (see {folder / ERROR})")
    _add_time(folder, time.monotonic() - began)
    return Outcome(job.name, result.complete)


def _add_time(folder: Path, seconds: float) -> None:
    """Note the time this sitting took, on top of earlier ones."""
    import torch

    from spodgt.record.folder import write

    before = seconds_of(folder) or 0.0
    note = {"seconds": round(before + seconds, 3), "threads": torch.get_num_threads()}
    write(folder / TIMING, json.dumps(note).encode())


def seconds_of(folder: Path) -> float | None:
    """How long the run in a folder took, None where nobody noted it."""
    try:
        return float(json.loads((folder / TIMING).read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def to_line(event: Event) -> str:
    return json.dumps({"kind": type(event).__name__, **asdict(event)}) + "\n"


def from_line(line: str) -> Event:
    fields = json.loads(line)
    return Progress(**fields) if fields.pop("kind") == "Progress" else Outcome(**fields)


def main() -> None:
    """Take jobs until the input ends."""
    import torch

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

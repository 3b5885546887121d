"""Where the cells of a sweep are run: in this process, in worker processes, or on a registered backend.

To add a backend, such as a cluster, put a function that makes an `Executor` into `BACKENDS`; sweeps and
the command line then know it. Jobs and outcomes are plain values, and all results are files in the
job's folder, so a backend needs no more than that folder and a way to call `spodgt.sweeps.cell.perform`.
"""

from __future__ import annotations

from collections.abc import Callable

from spodgt.errors import InvalidInput
from spodgt.sweeps.executors.base import Executor, cores
from spodgt.sweeps.executors.inline import Inline
from spodgt.sweeps.executors.processes import Processes
from spodgt.sweeps.executors.ray import RayTasks

__all__ = ["BACKENDS", "Executor", "check_backend", "cores", "executor"]


def _local(workers: int) -> Executor:
    if workers == 1:
        return Inline()
    return Processes(workers, max(1, cores() // workers))


BACKENDS: dict[str, Callable[[int], Executor]] = {"local": _local, "ray": RayTasks}


def executor(backend: str, workers: int) -> Executor:
    """Make an executor."""
    check_backend(backend)
    return BACKENDS[backend](workers)


def check_backend(backend: str) -> None:
    """Refuse a backend that is not known."""
    if backend not in BACKENDS:
        raise InvalidInput(
            f"--backend={backend!r} is not known; choose from {', '.join(BACKENDS)}."
        )

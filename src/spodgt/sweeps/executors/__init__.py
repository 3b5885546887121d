"""Executors: cells run in this process, in worker processes, or on a registered backend.

To add a backend, such as a cluster, add a function that creates a `JobExecutor` to `BACKENDS`; it
can then be named by sweeps and on the command line. Jobs and outcomes are plain values, and results
are files in the job's folder: a backend only needs this folder and a way to call
`spodgt.sweeps.cell.run_job`.
"""

from __future__ import annotations

from collections.abc import Callable

from spodgt.errors import InvalidInput
from spodgt.sweeps.executors.base import JobExecutor, cores
from spodgt.sweeps.executors.inline import Inline
from spodgt.sweeps.executors.processes import Processes
from spodgt.sweeps.executors.ray import RayTasks

__all__ = ["BACKENDS", "JobExecutor", "check_backend", "cores", "executor"]


def _local(workers: int) -> JobExecutor:
    if workers == 1:
        return Inline()
    return Processes(workers, max(1, cores() // workers))


BACKENDS: dict[str, Callable[[int], JobExecutor]] = {"local": _local, "ray": RayTasks}


def executor(backend: str, workers: int) -> JobExecutor:
    """Create an executor."""
    check_backend(backend)
    return BACKENDS[backend](workers)


def check_backend(backend: str) -> None:
    """Raise InvalidInput for an unknown backend."""
    if backend not in BACKENDS:
        raise InvalidInput(
            f"--backend={backend!r} is not known; choose from {', '.join(BACKENDS)}."
        )

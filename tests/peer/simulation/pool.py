"""Many seeds in one or several processes."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import NamedTuple

from tests.peer.simulation.simulator import Outcome, plan_of, simulate


class Measured(NamedTuple):
    """One seed of many."""

    outcome: Outcome
    cpu_seconds: float


def measure(seed: int) -> Measured:
    begun = time.process_time()
    outcome = simulate(plan_of(seed))
    outcome.log = []
    return Measured(outcome, time.process_time() - begun)


def measure_all(seeds: Iterator[int], workers: int) -> Iterator[Measured]:
    """Outcomes in the order of the seeds; seeds are drawn when a worker is free."""
    if workers == 1:
        yield from map(measure, seeds)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        pending: deque[Future[Measured]] = deque()
        for seed in seeds:
            pending.append(pool.submit(measure, seed))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

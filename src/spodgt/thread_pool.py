"""Threads for independent tasks: one task is one run, so no thread waits inside a round."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

import torch

_SERIAL = 200_000  # numbers below which a thread costs more than it saves


def run_tasks(task: Callable[[int], None], numbers: Iterable[int], work: int) -> None:
    """Call task(n) for every n of `numbers`, on as many threads as torch may use.

    Args:
        task: releases the interpreter lock, as compiled loops do.
        numbers: of the tasks.
        work: numbers that all tasks together process; small amounts stay on the calling thread.
    """
    tasks = list(numbers)
    threads = min(thread_count(), len(tasks))
    if threads <= 1 or work < _SERIAL:
        for n in tasks:
            task(n)
        return
    futures = [_pool(threads).submit(task, n) for n in tasks]
    try:
        for future in futures:
            future.result()
    finally:  # after an error or Ctrl-C, no thread writes to memory that the caller uses again
        for future in futures:
            future.cancel()
        wait(futures)


def thread_count() -> int:
    """Threads that torch may use, at most one for each core."""
    return max(1, min(torch.get_num_threads(), os.cpu_count() or 1))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="spodgt")

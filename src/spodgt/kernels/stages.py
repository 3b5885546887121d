"""Work in stages on several threads, which begin together once for all of them.

A thread takes a task of the stage, then another; where none is left it goes on to the next stage, and waits
there until all tasks before are done. It waits in compiled code and without the interpreter lock. Threads
that are woken for every part of a round cost a small network a tenth of its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from spodgt.compiled import jit, together
from spodgt.compiled.instructions import look

Work = Callable[[int], object]
_SPIN = 20_000  # looks, some tens of microseconds, before a thread lets others have its core
_APART = 16  # numbers between those of two threads: no line of the cache belongs to both


class _Stage(NamedTuple):
    before: int  # tasks of all stages before
    tasks: Iterator[int]
    work: Work


@jit
def _reached(done, wanted):  # type: ignore[no-untyped-def]
    """Whether the threads have done so many tasks, or will have in a moment."""
    for _ in range(_SPIN):
        total = 0
        for n in range(len(done)):
            total += look(done[n], 0)
        if total >= wanted:
            return True
    return False


def in_stages(team: int, stages: Iterator[tuple[int, Work]]) -> None:
    """Call work(0) to work(tasks - 1) for each of the stages (tasks, work), on `team` threads.

    The next stage is asked for by the first thread that needs it, while others may still work on those
    before. Operators of torch stay on the thread that calls them.
    """
    known: list[_Stage | None] = []  # None behind the last
    at, done = [0] * team, np.zeros((team, _APART), np.int64)
    lock, failed, total = threading.Lock(), list[BaseException](), 0

    def stage_of(number: int) -> _Stage | None:
        nonlocal total
        with lock:
            while len(known) <= number:
                tasks, work = next(stages, (0, None))
                known.append(work and _Stage(total, iter(range(tasks)), work))
                total += tasks
        return known[number]

    def go(me: int) -> bool:
        torch.set_num_threads(1)  # of this thread
        try:
            while not failed and (stage := stage_of(at[me])) is not None:
                if not _reached(done, stage.before):
                    return False
                for task in stage.tasks:
                    if failed:
                        break
                    stage.work(task)
                    done[me, 0] += 1
                at[me] += 1
        except BaseException as error:
            failed.append(error)
        return bool(failed) or bool(_reached(done, total))

    threads = torch.get_num_threads()
    try:
        together(team, go)
    except BaseException as error:  # Ctrl-C while this thread waits: the others end, too
        failed.append(error)
        raise
    finally:
        torch.set_num_threads(threads)
    if failed:
        raise failed[0]

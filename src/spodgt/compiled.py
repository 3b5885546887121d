"""How inner loops are compiled and shared among threads; each has a plain counterpart that tests hold it to.

Kernels work on a range of tasks and release the interpreter lock, so `share` can hand the ranges to
threads. Each output number is computed by one task in a fixed order: results do not depend on the
number of threads or on what else is in the batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from numba.core import event
from torch import Tensor

_FUSE = {"contract", "nsz"}  # not nnan or ninf: divergence must stay visible
_options: dict[str, Any] = {"nogil": True, "cache": True, "boundscheck": False}
jit = numba.njit(fastmath=_FUSE, **_options)
# Only sums along a row may change their order: they are not vectorised otherwise. Elsewhere this freedom
# would let two loops that are the same on paper differ in the last bit, by what they were inlined into.
jit_sum = numba.njit(fastmath=_FUSE | {"reassoc"}, **_options)

_SERIAL = 200_000  # numbers below which waking a thread costs more than it saves


@contextmanager
def announced(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` if something must be compiled in here, which takes seconds; a later run finds it on disk."""

    class First(event.Listener):
        said = False

        def on_start(self, _: Any) -> None:
            if not self.said:
                self.said = True
                say()

        def on_end(self, _: Any) -> None:
            pass

    with event.install_listener("numba:compile", First()):
        yield


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="spodgt")


def share(tasks: int, numbers: int, work: Callable[[int, int], None]) -> None:
    """Call `work(first, last)` on parts of `tasks`, on as many threads as torch may use."""
    threads = min(torch.get_num_threads(), os.cpu_count() or 1, tasks)
    if threads <= 1 or numbers < _SERIAL:
        work(0, tasks)
        return
    cuts = np.linspace(0, tasks, threads + 1).astype(int).tolist()
    others = [_pool(threads).submit(work, a, b) for a, b in pairwise(cuts[1:])]
    work(cuts[0], cuts[1])
    for other in others:
        other.result()


def usable(*tensors: Tensor) -> bool:
    """Kernels take contiguous CPU floats."""
    return all(
        t.device.type == "cpu" and t.is_contiguous() and t.dtype in (torch.float32, torch.float64)
        for t in tensors
    )


def finite(x: Tensor) -> bool:
    """No number of `x` is infinite or NaN."""
    return bool(_finite(x.reshape(-1).numpy()) if usable(x) else torch.isfinite(x).all())


@jit
def _finite(numbers):  # type: ignore[no-untyped-def]
    first = 0
    while first < len(numbers):  # in pieces, so that the loop within is vectorised and the end comes early
        last, odd = min(first + 4096, len(numbers)), 0
        for n in range(first, last):
            odd += numbers[n] - numbers[n] != 0  # so it is for NaN and infinity alone
        if odd:
            return False
        first = last
    return True

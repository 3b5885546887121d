"""How inner loops are compiled and shared among threads; each has a plain counterpart that tests hold it to.

Kernels work on a range of tasks and release the interpreter lock, so `share` can hand the ranges to
threads. Each output number is computed by one task in a fixed order: results do not depend on the
number of threads or on what else is in the batch.

Numba is loaded by the first call of a loop: it takes 120 MB, which a process that calls none does not pay.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FUSE = frozenset({"contract", "nsz"})  # not nnan or ninf: divergence must stay visible
_SERIAL = 200_000  # numbers below which waking a thread costs more than it saves
_building = threading.RLock()
_allowed = threading.Event()  # whether loops may be used in this process
_allowed.set()


class Loop:
    """A function that numba compiles when it is first called."""

    def __init__(self, function: Callable[..., Any], fastmath: frozenset[str]) -> None:
        self.function, self.fastmath = function, set(fastmath)
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: object) -> Any:
        return (self._compiled or self.compiled())(*arguments)

    def compiled(self) -> Callable[..., Any]:
        """Numba's own function; the loops that it calls become numba's, too."""
        import numba

        with _building:
            if self._compiled is None:
                known = self.function.__globals__
                for name in self.function.__code__.co_names:
                    if isinstance(inner := known.get(name), Loop):
                        known[name] = inner.compiled()
                build = partial(numba.njit, fastmath=self.fastmath, nogil=True, boundscheck=False)
                try:
                    self._compiled = build(cache=True)(self.function)
                except RuntimeError:  # nowhere to keep machine code: no folder here can be written
                    self._compiled = build()(self.function)
            return self._compiled


def jit(function: Callable[..., Any]) -> Loop:
    """Compile a loop; its numbers do not depend on what it is inlined into."""
    return Loop(function, _FUSE)


def jit_sum(function: Callable[..., Any]) -> Loop:
    """Compile a sum along a row, the only loop that may change its order: it is not vectorised otherwise.

    Elsewhere this freedom would let two loops that are the same on paper differ in the last bit, by what
    they were inlined into.
    """
    return Loop(function, _FUSE | {"reassoc"})


def without_loops() -> None:
    """Let this process use torch alone from now on: for one small model, loops save less than numba takes."""
    _allowed.clear()


@contextmanager
def announced(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` if something must be compiled in here, which takes seconds; a later run finds it on disk."""
    from numba.core import event

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
    if numbers < _SERIAL:
        work(0, tasks)
        return
    threads = min(torch.get_num_threads(), os.cpu_count() or 1, tasks)
    if threads <= 1:
        work(0, tasks)
        return
    cuts = np.linspace(0, tasks, threads + 1).astype(int).tolist()
    others = [_pool(threads).submit(work, a, b) for a, b in pairwise(cuts[1:])]
    work(cuts[0], cuts[1])
    for other in others:
        other.result()


def usable(*tensors: Tensor) -> bool:
    """Kernels take contiguous CPU floats, where they are allowed."""
    return _allowed.is_set() and all(
        t.device.type == "cpu" and t.is_contiguous() and t.dtype in (torch.float32, torch.float64)
        for t in tensors
    )


def widened(x: Tensor) -> Tensor:
    """In double precision, where the device has it: mps does not."""
    return x.float() if x.device.type == "mps" else x.double()


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

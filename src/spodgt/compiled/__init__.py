"""How inner loops are compiled and shared among threads; each has a plain counterpart that tests hold it to.

Kernels work on a range of tasks and release the interpreter lock, so `share` can hand the ranges to
threads. Each output number is computed by one task in a fixed order: results do not depend on the
number of threads or on what else is in the batch.

Loops of linear models come as machine code with the package (`compiled.shipped`). Numba is loaded by the
first call of another one: it takes 120 MB and seconds, which a process that calls none does not pay.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import inspect
import linecache
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from spodgt.compiled import shipped
from spodgt.compiled.shipped import Function
from spodgt.types import Array

_FUSE = frozenset({"contract", "nsz"})  # not nnan or ninf: divergence must stay visible
_SERIAL = 200_000  # numbers below which waking a thread costs more than it saves
_LINE = 64  # bytes of a line of the cache
_NAP = 5e-5  # seconds that a thread sleeps where it has to wait
# Python's exceptions for a division by zero and the like would be a branch in every loop.
_HOW = {"nogil": True, "boundscheck": False, "error_model": "numpy", "no_cfunc_wrapper": True}
_building = threading.RLock()
_taken: dict[int, Loop] = {}  # by the id of what numba made of it
_waiting: list[Callable[[], None]] = []  # who wants to know when something is compiled
_allowed = threading.Event()  # whether loops may be used in this process
_allowed.set()


@cache
def text_of(what: Function | type) -> str:
    """The source of a function or class that stands in no other; `inspect` reads all of a file each time."""
    lines = linecache.getlines(inspect.getfile(what))
    if isinstance(what, type):
        first = next((n for n, line in enumerate(lines) if line.startswith(f"class {what.__name__}")), None)
    else:
        first = what.__code__.co_firstlineno - 1
    if first is None or first >= len(lines):
        raise OSError(f"no source of {what}")
    head = next((n for n in range(first, len(lines)) if lines[n].startswith(("def ", "class "))), first)
    outside = (n for n in range(head + 1, len(lines)) if lines[n][0] not in " \t\r\n)")
    return "".join(lines[first : next(outside, len(lines))]).rstrip()


class Loop:
    """A function that comes as machine code, or that numba compiles when it is first called."""

    def __init__(self, function: Function, fastmath: frozenset[str], inline: str = "never") -> None:
        self.function, self.fastmath, self.inline = function, set(fastmath), inline
        self._compiled: Function | None = None
        self._shipped: dict[str, shipped.Entry] | None = None

    def __call__(self, *arguments: object) -> Any:
        return self.bound(*arguments)()

    def bound(self, *arguments: object) -> Callable[[], Any]:
        """A call with these arguments, to be made once or often: finding out what to call takes its time."""
        if self._shipped is None:
            self._shipped = shipped.entries(self.function, self.source)
        if self._shipped:
            kinds, form, numbers = shipped.laid_out(arguments)
            if (entry := self._shipped.get(kinds)) is not None:
                return partial(entry, shipped.packed(form, numbers), arguments)
        return partial(self._compiled or self.compiled(), *arguments)

    def source(self) -> str:
        """A stamp of all that this is compiled from, in whatever files, and of how."""
        digest = hashlib.sha256(f"{sorted(_FUSE)} {_HOW}".encode())
        found, waiting = {self}, [self]
        while waiting:
            loop = waiting.pop()
            digest.update(loop.text().encode())
            for name in sorted(loop.function.__code__.co_names):
                value = loop.function.__globals__.get(name)
                if isinstance(value, bool | int | float | np.number):
                    digest.update(f"{name} = {value}\n".encode())
                other = value if isinstance(value, Loop) else _taken.get(id(value))
                if other is not None and other not in found:
                    found.add(other)
                    waiting.append(other)
        return digest.hexdigest()

    def text(self) -> str:
        """What this is compiled from, without what it calls."""
        return text_of(self.function)

    def compiled(self) -> Function:
        """What numba makes of it."""
        with _building:
            if self._compiled is None:
                self._compiled = self.build()
                _taken[id(self._compiled)] = self
            return self._compiled

    def build(self) -> Function:
        """Numba's own function; the loops that it calls become numba's, too."""
        import numba

        _listen()
        known = self.function.__globals__
        for name in self.function.__code__.co_names:
            if isinstance(inner := known.get(name), Loop):
                known[name] = inner.compiled()
        # Who makes no array need not count who holds one: counting costs more than a short row.
        # Arrays are made by these two alone, and not returned to other loops.
        makes = not {"empty", "zeros"}.isdisjoint(self.function.__code__.co_names)
        how = {"fastmath": self.fastmath, "inline": self.inline, "_nrt": makes}
        build = partial(numba.njit, **_HOW, **how)
        try:
            built: Function = build(cache=True)(self.function)
            # Numba would look at the function's own file alone.
            with contextlib.suppress(AttributeError, KeyError):
                vars(vars(built)["_cache"]._cache_file)["_source_stamp"] = self.source()
        except RuntimeError:  # nowhere to keep machine code: no folder here can be written
            built = build()(self.function)
        return built


def jit(function: Function) -> Loop:
    """Compile a loop; its numbers do not depend on what it is inlined into."""
    return Loop(function, _FUSE)


def jit_sum(function: Function) -> Loop:
    """Compile a sum along a row, the only loop that may change its order: it is not vectorised otherwise.

    Elsewhere this freedom would let two loops that are the same on paper differ in the last bit, by what
    they were inlined into.
    """
    return Loop(function, _FUSE | {"reassoc"})


def jit_part(function: Function) -> Loop:
    """A piece of a loop with a name of its own: it becomes part of every loop that calls it.

    What two loops call is otherwise compiled for itself and once more in each of them.
    """
    return Loop(function, _FUSE, "always")


def without_loops() -> None:
    """Let this process use torch alone from now on: for one small model, loops save less than numba takes."""
    _allowed.clear()


@contextmanager
def announced(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` if something must be compiled in here, which takes seconds; a later run finds it on disk."""
    if "numba" in sys.modules:
        _listen()
    _waiting.append(say)
    try:
        yield
    finally:
        if say in _waiting:
            _waiting.remove(say)


@cache
def _listen() -> None:
    """Have numba say when it compiles."""
    from numba.core import event

    class Compiles(event.Listener):
        def on_start(self, _: Any) -> None:
            while _waiting:
                _waiting.pop()()

        def on_end(self, _: Any) -> None:
            pass

    event.register("numba:compile", Compiles())  # type: ignore[no-untyped-call]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="spodgt")


def share(tasks: int, numbers: int, work: Callable[[int, int], None]) -> None:
    """Call `work(first, last)` on parts of `tasks`, on as many threads as torch may use."""
    threads = min(team_for(numbers), tasks)
    if threads <= 1:
        work(0, tasks)
        return
    cuts = [tasks * n // threads for n in range(threads + 1)]
    others = [_pool(threads).submit(work, a, b) for a, b in pairwise(cuts[1:])]
    work(cuts[0], cuts[1])
    for other in others:
        other.result()


def team_for(numbers: int) -> int:
    """How many threads are worth waking for so many numbers."""
    return max(1, min(torch.get_num_threads(), _cores())) if numbers >= _SERIAL else 1


@cache
def _cores() -> int:
    """Of this machine; the system is asked once, as its answer takes longer than a small task."""
    return os.cpu_count() or 1


@cache
def _asked() -> Callable[[], int]:
    """How the system is asked for the core of a thread."""
    try:
        return cast(Callable[[], int], ctypes.CDLL(None).sched_getcpu)
    except (AttributeError, OSError, TypeError):  # not on Linux
        return lambda: -1


def core() -> int:
    """The core that this thread runs on; -1 where the system does not say."""
    return _asked()()


def leave(one: int) -> None:
    """Have this thread go on on another core than this one; it may return.

    A thread that is woken while all cores are busy begins on that of the thread that woke it. The two would
    share it for long, as the system has no reason to move either, and other work would have a core alone.
    """
    if one >= 0 and len(allowed := os.sched_getaffinity(0)) > 1:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed - {one})
            os.sched_setaffinity(0, allowed)


def together(team: int, work: Callable[[int], bool]) -> None:
    """Call `work(me)` on `team` threads until it says that all is done.

    The threads take what there is to do from each other; `work` returns False where it waits for another
    one, who may need this core. Nobody waits for a thread that has not begun.
    """

    here = core()

    def join(me: int) -> None:
        if me and core() == here:
            leave(here)
        while not work(me):
            time.sleep(_NAP)

    others = [_pool(team).submit(join, me) for me in range(1, team)]
    join(0)
    for other in others:
        other.cancel()


def aligned(shape: tuple[int, ...], kind: np.dtype[np.generic]) -> Array:
    """Memory that begins with a line of the cache: loops read short rows in it twice as fast."""
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    return memory[first : first + size].view(kind).reshape(shape)


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

"""How inner loops are compiled and shared among threads; each has a plain counterpart that tests hold it to.

Kernels work on a range of tasks and release the interpreter lock, so `share` can hand the ranges to
threads. Each output number is computed by one task in a fixed order: results do not depend on the
number of threads or on what else is in the batch.

Numba is loaded by the first call of a loop: it takes 120 MB, which a process that calls none does not pay.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Function = Callable[..., Any]
_FUSE = frozenset({"contract", "nsz"})  # not nnan or ninf: divergence must stay visible
_SERIAL = 200_000  # numbers below which waking a thread costs more than it saves
_NAP = 5e-5  # seconds that a thread sleeps where it has to wait
_HERE = Path(__file__).parent
_IR = Any  # types and values of llvmlite, which has no types itself
_building = threading.RLock()
_allowed = threading.Event()  # whether loops may be used in this process
_allowed.set()


@cache
def stamp(folder: Path) -> str:
    """Of all files with loops under `folder`: machine code on disk holds as long as none of them changes."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if b"@jit" in (text := path.read_bytes()):
            digest.update(hashlib.sha256(text).digest())
    return digest.hexdigest()


class Loop:
    """A function that numba compiles when it is first called."""

    def __init__(self, function: Function, fastmath: frozenset[str], inline: str = "never") -> None:
        self.function, self.fastmath, self.inline = function, set(fastmath), inline
        self._compiled: Function | None = None

    def __call__(self, *arguments: object) -> Any:
        return (self._compiled or self.compiled())(*arguments)

    def compiled(self) -> Function:
        """Numba's own function; the loops that it calls become numba's, too."""
        import numba

        with _building:
            if self._compiled is None:
                known = self.function.__globals__
                for name in self.function.__code__.co_names:
                    if isinstance(inner := known.get(name), Loop):
                        known[name] = inner.compiled()
                # Who makes no array need not count who holds one: counting costs more than a short row.
                # Arrays are made by these two alone, and not returned to other loops.
                makes = not {"empty", "zeros"}.isdisjoint(self.function.__code__.co_names)
                how = {"fastmath": self.fastmath, "nogil": True, "boundscheck": False, "_nrt": makes}
                how |= {"error_model": "numpy", "no_cfunc_wrapper": True, "inline": self.inline}
                build = partial(numba.njit, **how)
                try:
                    self._compiled = built = build(cache=True)(self.function)
                    with contextlib.suppress(
                        AttributeError, KeyError
                    ):  # numba looks at the function's own file alone
                        vars(vars(built)["_cache"]._cache_file)["_source_stamp"] = stamp(_HERE)
                except RuntimeError:  # nowhere to keep machine code: no folder here can be written
                    self._compiled = build()(self.function)
            return self._compiled


def jit(function: Function) -> Loop:
    """Compile a loop; its numbers do not depend on what it is inlined into."""
    return Loop(function, _FUSE)


def jit_sum(function: Function) -> Loop:
    """Compile a sum along a row, the only loop that may change its order: it is not vectorised otherwise.

    Elsewhere this freedom would let two loops that are the same on paper differ in the last bit, by what
    they were inlined into.
    """
    return Loop(function, _FUSE | {"reassoc"})


class _Instruction(Loop):
    """An instruction on one number of an array (…,), for use in loops: array, index and two whole numbers."""

    def compiled(self) -> Function:
        from numba.core import cgutils, types
        from numba.extending import intrinsic

        def instruction(context, array, index, one, two):  # type: ignore[no-untyped-def]
            def lowered(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
                kind = signature.args[0]
                view = context.make_array(kind)(context, builder, arguments[0])
                at = cgutils.get_item_pointer
                pointer = at(context, builder, kind, view, [arguments[1]])  # type: ignore[no-untyped-call]
                return self.function(builder, pointer, *arguments[2:])

            return types.int64(array, types.intp, types.int64, types.int64), lowered

        with _building:
            self._compiled = self._compiled or intrinsic(instruction)
            return self._compiled


def _swap(builder, pointer, old, new):  # type: ignore[no-untyped-def]
    return builder.extract_value(builder.cmpxchg(pointer, old, new, "seq_cst"), 0)


def _fetch(builder, pointer, _, same):  # type: ignore[no-untyped-def]
    from llvmlite import ir  # type: ignore[import-untyped]

    address, number = ir.PointerType(ir.IntType(8)), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", (address,), kind)
    how = [number(0), number(2), number(1)]  # to be read, into the second-level cache, data
    builder.call(function, [builder.bitcast(pointer, address), *how])
    return same


# swap(array, index, old, new): array[index] ← new if it is `old`; returns what it was. Atomic, and an order
# for all that threads wrote before: what one sees after another is whole.
swap = _Instruction(_swap, frozenset())
fetch = _Instruction(_fetch, frozenset())  # fetch(array, index, 0, 0): bring it near, it will be read soon


class _Room(Loop):
    """`room(like)`: an array (ROOM,) of the numbers of `like`, on the stack of the loop that asks for it."""

    def compiled(self) -> Function:
        from numba.core import cgutils, types
        from numba.extending import intrinsic

        def room(context, like):  # type: ignore[no-untyped-def]
            def lowered(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
                kind, whole = context.get_data_type(like.dtype), context.get_value_type(types.intp)
                size = whole(context.get_abi_sizeof(kind))
                data = cgutils.alloca_once(builder, kind, size=ROOM)  # type: ignore[no-untyped-call]
                array = context.make_array(signature.return_type)(context, builder)
                sizes = {"shape": (whole(ROOM),), "strides": (size,), "itemsize": size}
                context.populate_array(array, data=data, meminfo=None, **sizes)
                return array._getvalue()

            return types.Array(like.dtype, 1, "C")(like), lowered

        with _building:
            self._compiled = self._compiled or intrinsic(room)
            return self._compiled


class _Weigh(Loop):
    """`weigh(start, own, to, x, rows, weights, count, left)`: a piece of a row of weighted sums.

    to ← own · start + Σ weights[n] · x[rows[n], left …] over n < count, where `to` and `start` are (array,
    row, column) and every piece is `bytes_` long. The sum stays in registers, which a loop over columns
    cannot be made to do.
    """

    def __init__(self, bytes_: int) -> None:
        super().__init__(_nothing, _FUSE)
        self.bytes = bytes_

    def compiled(self) -> Function:
        from llvmlite import ir
        from numba.core import cgutils, types
        from numba.extending import intrinsic

        def weigh(context, start, own, to, x, rows, weights, count, left):  # type: ignore[no-untyped-def]
            def lowered(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
                start, own, to, x, rows, weights, count, left = arguments
                kinds = signature.args
                number = context.get_data_type(x_kind.dtype)
                size = context.get_abi_sizeof(number)
                lanes = max(1, self.bytes // size)
                vector = ir.VectorType(number, lanes)

                def at(kind: _IR, array: _IR, *index: _IR) -> _IR:
                    view = context.make_array(kind)(context, builder, array)
                    pointer = cgutils.get_item_pointer
                    return pointer(context, builder, kind, view, list(index))  # type: ignore[no-untyped-call]

                def piece(kind: _IR, array: _IR, *index: _IR) -> _IR:
                    return builder.bitcast(at(kind, array, *index), vector.as_pointer())

                def all_of(value: _IR) -> _IR:
                    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
                    same = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
                    return builder.shuffle_vector(one, one, same)

                def place(kind: _IR, given: _IR) -> _IR:
                    array, row, column = (builder.extract_value(given, n) for n in range(3))
                    return piece(kind[0], array, row, column)

                begun = builder.load(place(kinds[0], start), align=size)
                total = cgutils.alloca_once(builder, vector)  # type: ignore[no-untyped-call]
                builder.store(builder.fmul(all_of(own), begun), total)
                with cgutils.for_range(builder, count) as loop:
                    row = builder.load(at(kinds[4], rows, loop.index))
                    by = all_of(builder.load(at(kinds[5], weights, loop.index)))
                    term = builder.fmul(by, builder.load(piece(x_kind, x, row, left), align=size))
                    builder.store(builder.fadd(builder.load(total), term), total)
                builder.store(builder.load(total), place(kinds[2], to), align=size)
                return context.get_dummy_value()

            x_kind = x
            return types.none(start, own, to, x, rows, weights, types.int64, types.int64), lowered

        with _building:
            self._compiled = self._compiled or intrinsic(weigh)
            return self._compiled


def _nothing() -> None:
    """What an instruction has in place of a function."""


ROOM = 64  # numbers on the stack of a loop
room = _Room(_nothing, _FUSE)
weigh_long, weigh_short, weigh_one = _Weigh(256), _Weigh(64), _Weigh(1)


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
    threads = min(team_for(numbers), tasks)
    if threads <= 1:
        work(0, tasks)
        return
    cuts = np.linspace(0, tasks, threads + 1).astype(int).tolist()
    others = [_pool(threads).submit(work, a, b) for a, b in pairwise(cuts[1:])]
    work(cuts[0], cuts[1])
    for other in others:
        other.result()


def team_for(numbers: int) -> int:
    """How many threads are worth waking for so many numbers."""
    return max(1, min(torch.get_num_threads(), os.cpu_count() or 1)) if numbers >= _SERIAL else 1


def together(team: int, work: Callable[[int], bool]) -> None:
    """Call `work(me)` on `team` threads until it says that all is done.

    The threads take what there is to do from each other; `work` returns False where it waits for another
    one, who may need this core. Nobody waits for a thread that has not begun.
    """

    def join(me: int) -> None:
        while not work(me):
            time.sleep(_NAP)

    others = [_pool(team).submit(join, me) for me in range(1, team)]
    join(0)
    for other in others:
        other.cancel()


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

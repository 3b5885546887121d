"""Machine code of loops that comes with the package, so that a first run need not compile them.

`tools/ship.py` makes it: a library for each of two levels of processors, and `shipped.json`, which says from
what source and for what arguments. It is used where the system, the processor, the source and the arguments
fit; numba compiles everything else.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

Function = Callable[..., Any]  # as it is written in Python
Entry = Callable[[object, object], Any]  # a shipped one: takes memory and the arguments that it was made of
TABLE = Path(__file__).with_name("shipped.json")
LEVELS = {"AVX2": "x86-64-v3", "AVX512": "x86-64-v4"}  # by what torch says that a processor can do
OFF = "SPODGT_COMPILE"  # an environment variable: 1 for a process that uses none of this
_RESULTS = {"bool": "?", "boolean": "?", "int64": "q", "float64": "d"}  # how the first slot is read
_FORMS = [f"{5 + 2 * dimensions}q" for dimensions in range(8)]
_KINDS: dict[type, tuple[str, str]] = {bool: ("boolean", "q"), np.uint64: ("uint64", "Q")}
_KINDS |= dict.fromkeys((int, np.int64), ("int64", "q"))
_KINDS |= dict.fromkeys((float, np.float64), ("float64", "d"))


def laid_out(arguments: Sequence[object]) -> tuple[str, str, list[float]]:
    """What numba's functions take: the types of the arguments, the format of their numbers, the numbers.

    An array is two empty pointers, its size, the size of a number, the address, the shape and the strides.
    A type that no shipped loop takes has the name "?".
    """
    kinds, form = [], ""
    numbers: list[float] = []
    for value in arguments:
        if isinstance(value, np.ndarray):
            shape, flags = value.shape, value.flags
            kinds.append(_array_kind(value.dtype, len(shape), flags.c_contiguous, flags.f_contiguous))
            form += _FORMS[len(shape)]
            numbers += (0, 0, value.size, value.itemsize, _address(value), *shape, *value.strides)
        elif isinstance(value, tuple):
            inner = laid_out(value)
            kinds.append(f"({inner[0]})")
            form += inner[1]
            numbers += inner[2]
        else:
            kind, letter = _KINDS.get(type(value), ("?", "q"))
            kinds.append(kind)
            form += letter
            numbers.append(value)  # type: ignore[arg-type]
    return ",".join(kinds), form, numbers


@cache
def _array_kind(number: np.dtype[np.generic], dimensions: int, rows: bool, columns: bool) -> str:
    """The name of an array's type; `rows` and `columns`: contiguous along them."""
    return f"{number.str[1:]}[{dimensions}{'C' if rows else 'F' if columns else 'A'}]"


def _address(array: Any) -> int:
    """Where its numbers are; numpy has a slow way to say it for all, ctypes a fast one for most."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, empty, or with gaps
        return int(array.__array_interface__["data"][0])


def packed(form: str, numbers: list[float]) -> ctypes.Array[ctypes.c_char]:
    """Memory for a call: a slot for the result, then the arguments."""
    memory = bytearray(struct.pack("=q" + form, 0, *numbers))
    return (ctypes.c_char * len(memory)).from_buffer(memory)


def call(
    function: Callable[[object], int], result: str, memory: ctypes.Array[ctypes.c_char], _arguments: object
) -> Any:
    """Call what was shipped; whoever calls holds the arrays that `memory` has the addresses of."""
    if function(memory):
        raise RuntimeError("a compiled loop failed")  # loops raise nothing of themselves
    return struct.unpack_from(_RESULTS[result], memory)[0] if result in _RESULTS else None


def library_of(level: str) -> Path:
    """Where the library for a level of processors is."""
    return TABLE.with_name(f"shipped-{level}.so")


@cache
def library() -> tuple[ctypes.CDLL, dict[str, Any]] | None:
    """The library and the table of what is in it; None where it is missing or not for this machine."""
    level = LEVELS.get(torch.backends.cpu.get_cpu_capability())
    if not level or (sys.platform, platform.machine()) != ("linux", "x86_64") or os.environ.get(OFF):
        return None
    try:
        return ctypes.CDLL(str(library_of(level))), json.loads(TABLE.read_bytes())
    except (OSError, ValueError):  # not in this package, or another C library
        return None


def entries(function: Function, stamp: Callable[[], str]) -> dict[str, Entry]:
    """By the types of arguments, what was shipped of a loop; nothing if its stamp is another one by now."""
    if (found := library()) is None:
        return {}
    code, table = found
    known = table.get(f"{function.__module__}.{function.__qualname__}")
    try:
        if known is None or stamp() != known["source"]:
            return {}
    except (OSError, TypeError):  # no source to compare with
        return {}
    return {
        kinds: partial(call, code[symbol], result) for kinds, (symbol, result) in known["entries"].items()
    }

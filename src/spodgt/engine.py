"""The execution engine: whether compiled loops are used, and how they are compiled.

`auto` (the default) uses compiled loops where they apply: CPU tensors in single or double
precision. `plain` runs `Algorithm.step` and the modules as written, in PyTorch and NumPy. Every
compiled loop has a plain equivalent.

Modules with loops import numba when they are imported. They are imported inside the functions that
call them, so a process that uses no loop does not pay for numba (0.4 s and 100 MB).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor

from spodgt.errors import InvalidInput

VARIABLE = "SPODGT_ENGINE"
ENGINES = ("auto", "plain")
_LOOP_FILES = (
    "random_draws.py",
    "problems/gradients/linear_model.py",
    "kernels/mixing.py",
    "kernels/run_program.py",
    "kernels/event_batches.py",
)
_POLL = 0.1  # seconds between two checks whether numba compiles

Loop = Callable[..., Any]  # loops have no types of their own: numba infers them from the arguments
_is_plain: ContextVar[bool] = ContextVar("_is_plain", default=False)  # inside `use_engine("plain")`
_loops_off: ContextVar[bool] = ContextVar("_loops_off", default=False)  # inside `use_loops(False)`
_loops: list[Any] = []  # numba's dispatchers of all loops


# --- the switch ----------------------------------------------------------------------------------
def check_engine(name: object, source: str = "engine") -> str:
    """Return `name` if it is an engine; `source` is the option that an error message names."""
    if name not in ENGINES:
        raise InvalidInput(f"{source} must be auto or plain, got {name!r}; use {source}=auto.")
    return str(name)


@contextmanager
def use_engine(name: str) -> Iterator[None]:
    """Use an engine in the current context until the block ends; `asyncio.to_thread` inherits it.

    Inside `use_engine("plain")` and with SPODGT_ENGINE=plain, `use_engine("auto")` changes nothing.
    """
    with _set(_is_plain, _is_plain.get() or check_engine(name) == "plain"):
        yield


@contextmanager
def use_loops(enabled: bool) -> Iterator[None]:
    """If `enabled` is False, use PyTorch and NumPy in place of compiled loops until the block ends.

    Unlike the plain engine, linear models keep their gradients in closed form. Peers with one small
    model save the memory of numba, which is not imported.
    """
    with _set(_loops_off, _loops_off.get() or not enabled):
        yield


@contextmanager
def _set(variable: ContextVar[bool], value: bool) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def current_engine() -> str:
    """`plain` if the caller or the environment asks for it, otherwise `auto`."""
    requested = check_engine(os.environ.get(VARIABLE) or "auto", VARIABLE)
    if requested == "plain" or _is_plain.get():
        return "plain"
    return "auto"


def loops_enabled() -> bool:
    """Whether compiled loops are used here; NUMBA_DISABLE_JIT=1 switches them off, too."""
    if _loops_off.get() or current_engine() == "plain":
        return False
    return os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0") and _is_installed("numba")


def fits_loops(*tensors: Tensor) -> bool:
    """Whether compiled loops are used and take these tensors: contiguous floats on the CPU."""
    if not loops_enabled():
        return False
    for tensor in tensors:
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            return False
        if tensor.dtype not in (torch.float32, torch.float64):
            return False
    return True


def describe_engine() -> str:
    """The engine by name, with what it consists of here."""
    if current_engine() == "plain":
        return "plain"
    if not loops_enabled():
        return "auto (PyTorch; compiled loops are switched off)"
    return f"auto (compiled loops of numba {version('numba')})"


@cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


# --- compilation ---------------------------------------------------------------------------------
def compiled_loop(function: Loop) -> Loop:
    """Decorator: compile a loop with numba when it is first called.

    No fast-math flags: results are the same on every CPU and in every caller, and NaN and infinity
    stay visible.
    """
    return _compile(function)


def compiled_dot_product(function: Loop) -> Loop:
    """Decorator: compile a sum of products; the compiler may reorder and vectorize it."""
    return _compile(function, fastmath={"reassoc"})


def inlined_loop(function: Loop) -> Loop:
    """Decorator: copy a loop into the loops that call it, which decide about the order of sums.

    For loops over short rows: a call counts references to all arrays, which takes longer.
    """
    return _compile(function, inline="always")


def cache_directory() -> Path:
    """Where machine code is kept: one folder for each version of the loops' source code.

    numba itself compares the time stamp of the file that holds a loop, but not of the files with
    the loops that it calls. NUMBA_CACHE_DIR replaces the user's cache folder.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    parent = Path(given) if given else platformdirs.user_cache_path("spodgt")
    return parent / f"loops-{_source_digest()}"


@contextmanager
def announce_compilation(announce: Callable[[], None]) -> Iterator[None]:
    """Call `announce` once if this block compiles a loop, instead of loading it from the cache."""
    before = _cache_misses()
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_POLL):
            if _cache_misses() > before:
                announce()
                return

    watcher = threading.Thread(target=watch, name="spodgt-compilation", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _compile(function: Loop, **options: Any) -> Loop:
    import numba

    config: Any = numba.config

    # error_model: division by zero gives infinity, without a branch in every loop
    options |= {"nogil": True, "error_model": "numpy"}
    previous = config.CACHE_DIR
    config.CACHE_DIR = str(cache_directory())
    try:
        loop: Loop = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder is writable: compile again in every process
        loop = numba.njit(**options)(function)
    finally:
        config.CACHE_DIR = previous
    _loops.append(loop)
    return loop


def _cache_misses() -> int:
    """How often numba has compiled a loop in this process."""
    return sum(
        sum(loop.stats.cache_misses.values()) for loop in list(_loops) if hasattr(loop, "stats")
    )


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for name in _LOOP_FILES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:12]

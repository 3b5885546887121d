"""The command line, one module per group of commands.

Exit codes: 0 success, 1 the run failed, 2 invalid input (one sentence, no traceback), 130
interrupted.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import time
import warnings
from typing import Any

import typer

# Importing these modules registers their commands.
from spodgt.cli import (  # noqa: F401  # noqa: F401
    compare,
    data,
    doctor,
    export,
    init,
    methods,
    network,
    peer,
    report,
    simulate,
    sweep,
    theory,
    tune,
)
from spodgt.cli.app import INTERRUPTED, Interrupted, app, print_message
from spodgt.errors import InvalidInput, SpodgtError, UnusedDataWarning

__all__ = ["app", "main"]

# torchrun stops all processes as soon as one exits; the others wait for rank 0 to print its error.
_WAIT_FOR_MAIN_PROCESS = 2.0  # seconds

# The base class of usage errors, which typer does not export.
_UsageError: Any = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def main() -> None:
    """Entry point: run the command, report an error in one sentence, and exit."""
    # OpenMP reads this variable when torch starts its threads. Threads that spin while they wait
    # make many small operations eight times slower as soon as other processes use the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    atexit.register(gc.freeze)  # skips the garbage collection at exit
    _prepare_output()
    warnings.formatwarning = _format_warning
    code = _run_command()
    sys.exit(code)


def _run_command() -> int:
    """Run the command of `sys.argv`; returns the exit code."""
    try:
        code = app(prog_name="spodgt", standalone_mode=False)
        sys.stdout.flush()
    except Interrupted as interrupted:
        print_message(str(interrupted))
        return INTERRUPTED
    except SpodgtError as error:
        return _report_error(error)
    except _UsageError as error:
        return _report_usage_error(error)
    except KeyboardInterrupt:
        print_message("stopped.")
        return INTERRUPTED
    except OSError as error:
        return _report_os_error(error)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        print_message("error: out of memory; use fewer clients, seeds or parameters.")
        return 1
    if code == INTERRUPTED:  # typer returns it after Ctrl-C
        print_message("stopped.")
    return code if isinstance(code, int) else 0


def _report_error(error: SpodgtError) -> int:
    code = 2 if isinstance(error, InvalidInput) else 1
    if code == 2 and os.environ.get("RANK", "0") != "0":
        time.sleep(_WAIT_FOR_MAIN_PROCESS)  # every process of torchrun finds the same bad input
    else:
        print_message(f"error: {error}")
    return code


def _report_usage_error(error: Any) -> int:
    text = error.format_message()
    if text:  # empty if the help was printed instead
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "spodgt"
        print_message(f"error: {text.rstrip('.?')}{_given_value(error)}; see {command} --help.")
    return 2


def _report_os_error(error: OSError) -> int:
    """Report an invalid path, or a full or closed output."""
    if isinstance(error, BrokenPipeError):  # the reader of the output, such as head, has ended
        _close_output()
        return 1
    path = ""
    if error.filename is not None:
        path = f"{str(error.filename)[:60]!r}: "
    reason = error.strerror or error
    print_message(f"error: {path}{reason}; give another path, or free some space.")
    _close_output()
    return 2 if error.filename else 1


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether memory could not be allocated; torch raises a RuntimeError on the CPU."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def _prepare_output() -> None:
    """Replace characters that the output cannot encode, and a closed output by the null device."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _close_output() -> None:
    """Discard buffered output, so that the interpreter does not flush it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _given_value(error: Any) -> str:
    """ ", got 'VALUE'" for the option that an error is about, as given on the command line."""
    for option in getattr(getattr(error, "param", None), "opts", []):
        for position, word in enumerate(sys.argv):
            if word == option and position + 1 < len(sys.argv):
                return f", got {sys.argv[position + 1]!r}"
            if word.startswith(f"{option}="):
                return f", got {word.partition('=')[2]!r}"
    return ""


_format_with_source = warnings.formatwarning


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Format a warning about the input as one sentence, and others with their line of source."""
    if issubclass(category, UnusedDataWarning):
        return f"spodgt: warning: {message}\n"
    return _format_with_source(message, category, filename, lineno, line)

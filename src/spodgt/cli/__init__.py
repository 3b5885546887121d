"""The command line: `spodgt compare` and its neighbours, one file per group of commands.

Exit codes: 0 done, 1 failed on the way, 2 bad input (one sentence, no traceback).
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

from spodgt.cli import compare, data, doctor, experiments, export, lookup, peer, project, theory  # noqa: F401  (importing them adds their commands)
from spodgt.cli.app import app
from spodgt.errors import InvalidInput, SpodgtError, UnusedDataWarning

__all__ = ["app", "main"]

_WAIT_FOR_MAIN = (
    2.0  # seconds: torchrun ends all processes with the first, and rank 0 must print its error
)

# Every usage error has this ancestor, in typer's own copy of click and in click itself.
_UsageError: Any = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def main() -> None:
    """Entry point: turn what went wrong into one sentence and an exit code."""
    # OpenMP reads this when torch starts its threads. Threads that spin while they wait for each other make
    # many small operations eight times slower as soon as anything else runs on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    atexit.register(gc.freeze)  # at the end of the process nobody needs anything collected
    _prepare_output()
    warnings.formatwarning = _format_warning
    try:
        code = app(prog_name="spodgt", standalone_mode=False)
        sys.stdout.flush()
    except SpodgtError as error:
        code = 2 if isinstance(error, InvalidInput) else 1
        if (
            code == 1 or os.environ.get("RANK", "0") == "0"
        ):  # under torchrun all find the same bad input
            _say(f"error: {error}")
        else:
            time.sleep(_WAIT_FOR_MAIN)
    except _UsageError as error:
        if text := error.format_message():  # empty where help was shown instead
            command = error.ctx.command_path if getattr(error, "ctx", None) else "spodgt"
            _say(f"error: {text.rstrip('.?')}{_given(error)}; see {command} --help.")
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output went away, such as head
        _close_output()
        code = 1
    except OSError as error:  # of a path that no file can have, or of a full or closed output
        _say(f"error: {_reason(error)}; give another path, or free some space.")
        _close_output()
        code = 2 if error.filename else 1
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(
            error
        ):  # torch has no own class
            raise
        _say(
            "error: the memory of this machine is not enough; use fewer clients, seeds or parameters."
        )
        code = 1
    if code == 130:  # how typer reports Ctrl-C
        _say("stopped.")
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _prepare_output() -> None:
    """Letters that a terminal or a pipe cannot show become question marks, and a closed output is none."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _close_output() -> None:
    """Nothing more is written, not even what is still in memory."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reason(error: OSError) -> str:
    where = "" if error.filename is None else f"{str(error.filename)[:60]!r}: "
    return f"{where}{error.strerror or error}"


def _given(error: Any) -> str:
    """What was typed for the option that an error is about."""
    for option in getattr(getattr(error, "param", None), "opts", []):
        for word, after in zip(sys.argv, [*sys.argv[1:], None], strict=True):
            if word == option and after is not None:
                return f", got {after!r}"
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
    """A warning about the user's input in one sentence, others with their line of source."""
    if issubclass(category, UnusedDataWarning):
        return f"spodgt: warning: {message}\n"
    return _format_with_source(message, category, filename, lineno, line)


def _say(text: str) -> None:
    print(f"spodgt: {text}", file=sys.stderr)

"""The command line: `spodgt compare` and its neighbours, one file per group of commands.

Exit codes: 0 done, 1 failed on the way, 2 bad input (one sentence, no traceback).
"""

from __future__ import annotations

import sys

from spodgt.cli import compare, data, lookup  # noqa: F401  (importing them adds their commands)
from spodgt.cli.app import app
from spodgt.errors import InvalidInput, SpodgtError

__all__ = ["app", "main"]


def main() -> None:
    """Entry point: turn what went wrong into one sentence and an exit code."""
    try:
        app()
    except SpodgtError as error:
        print(f"spodgt: error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidInput) else 1)
    except KeyboardInterrupt:
        print("spodgt: stopped.", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output went away, such as head
        sys.stderr.close()
        sys.exit(1)

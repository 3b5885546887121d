"""Errors of modules, losses and data sets that the user wrote, reported in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spodgt._util.text import first_line
from spodgt.errors import InvalidInput


@contextmanager
def user_code_errors(
    what: str, where: str = "a few samples of client 0", fix: str = ""
) -> Iterator[None]:
    """Convert any error raised in the block to `InvalidInput`.

    Args:
        what: the user's code, such as "model and loss".
        where: the data on which it failed.
        fix: what to do, appended to the sentence; "; use …".
    """
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        raise user_code_error(what, where, error, fix) from error


def user_code_error(what: str, where: str, error: Exception, fix: str = "") -> InvalidInput:
    """The sentence for an error of the user's code; arguments as for `user_code_errors`."""
    return InvalidInput(f"{what} failed on {where}: {first_line(error)}{fix}")

"""Errors of modules, losses and data sets that the user wrote, reported in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spodgt.errors import InvalidInput


def first_line(error: BaseException | Warning | str) -> str:
    """The first line of an error message, or the type of the error if it has no message."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    return text.splitlines()[0]


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
        raise InvalidInput(f"{what} failed on {where}: {first_line(error)}{fix}") from error

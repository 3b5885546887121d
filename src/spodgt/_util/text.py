"""Text of error messages."""

from __future__ import annotations

_MAX_REPR = 60  # characters


def short_repr(value: object) -> str:
    """`repr(value)` on one line, cut after 60 characters."""
    return " ".join(repr(value).split())[:_MAX_REPR]


def first_line(error: BaseException | str) -> str:
    """The first line of an error message, or the type of the error if it has no message."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    return text.splitlines()[0]

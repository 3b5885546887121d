"""Events of a peer, as they are passed to its log."""

from __future__ import annotations

from typing import Protocol


class Notify(Protocol):
    """Records an event.

    Args:
        kind: Such as "refused" or "link up".
        text: One sentence for operators.
        subject: The neighbour or the link that the event is about; "" if it is about the client itself.
    """

    def __call__(self, kind: str, text: str, subject: str = "", /) -> None: ...


def describe(text: str, subject: str) -> str:
    """The text of an event after its subject."""
    return f"{subject}: {text}" if subject else text

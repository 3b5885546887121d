"""Texts without control characters, and JSON without NaN."""

from __future__ import annotations

import math


def printable(text: str) -> str:
    """The text with control and other invisible characters replaced by "?".

    A text of another program could otherwise begin a line of its own in a log, or change a terminal.
    """
    return "".join(character if character.isprintable() else "?" for character in text)


def json_values(value: object) -> object:
    """The value with null for NaN and infinity, which JSON has not; also inside of tables and lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    return value

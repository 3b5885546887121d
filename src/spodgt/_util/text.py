"""Text of error messages and of tables in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_MAX_REPR = 60  # characters
_MAX_HTML_ROWS = 20


def short_repr(value: object) -> str:
    """`repr(value)` on one line, cut after 60 characters."""
    return " ".join(repr(value).split())[:_MAX_REPR]


def first_line(error: BaseException | str) -> str:
    """The first line of an error message, or the type of the error if it has no message."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    return text.splitlines()[0]


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for notebooks, with at most 20 rows; all texts are escaped."""
    lines = [f"<p>{escape(caption)}</p>", "<table>", _html_row(header, "th")]
    for row in rows[:_MAX_HTML_ROWS]:
        lines.append(_html_row(row, "td"))
    lines.append("</table>")
    hidden = len(rows) - _MAX_HTML_ROWS
    if hidden > 0:
        lines.append(f"<p>… and {hidden:,} more</p>")
    return "\n".join(lines)


def _html_row(cells: Sequence[object], tag: str) -> str:
    texts = [f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells]
    return f"<tr>{''.join(texts)}</tr>"

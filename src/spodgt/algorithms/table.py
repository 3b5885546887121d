"""The properties of all methods, from their declarations, for `spodgt methods` and docs/methods.md."""

from __future__ import annotations

from spodgt.algorithms.base import Traits
from spodgt.algorithms.registry import algorithms

COLUMNS: dict[str, str] = {
    "method": "method",
    "source": "source",
    "directed": "directed?",
    "tracking": "tracking?",
    "sporadic_compute": "sporadic compute?",
    "sporadic_links": "sporadic links?",
    "local_steps": "local steps?",
    "exact": "exact limit?",
    "root": "root?",
    "messages": "messages per round",
    "vectors": "vectors each",
}
_BEGIN, _END = "<!-- methods: generated -->", "<!-- methods: end -->"
_YES = {True: "yes", False: "no"}


def table() -> list[dict[str, str]]:
    """One row per method, its keys those of `COLUMNS`."""
    return [_row(name, cls.traits) for name, cls in algorithms().items()]


def refreshed(page: str) -> str:
    """The text of docs/methods.md with the table between its marks made anew."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS)]
    for row in table():
        method, source, *cells = row.values()
        lines.append([f"`{method}`", f"[{source}](references.md#{source})", *cells])
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{rows}\n{_END}{rest.partition(_END)[2]}"


def _row(name: str, traits: Traits) -> dict[str, str]:
    messages = {"server": "2 per client", "none": "0"}.get(traits.mixing)
    messages = messages or ("1 per link" if traits.activation == "all" else "2")
    return {
        "method": name,
        "source": traits.source,
        "directed": "any" if traits.mixing in ("server", "none") else _YES[traits.directed],
        "tracking": _YES[traits.tracking],
        "sporadic_compute": traits.sporadic_clients,
        "sporadic_links": traits.sporadic_links,
        "local_steps": _YES[traits.local_steps],
        "exact": "if all compute" if traits.exact == "all active" else traits.exact,
        "root": _YES[traits.root],
        "messages": messages + (" every K" if traits.local_steps else ""),
        "vectors": "–" if traits.mixing == "none" else str(traits.vectors),
    }

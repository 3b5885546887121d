"""Properties of all methods from their traits: `spodgt methods`, docs/reference/methods.md."""

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
_BEGIN = "<!-- methods: generated -->"
_END = "<!-- methods: end -->"
_YES = {True: "yes", False: "no"}


def table() -> list[dict[str, str]]:
    """One row per method, with the keys of `COLUMNS`."""
    return [_row(name, cls.traits) for name, cls in algorithms().items()]


# Columns of the page: as many as fit on a screen, the one that decides first.
_PAGE = {
    "exact": "exact limit?",
    "directed": "one-way links?",
    "sporadic_compute": "idle clients?",
    "sporadic_links": "failing links?",
}


def update_page(page: str) -> str:
    """The text of docs/reference/methods.md with a new table between its markers."""
    lines = [["method", *_PAGE.values(), "messages × vectors"], ["---"] * (len(_PAGE) + 2)]
    for row in table():
        source = f"[source](literature.md#{row['source']})"
        cost = row["messages"] if row["vectors"] == "–" else f"{row['messages']} × {row['vectors']}"
        lines.append([f"`{row['method']}` {source}", *(row[key] for key in _PAGE), cost])
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{rows}\n{_END}{after}"


def _row(name: str, traits: Traits) -> dict[str, str]:
    return {
        "method": name,
        "source": traits.source,
        "directed": _YES[traits.directed] if traits.uses_links else "any",
        "tracking": _YES[traits.tracking],
        "sporadic_compute": traits.sporadic_clients,
        "sporadic_links": traits.sporadic_links,
        "local_steps": _YES[traits.local_steps],
        "exact": "if all compute" if traits.exact == "all active" else traits.exact,
        "root": _YES[traits.root],
        "messages": _messages(traits),
        "vectors": "–" if traits.mixing == "none" else str(traits.vectors),
    }


def _messages(traits: Traits) -> str:
    """Messages per round."""
    count = "1 per link" if traits.activation == "all" else "2"
    if traits.mixing == "server":
        count = "2 per client"
    elif traits.mixing == "none":
        count = "0"
    return f"{count} every K" if traits.local_steps else count

"""The properties of all methods, from their declarations, for `spodgt algorithms` and docs/methods.md."""

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
    "messages": "messages per round",
    "vectors": "vectors each",
}
_BEGIN, _END = "<!-- methods: generated -->", "<!-- methods: end -->"


def table() -> list[dict[str, str]]:
    """One row per method, its keys those of `COLUMNS`."""
    return [_row(name, cls.traits) for name, cls in algorithms().items()]


def markdown() -> str:
    """The table as it stands in the docs."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS)]
    for row in table():
        cells = row | {
            "method": f"`{row['method']}`",
            "source": f"[{row['source']}](references.md#{row['source']})",
        }
        lines.append([cells[key] for key in COLUMNS])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def refreshed(page: str) -> str:
    """A page with the table between its marks made anew.

    Args:
        page: the text of docs/methods.md.
    """
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{markdown()}\n{_END}{after}"


def _row(name: str, traits: Traits) -> dict[str, str]:
    talks = {"all": "1 per link", "pair": "2", "client": "2"}[traits.talks]
    talks = {"server": "2 per client", "none": "0"}.get(traits.mixing, talks)
    return {
        "method": name,
        "source": traits.source,
        "directed": "any" if traits.mixing in ("server", "none") else _yes("pu" in traits.mixing),
        "tracking": _yes(traits.tracking),
        "sporadic_compute": traits.sporadic_clients,
        "sporadic_links": traits.sporadic_links,
        "local_steps": _yes(traits.local_steps),
        "exact": {"all active": "if all compute"}.get(traits.exact, traits.exact),
        "messages": talks + (" every K" if traits.local_steps else ""),
        "vectors": "–" if traits.mixing == "none" else str(traits.vectors),
    }


def _yes(true: bool) -> str:
    return "yes" if true else "no"

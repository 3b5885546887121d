"""Properties of all methods from their traits, for `spodgt methods` and the page of methods."""

from __future__ import annotations

from spodgt.algorithms.base import Traits
from spodgt.algorithms.registry import algorithms

_YES = {True: "yes", False: "no"}


def table() -> list[dict[str, str]]:
    """One row per method, with the keys of `_row`."""
    return [_row(name, cls.traits) for name, cls in algorithms().items()]


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

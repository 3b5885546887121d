"""Write the table of docs/reference/methods.md; with --check, only compare it with the declarations."""

from __future__ import annotations

import sys
from pathlib import Path

from spodgt.algorithms.table import table

PAGE = Path(__file__).parents[1] / "docs/reference/methods.md"
BEGIN = "<!-- methods: generated -->"
END = "<!-- methods: end -->"
COLUMNS = {  # as many as fit on a screen, the one that decides first
    "exact": "exact limit?",
    "directed": "one-way links?",
    "sporadic_compute": "idle clients?",
    "sporadic_links": "failing links?",
}


def update_page(page: str) -> str:
    """The text of the page with a new table between its markers."""
    lines = [["method", *COLUMNS.values(), "messages × vectors"], ["---"] * (len(COLUMNS) + 2)]
    for row in table():
        source = f"[source](literature.md#{row['source']})"
        cost = row["messages"] if row["vectors"] == "–" else f"{row['messages']} × {row['vectors']}"
        lines.append([f"`{row['method']}` {source}", *(row[key] for key in COLUMNS), cost])
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{rows}\n{END}{after}"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    new = update_page(page)
    if "--check" not in sys.argv:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        print(
            "the table of docs/reference/methods.md is not up to date; run python tools/methods.py"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

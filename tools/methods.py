"""Write the table of docs/reference/methods.md; with --check, only compare it with the declarations."""

from __future__ import annotations

import sys
from pathlib import Path

from spodgt.algorithms.table import update_page

PAGE = Path(__file__).parents[1] / "docs/reference/methods.md"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    new = update_page(page)
    if "--check" not in sys.argv:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        print("the table of docs/reference/methods.md is not up to date; run make docs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Find dead links in a folder of HTML pages: files that are not there, and anchors that no page has.

python tools/links.py site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ADDRESSES = {"a": "href", "link": "href", "img": "src", "script": "src"}


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name == _ADDRESSES.get(tag) and value:
                self.links.append(value)


def dead(folder: Path) -> list[str]:
    """Every link that leads nowhere, and every file that a page would load from another host."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: it is shown at any depth
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                found.append(f"{path.relative_to(folder.resolve())}: {link} is not there")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].anchors
            ):
                found.append(f"{path.relative_to(folder.resolve())}: {link} has no such anchor")
    return found


if __name__ == "__main__":
    if not any(Path(sys.argv[1]).rglob("*.html")):
        sys.exit(f"{sys.argv[1]} has no pages")
    lost = dead(Path(sys.argv[1]))
    print("\n".join(lost) or f"no dead link in {sys.argv[1]}")
    sys.exit(bool(lost))

"""Measure the pages: words, longest pages, and sentences of more than 25 words.

    python tools/prose.py                 # all pages of the site
    python tools/prose.py --long 10 FILE  # also list the longest sentences of these pages

Words are those of the whole page without code blocks; a table counts. Sentences are those of running text:
paragraphs and list items, without headings, tables and code.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 25  # words of a sentence
OUTSIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/results/README.md",
)
_FENCE = re.compile(r"^ *```.*?^ *```.*?$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^>]*>")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]+?`")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+", re.MULTILINE)
_END = re.compile(r"(?<=[.!?])[\"*)\]]*\s+(?=[\"*(\[]*[A-Z0-9Α-Ω])")
_WORD = re.compile(r"\w[\w.,’'%/+-]*")


def text_of(page: Path) -> str:
    """The page without code blocks, comments and tags; links and inline code are one text each."""
    text = page.read_text(encoding="utf-8")
    for pattern in (_FENCE, _COMMENT, _TAG):
        text = pattern.sub("", text)
    return _CODE.sub("Code", _LINK.sub(r"\1", text))


def sentences(text: str) -> list[str]:
    """Sentences of paragraphs and list items."""
    lines = []
    for line in text.splitlines():
        is_prose = not line.lstrip().startswith(("|", "#", "!!!", "???", ":::", "---"))
        lines.append(line if is_prose else "")
    found = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        for item in _ITEM.split(paragraph):
            found.extend(_END.split(" ".join(item.split())))
    return [sentence for sentence in found if sentence]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--long", type=int, default=0, help="list so many of the longest sentences")
    given = parser.parse_args()
    pages = given.pages
    if not pages:
        pages = [ROOT / name for name in OUTSIDE]
        pages += [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "notes"]
    words = {page: len(_WORD.findall(text_of(page))) for page in pages}
    lengths = []
    for page in pages:
        for sentence in sentences(text_of(page)):
            lengths.append((len(_WORD.findall(sentence)), page, sentence))
    prose = sum(length for length, _, _ in lengths)
    long = [each for each in lengths if each[0] > LIMIT]
    print(f"{len(pages)} pages, {sum(words.values()):,} words, {prose:,} of them in sentences")
    print(
        f"sentences of more than {LIMIT} words: {len(long)}, {1000 * len(long) / prose:.1f} per 1,000"
    )
    for page in sorted(words, key=words.__getitem__, reverse=True)[:5]:
        print(f"{words[page]:6,} {page}")
    for length, page, sentence in sorted(long, key=lambda each: -each[0])[: given.long]:
        print(f"{length} {page.name}: {sentence}")


if __name__ == "__main__":
    main()

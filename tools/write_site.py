"""Write the pages of the site to a folder: `make docs` builds the site from it.

    python tools/write_site.py build/docs      # run the code of the pages; RUN=0 leaves it out

Pages of the repository link each other by paths in the repository, so that they can be read there, too.
In the written pages such links are those of the site. Comments that only the site reads:

    <!-- include: examples/lora.py -->       the file, as a code block
    <!-- picture: accuracy.png, words -->    a picture that the page's own code has drawn
    <!-- table: results.csv -->              a CSV file beside the page, as a table
    <!-- commands -->                        all commands with their options
    <!-- metrics -->                         all metrics
    <!-- train options -->                   all options of train and compare
    <!-- method classes -->                  all methods: their updates, hyperparameters, classes
    <!-- history -->                         speed of the simulator at its commits, as a table
    <!-- history picture -->                 the same as a picture

The folder also gets llms.txt, a list of the pages for language models, and llms-full.txt with their text.
No step depends on the program that makes HTML of the folder: any that reads Markdown can.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools import history, pages
from tools.commands import commands
from tools.tables import csv_table, method_classes, metrics, train_options

ROOT = pages.ROOT
CACHE = ROOT / "build" / "pages"
CONFIG = ROOT / "mkdocs.yml"
EXCLUDED = ROOT / "docs" / "results" / "notes"  # parts of the pages that tools/results.py writes
# Pages and files from outside docs/, and where they are on the site.
PUBLISHED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CHANGELOG.md": "reference/changelog.md",
    "SECURITY.md": "explanation/security.md",
    "benchmarks/results/README.md": "results/speed.md",
    "benchmarks/results/growth.png": "results/growth.png",
    "benchmarks/results/history.jsonl": "results/history.jsonl",
    "benchmarks/results/speed.json": "results/speed.json",
}
GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "metrics": metrics,
    "method classes": method_classes,
    "train options": train_options,
    "history": history.table,
    "history picture": lambda: "![ratios against commits](history.png)",
}
HOME = "---\nhide: [navigation, toc]\n---\n\n"  # the home page has the whole width
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_PICTURE = re.compile(r"(?<!\[)!\[[^\]]*\]\(([^)\s]+\.(?:png|svg))\)")  # not inside a link
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


@dataclass
class Page:
    """A file of the site: its source, its place on the site, and what its code has printed and drawn."""

    source: Path
    place: str
    printed: list[str] = field(default_factory=list)

    @property
    def is_markdown(self) -> bool:
        return self.source.suffix == ".md"

    def read(self) -> str:
        return self.source.read_text(encoding="utf-8")


class Site:
    """The pages of the repository and their places on the site."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}  # by place
        for path in sorted((ROOT / "docs").rglob("*")):
            if path.is_file() and EXCLUDED not in path.parents:
                self._add(path, path.relative_to(ROOT / "docs").as_posix())
        for source, place in PUBLISHED.items():
            self._add(ROOT / source, place)
        for folder in ("examples", "deploy"):
            for path in sorted((ROOT / folder).iterdir()):
                if path.is_file():
                    self._add(path, path.relative_to(ROOT).as_posix())
        self._places = {page.source: page.place for page in self.pages.values()}

    def _add(self, source: Path, place: str) -> None:
        self.pages[place] = Page(source, place)

    def run(self, folder: Path) -> None:
        """Run every page that has something to run; pictures that it draws are copied beside it."""
        pages_to_run = []
        for page in self.pages.values():
            if page.is_markdown and any(block.runs for block in pages.blocks(page.read())):
                pages_to_run.append(page)
        pages_to_run.sort(key=lambda page: "tutorials" not in page.place)  # the long ones first
        digest = sources_digest()
        with ThreadPoolExecutor(2) as pool:
            results = pool.map(lambda page: run_cached(page, digest), pages_to_run)
            for page, (printed, drawn) in zip(pages_to_run, results, strict=True):
                page.printed = printed
                for picture in sorted(drawn.glob("*.png")):
                    copy(picture, folder / f"{page.place.removesuffix('.md')}-{picture.name}")

    def write(self, folder: Path, *, with_pictures: bool) -> None:
        """Write all files of the site."""
        for page in self.pages.values():
            if page.is_markdown:
                text = self.render(page, with_pictures=with_pictures)
                target = folder / page.place
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
            else:
                copy(page.source, folder / page.place)

    def render(self, page: Page, *, with_pictures: bool) -> str:
        """The Markdown of a page: outputs, included files, pictures, generated tables, links of the site."""
        text = with_output(page.read(), page.printed)
        text = re.sub(
            r"^( *)<!-- include: (\S+) -->",
            lambda found: code_block(found[2], found[1]),
            text,
            flags=re.MULTILINE,
        )
        if with_pictures:  # the page's own code has drawn them
            name = os.path.basename(page.place).removesuffix(".md")
            text = re.sub(r"<!-- picture: (\S+), (.*?) -->", rf"![\2]({name}-\1)", text)
        text = re.sub(
            r"<!-- table: (\S+) -->",
            lambda found: csv_table(page.source.parent / found[1]),
            text,
        )
        for mark, generate in GENERATED.items():
            if f"<!-- {mark} -->" in text:
                text = text.replace(f"<!-- {mark} -->", generate())
        parts = _FENCE.split(text)
        for index in range(0, len(parts), 2):  # text between blocks of code
            if re.search(r"^ *```", parts[index], re.MULTILINE):
                raise ValueError(f"{page.place}: a block of code is not closed.")
            parts[index] = _PICTURE.sub(r"[\g<0>](\1)", parts[index])
            parts[index] = _LINK.sub(lambda found: self._site_link(found, page), parts[index])
        text = "".join(parts)
        return HOME + text if page.place == "index.md" else text

    def _site_link(self, found: re.Match[str], page: Page) -> str:
        """A link by a path in the repository, as a link of the site."""
        target = found[2]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = Path(os.path.normpath(page.source.parent / target))
        if path not in self._places:
            return found[0]  # not on the site: the build reports it
        relative = os.path.relpath(self._places[path], os.path.dirname(page.place) or ".")
        return f"{found[1]}{relative}{found[3] or ''}{found[4]}"

    def write_llms(self, folder: Path) -> None:
        """Write llms.txt and llms-full.txt: the pages in the order of the navigation."""
        settings = CONFIG.read_text(encoding="utf-8")
        name, description = re.findall(r"^site_(?:name|description): (.+)$", settings, re.M)
        index = [f"# {name}", "", f"> {description}", ""]
        texts = []
        for place in re.findall(r"(\S+\.md)$", settings.partition("\nnav:")[2], re.M):
            text = (folder / place).read_text(encoding="utf-8").removeprefix(HOME)
            address = place.removesuffix("md") + "html"
            address = re.sub(r"README\.html$", "index.html", address)
            title = re.findall(r"^# (.+)$", text, re.M)[0]
            index.append(f"- [{title}]({address}): {summary(text)}")
            if not place.startswith(("results/", "reference/api/")):
                texts.append(f"<!-- {address} -->\n{text}")
        (folder / "llms.txt").write_text("\n".join(index) + "\n", encoding="utf-8")
        (folder / "llms-full.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def sources_digest() -> bytes:
    """A digest of everything that the code of a page may use."""
    sources = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "src").rglob("*.toml"),
        *(ROOT / "examples").glob("*.*"),
    ]
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.digest()


def run_cached(page: Page, digest: bytes) -> tuple[list[str], Path]:
    """What the blocks of a page print, and the folder they ran in; kept until page or sources change."""
    key = hashlib.sha256(digest + page.read().encode()).hexdigest()[:16]
    folder = CACHE / page.place.replace("/", "-") / key
    cached = folder / "printed.json"
    if not cached.exists():
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
        cached.write_text(json.dumps(pages.run_page(page.source, folder)))
    printed: list[str] = json.loads(cached.read_text())
    return printed, folder


def with_output(markdown: str, printed: list[str]) -> str:
    """The page with what every block printed after it."""
    if not printed:
        return markdown
    found = pages.blocks(markdown)
    for block, text in reversed(list(zip(found, printed, strict=True))):
        if text.strip():
            lines = ["", "```{ .text .output }", *text.rstrip().splitlines(), "```", ""]
            shown = "\n".join(block.indent + line for line in lines)
            markdown = markdown[: block.end] + "\n" + shown + markdown[block.end :]
    return markdown


def code_block(source: str, indent: str) -> str:
    """A file of the repository as a code block, with the indentation of its box."""
    path = ROOT / source
    language = {".py": "python", ".toml": "toml"}.get(path.suffix, "text")
    block = f'```{language} title="{source}"\n{path.read_text(encoding="utf-8").rstrip()}\n```'
    return textwrap.indent(block, indent)


def summary(text: str) -> str:
    """The first sentence of a page, without marks."""
    plain = re.sub(r"<!--.*?-->", "", _FENCE.sub("", text), flags=re.DOTALL)
    plain = re.sub(r"^#.*$|\*\*", "", plain, flags=re.MULTILINE)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    paragraphs = [part.strip() for part in plain.split("\n\n")]
    prose = (part for part in paragraphs if part and part[0] not in "|!<:?-")
    first = " ".join(next(prose, "").split())
    return re.split(r"(?<=[.?!])\s", first)[0]


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def main() -> None:
    folder = Path(sys.argv[1])
    runs = os.environ.get("RUN", "1") != "0"
    shutil.rmtree(folder, ignore_errors=True)
    site = Site()
    if runs:
        site.run(folder)
    site.write(folder, with_pictures=runs)
    history.draw(folder / "results" / "history.png")
    site.write_llms(folder)


if __name__ == "__main__":
    main()

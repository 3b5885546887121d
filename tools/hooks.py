"""What `make docs` does beyond mkdocs: run the pages, publish files from outside docs/, make links fit.

Pages of the repository link each other by paths in the repository, so that they can be read there, too. Here
such links become those of the site. Comments that only the site reads:

    <!-- include: examples/lora.py -->       the file, as a code block
    <!-- picture: accuracy.png, words -->    a picture that the page's own code has drawn
    <!-- table: results.csv -->              a CSV file beside the page, as a table
    <!-- commands -->                        all commands with their options
    <!-- metrics -->                         all metrics
    <!-- train options -->                   all options of train and compare
    <!-- method classes -->                  all methods: their updates, hyperparameters, classes

The site also gets llms.txt, a list of its pages for language models, and llms-full.txt with their text.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import pages
from commands import commands
from tables import csv_table, method_classes, metrics, train_options

ROOT = pages.ROOT
CACHE = ROOT / "build" / "pages"
# Pages and files from outside docs/, and where they are on the site.
PUBLISHED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/results/README.md": "speed.md",
    "benchmarks/results/growth.png": "growth.png",
}
PUBLISHED |= {
    str(path.relative_to(ROOT)): str(path.relative_to(ROOT))
    for folder in ("examples", "deploy")
    for path in sorted((ROOT / folder).iterdir())
    if path.is_file()
}
_SITE = {place: source for source, place in PUBLISHED.items()}
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_log = logging.getLogger(
    "mkdocs.hooks.pages"
)  # warnings of mkdocs' own loggers fail a strict build
_printed: dict[str, list[str]] = {}
_order: list[str] = []  # of the pages in the navigation
_texts: dict[str, tuple[str, str, str]] = {}  # of each page: its place on the site, title, text
RUN_PAGES = os.environ.get("RUN", "1") != "0"  # make docs RUN=0: a fast build that runs no page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside docs/, then run every page that has something to run."""
    for source, place in PUBLISHED.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    if not RUN_PAGES:
        return files
    todo = [
        file
        for file in files.documentation_pages()
        if any(block.runs for block in pages.blocks(text_of(file)))
    ]
    todo.sort(key=lambda file: "tutorials" not in file.src_uri)  # the long ones first
    with ThreadPoolExecutor(2) as pool:
        for file, (printed, folder) in zip(todo, pool.map(ran, todo), strict=True):
            _printed[file.src_uri] = printed
            for picture in sorted(folder.glob("*.png")):
                place = os.path.join(os.path.dirname(file.src_uri), file.name + "-" + picture.name)
                files.append(File.generated(config, place, abs_src_path=str(picture)))
    return files


def ran(file: File) -> tuple[list[str], Path]:
    """What the blocks of a page print, and the folder they ran in; kept until page or sources change."""
    sources = sorted(
        [
            *(ROOT / "src").rglob("*.py"),
            *(ROOT / "src").rglob("*.toml"),
            *(ROOT / "examples").glob("*.*"),
        ]
    )
    digest = hashlib.sha256(text_of(file).encode())
    for source in sources:
        digest.update(source.read_bytes())
    folder = CACHE / file.src_uri.replace("/", "-") / digest.hexdigest()[:16]
    kept = folder / "printed.json"
    if not kept.exists():
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
        kept.write_text(json.dumps(pages.run_page(Path(file.abs_src_path or ""), folder)))
    printed: list[str] = json.loads(kept.read_text())
    return printed, folder


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Outputs, includes, pictures and links."""
    del config
    if page.file.src_uri == "index.md":  # the home page has the whole width
        page.meta["hide"] = ["navigation", "toc"]
    text = with_output(markdown, _printed.get(page.file.src_uri, []))
    text = re.sub(
        r"^( *)<!-- include: (\S+) -->", lambda found: code(found[2], found[1]), text, flags=re.M
    )
    if RUN_PAGES:  # pictures are drawn by the page's own code
        picture = rf"![\2]({page.file.name}-\1)"
        text = re.sub(r"<!-- picture: (\S+), (.*?) -->", picture, text)
    folder = ROOT / "docs" / os.path.dirname(page.file.src_uri)
    text = re.sub(r"<!-- table: (\S+) -->", lambda found: csv_table(folder / found[1]), text)
    for mark, made in (
        ("commands", commands),
        ("metrics", metrics),
        ("method classes", method_classes),
        ("train options", train_options),
    ):
        if f"<!-- {mark} -->" in text:
            text = text.replace(f"<!-- {mark} -->", made())
    parts = _FENCE.split(text)
    parts[::2] = [
        _LINK.sub(lambda found: linked(found, page.file, files), part) for part in parts[::2]
    ]
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Warn of a page that lost headings: a block of code that is not closed swallows them."""
    del config, files
    _texts[page.file.src_uri] = (page.file.dest_uri, str(page.title), page.markdown or "")
    outside = "".join(_FENCE.split(page.markdown or "")[::2])
    written, shown = len(re.findall(r"^## ", outside, re.M)), html.count("<h2")
    if shown < written:
        _log.warning(f"{page.file.src_uri}: {shown} of {written} headings are shown.")


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Remember the order of the pages."""
    del config, files
    _order.extend(page.file.src_uri for page in nav.pages)


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt and llms-full.txt."""
    index = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    texts = []
    for source in _order:
        place, title, text = _texts[source]
        index.append(f"- [{title}]({place}): {summary(text)}")
        if not source.startswith(("results/", "reference/api/")):
            texts.append(f"<!-- {place} -->\n{text}")
    folder = Path(config.site_dir)
    (folder / "llms.txt").write_text("\n".join(index) + "\n", encoding="utf-8")
    (folder / "llms-full.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def summary(text: str) -> str:
    """The first sentence of a page, without marks."""
    plain = re.sub(r"<!--.*?-->", "", _FENCE.sub("", text), flags=re.DOTALL)
    plain = re.sub(r"^#.*$|\*\*", "", plain, flags=re.MULTILINE)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    paragraphs = [part.strip() for part in plain.split("\n\n")]
    prose = (part for part in paragraphs if part and part[0] not in "|!<:?-")
    first = " ".join(next(prose, "").split())
    return re.split(r"(?<=[.?!])\s", first)[0]


def with_output(markdown: str, printed: list[str]) -> str:
    """The page with what every block printed after it."""
    found = pages.blocks(markdown)
    if not printed:
        return markdown
    for block, text in reversed(list(zip(found, printed, strict=True))):
        if text.strip():
            lines = ["", "```{ .text .output }", *text.rstrip().splitlines(), "```", ""]
            shown = "\n".join(block.indent + line for line in lines)
            markdown = markdown[: block.end] + "\n" + shown + markdown[block.end :]
    return markdown


def code(source: str, indent: str) -> str:
    """A file of the repository as a code block, with the indentation of its box."""
    path = ROOT / source
    language = {".py": "python", ".toml": "toml"}.get(path.suffix, "text")
    block = f'```{language} title="{source}"\n{path.read_text(encoding="utf-8").rstrip()}\n```'
    return textwrap.indent(block, indent)


def linked(found: re.Match[str], file: File, files: Files) -> str:
    """A link by a path in the repository, as a link of the site."""
    target = found[2]
    if "://" in target or target.startswith("mailto:"):
        return found[0]
    here = ROOT / _SITE.get(file.src_uri, f"docs/{file.src_uri}")
    path = Path(os.path.normpath(here.parent / target))
    if not path.is_relative_to(ROOT):
        return found[0]
    source = str(path.relative_to(ROOT))
    place = PUBLISHED.get(source, source.removeprefix("docs/"))
    if files.get_file_from_path(place) is None:
        place = source  # not on the site: mkdocs reports it
    target = os.path.relpath(place, os.path.dirname(file.src_uri) or ".")
    return f"{found[1]}{target}{found[3] or ''}{found[4]}"


def text_of(file: File) -> str:
    return Path(file.abs_src_path or "").read_text(encoding="utf-8")

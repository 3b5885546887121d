"""The pages: every block of code is run when the site is built or says why not, and links lead somewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tools import links, pages

ROOT = Path(__file__).parents[1]
# Pages under results are records of runs that took hours; tools/results.py writes them, with notes inside.
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *(ROOT / "docs").rglob("*.md")]
    if path.parent.name != "notes"
)
RUNNABLE = [page for page in PAGES if page.parts[:2] != ("docs", "results")]
TICKS = "`" * 3


@pytest.mark.parametrize("page", RUNNABLE, ids=str)
def test_every_block_runs_or_says_why_not(page: Path) -> None:
    found = pages.blocks((ROOT / page).read_text(encoding="utf-8"))
    assert not [
        f"{page}:{each.line}"
        for each in found
        if each.is_code and not each.runs and not each.excuse
    ]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_between_pages_lead_to_files(page: Path) -> None:
    """As they are read in the repository; those of the site are checked by tools/links.py."""
    text = re.sub(
        rf"^ *{TICKS}.*?^ *{TICKS}$|`[^`\n]+`",
        "",
        (ROOT / page).read_text("utf-8"),
        flags=re.DOTALL | re.M,
    )
    targets = [
        found for found in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text) if "://" not in found
    ]
    assert not [each for each in targets if not (ROOT / page).parent.joinpath(each).exists()]


PAGE = f"""# A page

<!-- setup
n = 2
-->
{TICKS}toml title="a.toml"
x = 1
{TICKS}

{TICKS}sh
cat a.toml
{TICKS}

- inside a list:
  {TICKS}python
  print(n + 1)
  {TICKS}

<!-- not run: it would fail -->
{TICKS}sh
exit 1
{TICKS}
{TICKS}text
not code
{TICKS}
"""


def test_blocks_run_in_order_in_one_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = pages.blocks(PAGE)
    assert [each.language for each in found] == ["setup", "toml", "sh", "python", "sh", "text"]
    assert [PAGE.splitlines()[each.line - 1][:3].strip() for each in found[:4]] == [
        "<!-",
        TICKS,
        TICKS,
        TICKS[:1],
    ]
    assert pages.run_blocks(PAGE, "page.md") == ["", "", "x = 1\n", "3\n", "", ""]
    with pytest.raises(SystemExit, match=r"page\.md:1: exit code 3"):
        pages.run_blocks(f"{TICKS}sh\nexit 3\n{TICKS}\n", "page.md")
    assert os.listdir() == ["a.toml"]


def test_one_version_everywhere() -> None:
    """That of pyproject.toml; the newest release in the changelog has it, with a date."""
    (version,) = re.findall(
        r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    entries = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    newest = next(entry for entry in entries if entry != "Unreleased")
    assert re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest)
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#end">b</a><a href="#top">up</a>'
    )
    (tmp_path / "b.html").write_text('<p id="end"></p><img src="a.png"><a href="a.html#end">a</a>')
    assert links.dead(tmp_path) == [
        "b.html: a.png is not there",
        "b.html: a.html#end has no such anchor",
    ]

"""The pages: every block of code is run when the site is built or says why not, and links lead somewhere."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest

from tests.test_layers import ORDER
from tools import links, pages, write_site

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


def test_notes_are_in_the_pages_of_results() -> None:
    """`tools/results.py` puts notes into the pages; a note changed alone would be lost."""
    results = ROOT / "docs" / "results"
    notes = sorted((results / "notes").glob("*.md"))
    assert notes
    for note in notes:
        page = (results / note.name).read_text("utf-8")
        assert note.read_text("utf-8").strip() in page, note.name


def test_each_row_of_the_failure_table_can_be_repeated() -> None:
    """Its figures are typed from a run; what repeats them must exist."""
    sources = [path.read_text("utf-8") for path in (ROOT / "tests" / "peer").rglob("*.py")]
    functions = set(re.findall(r"def ((?:test|row)_\w+)\(", "\n".join(sources)))
    with (ROOT / "docs" / "results" / "peer-failures.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 35
    assert {row["repeated by"].strip("`") for row in rows} <= functions


def test_the_table_of_folders_is_that_of_the_import_order() -> None:
    page = (ROOT / "docs/explanation/how-a-run-works.md").read_text("utf-8")
    table = page.partition("| folder | purpose | to add |")[2].partition("\n\n")[0]
    named = []
    for row in table.splitlines()[2:]:
        named += re.findall(r"`(\w+)/?`", row.split(" | ")[0])
    assert named == [name for name in ORDER if name not in ("__main__", "__init__")]


def test_methods_have_step_sizes() -> None:
    """One word for one thing; the glossary has the names that others use."""
    with_rates = [page for page in PAGES if "learning rate" in (ROOT / page).read_text("utf-8")]
    assert [page.name for page in with_rates] == ["CHANGELOG.md", "glossary.md"]
    for path in sorted((ROOT / "src").rglob("*.py")):  # messages break their lines anywhere
        text = " ".join(path.read_text("utf-8").replace('"', " ").split())
        assert "learning rate" not in text, path


@pytest.mark.parametrize("page", RUNNABLE, ids=str)
def test_code_fits_the_page(page: Path) -> None:
    """Lines of at most 88 columns: longer ones are cut at the right edge of the site."""
    wide = []
    for block in pages.blocks((ROOT / page).read_text(encoding="utf-8")):
        lines = block.text.splitlines()
        wide += [line for line in lines if len(line) > 88 and block.language not in ("", "setup")]
    assert not wide


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


def test_a_page_that_takes_too_long_is_ended_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "slow.md"
    page.write_text(f"{TICKS}python\nimport time\n\ntime.sleep(600)\n{TICKS}\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "LIMIT", 0.2)
    with pytest.raises(RuntimeError) as caught:
        pages.run_page(page, tmp_path)
    assert str(caught.value) == "slow.md takes more than 0.2 s; SPODGT_PAGE_SECONDS sets the limit."


def test_without_running_the_site_has_its_pages_and_no_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make docs RUN=0`: all pages, their code, and no page runs."""

    def refuse(page: Path, folder: Path) -> list[str]:
        raise AssertionError(f"{page} was run")

    target = tmp_path / "site"
    monkeypatch.setenv("RUN", "0")
    monkeypatch.setattr(pages, "run_page", refuse)
    monkeypatch.setattr("sys.argv", ["write_site.py", str(target)])
    write_site.main()
    written = {path.relative_to(target).as_posix() for path in target.rglob("*.md")}
    assert written == {place for place in write_site.Site().pages if place.endswith(".md")}
    tutorial = (target / "tutorials/peers.md").read_text("utf-8")
    assert "spodgt peer init" in tutorial
    assert ".output" not in tutorial
    assert (target / "llms.txt").stat().st_size > 1000


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


def test_links_and_generated_tables_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "index.md").write_text(
        f"[readme]({os.path.relpath(ROOT / 'README.md', tmp_path)}#top)\n\n"
        f"<!-- table: a.csv -->\n\n{TICKS}text\n[a](b.md)\n{TICKS}\n"
    )
    page = write_site.Page(tmp_path / "index.md", "howto/index.md")
    lines = write_site.Site().render(page, with_pictures=True).splitlines()
    assert lines[0] == "[readme](../index.md#top)"
    assert lines[2:5] == ["| x | y |", "| --- | --- |", "| 1 | 2 |"]
    assert "[a](b.md)" in lines  # code is left as it is


def test_pictures_lead_to_themselves(tmp_path: Path) -> None:
    """On a phone, wide pictures are readable only when they are opened alone."""
    text = "![a](x.png) and [![b](y.png)](b.md)\n\n| ![c](z.png) |\n|---|\n"
    (tmp_path / "a.md").write_text(text)
    shown = write_site.Site().render(write_site.Page(tmp_path / "a.md", "a.md"), with_pictures=True)
    expected = text.replace("![a](x.png)", "[![a](x.png)](x.png)")
    assert shown == expected.replace("![c](z.png)", "[![c](z.png)](z.png)")


def test_a_block_that_is_not_closed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(f"{TICKS}python\nx = 1\n\n## Lost\n")
    page = write_site.Page(tmp_path / "a.md", "a.md")
    with pytest.raises(ValueError, match=r"a\.md: a block of code is not closed"):
        write_site.Site().render(page, with_pictures=False)


def test_every_page_is_in_the_navigation_or_a_result() -> None:
    """Pages under results are linked from their overview."""
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    listed = re.findall(r"(\S+\.md)$", navigation, re.M)
    pages_of_site = [place for place in write_site.Site().pages if place.endswith(".md")]
    assert set(listed) <= set(pages_of_site)
    missing = [place for place in pages_of_site if place not in listed]
    assert all(place.startswith(("results/", "deploy/", "examples/")) for place in missing)
    assert len(listed) == len(set(listed))

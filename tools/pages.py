"""Code blocks of the pages: which there are, and what they print when they are run one after the other.

    python tools/pages.py PAGE      # run the blocks of one page in a new folder and show what they print

The first word after the fence decides. `python` is executed, in one namespace for the page; `sh` is given to
bash; `toml` is read as the file of an experiment; a block with `title="name"` is written to the file of that
name instead. `text` is no code. Other blocks that do not run have the reason in the line before them:

    <!-- not run: needs two hosts -->

`<!-- setup … -->` is Python that runs at its place and is not shown.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Seconds for the blocks of one page: a limit against pages that hang, not a measure of speed.
LIMIT = float(os.environ.get("SPODGT_PAGE_SECONDS", "600"))
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<excuse>.+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<more>[^\n`]*)\n(?P<text>.*?)^(?P=indent)``` *$"
    r"|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, or hidden setup, of a page."""

    line: int
    end: int  # position after it in the page
    indent: str
    language: str  # "setup" for hidden Python
    title: str | None  # the file it is written to
    text: str
    excuse: str | None  # why it is not run

    @property
    def runs(self) -> bool:
        return self.excuse is None and (
            self.title is not None or self.language in ("python", "sh", "toml", "setup")
        )

    @property
    def is_code(self) -> bool:
        return self.language != "text"


def blocks(page: str) -> list[Block]:
    """All blocks of the text of a page, in their order."""
    found = []
    for match in _BLOCK.finditer(page):
        line, setup = page.count("\n", 0, match.start()) + 1, match["setup"]
        if setup is not None:
            found.append(Block(line, match.end(), "", "setup", None, setup, None))
            continue
        title = re.search(r'title="([^"]+)"', match["more"])
        text = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        found.append(
            Block(
                line,
                match.end(),
                match["indent"],
                match["language"],
                title and title[1],
                text,
                match["excuse"],
            )
        )
    return found


def run_blocks(page: str, name: str) -> list[str]:
    """Run what runs, in the current folder; what each block printed. Ends with a sentence if one fails."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for block in blocks(page):
        if not block.runs:
            printed.append("")
        elif block.title is not None:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, encoding="utf-8")
            printed.append("")
        elif block.language == "toml":
            Path("page.toml").write_text(block.text, encoding="utf-8")
            importlib.import_module("spodgt").Experiment.read("page.toml")
            printed.append("")
        elif block.language == "sh":
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", block.text],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                sys.exit(
                    f"{name}:{block.line}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
                )
            printed.append(done.stdout)
        else:
            out = io.StringIO()
            source = "\n" * block.line + block.text  # so that tracebacks have true lines
            code = compile(source, name, "exec", dont_inherit=True)
            with contextlib.redirect_stdout(out):
                exec(code, names)
            printed.append(out.getvalue() if block.language == "python" else "")
    return printed


def run_page(page: Path, folder: Path) -> list[str]:
    """The blocks of a page in a process of its own, with `folder` as current folder: what each printed."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {
        "PATH": tools,
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--in", str(folder), str(page)]
    with subprocess.Popen(
        command, stdout=-1, stderr=-1, text=True, env=env, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"{page.relative_to(ROOT)} takes more than {LIMIT:g} s; "
                "SPODGT_PAGE_SECONDS sets the limit."
            ) from None
        finally:  # whatever the page has started ends with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise RuntimeError(f"{page.relative_to(ROOT)} does not run:\n{err[-3000:]}")
    printed: list[str] = json.loads(out.splitlines()[-1])
    return printed


def main() -> None:
    if sys.argv[1] == "--in":
        page = Path(sys.argv[3])
        os.chdir(sys.argv[2])
        sys.path.insert(0, "")
        print(json.dumps(run_blocks(page.read_text(encoding="utf-8"), page.name)))
        return
    page = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        for block, text in zip(
            blocks(page.read_text(encoding="utf-8")), run_page(page, Path(folder)), strict=True
        ):
            print(
                f"--- line {block.line}, {block.language}\n{block.text.rstrip()}\n>>>\n{text.rstrip()}"
            )


if __name__ == "__main__":
    main()

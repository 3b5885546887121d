"""The ratios of all runs of benchmarks/speed.py, one JSON object per line of results/history.jsonl.

Ratios compare two things measured in one run on one machine, so they can be compared between runs better than
seconds can. A line has the date, the commit, the version, the machine, the section, and the ratios of each
workload.
"""

from __future__ import annotations

import json
import re
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import spodgt

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "benchmarks" / "results" / "history.jsonl"
RATIOS = (
    "times_loop",
    "times_eager",
    "times_vmap",
    "times_undeclared",
    "times_roofline",
    "of_copy",
    "of_quiet",
)


def facts(machine: dict[str, Any]) -> dict[str, Any]:
    """When, with what and on which machine something is measured now.

    Args:
        machine: `cpu`, `threads` and `torch`, as measured by speed.py.
    """
    host = {key: machine[key] for key in ("cpu", "threads", "torch")}
    return {"date": date.today().isoformat(), "commit": commit(), "version": version(), **host}


def append(
    section: str, rows: list[dict[str, Any]], machine: dict[str, Any], path: Path = HISTORY
) -> None:
    """Append the ratios of a section that was measured just now.

    Args:
        section: The name of the section.
        rows: Its rows, each with a `workload`; rows and sections without ratios are left out.
        machine: `cpu`, `threads` and `torch`, as measured by speed.py.
        path: The file to append to.
    """
    ratios = {}
    for row in rows:
        values = {key: round(row[key], 4) for key in RATIOS if row.get(key) is not None}
        if values:
            ratios[row["workload"]] = values
    if ratios:
        entry = {**facts(machine), "section": section, "ratios": ratios}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def commit() -> str:
    """The commit of this checkout, with a plus sign if files other than results differ from it."""
    revision = _git("rev-parse", "--short", "HEAD")
    if not revision:
        return "unknown"
    changes = _git("status", "--porcelain", "--", ":/", ":(top,exclude)benchmarks/results")
    return f"{revision}+" if changes else revision


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def version(changelog: Path = ROOT / "CHANGELOG.md") -> str:
    """The version of the package; "after 0.2.0" if the changelog begins with unreleased changes."""
    newest = re.search(r"^## (\S+)", changelog.read_text(encoding="utf-8"), re.MULTILINE)
    is_unreleased = newest is not None and newest[1] == "Unreleased"
    return f"after {spodgt.__version__}" if is_unreleased else spodgt.__version__

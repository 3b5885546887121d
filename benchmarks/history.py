"""The ratios of all runs of benchmarks/speed.py, one JSON object per line of results/history.jsonl.

Ratios compare two things measured in one run on one machine, so they can be compared between runs better than
seconds can. A line has the date, the commit, the machine, the section, and the ratios of each workload.
"""

from __future__ import annotations

import json
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

HISTORY = Path(__file__).parent / "results" / "history.jsonl"
RATIOS = ("times_loop", "times_eager", "times_roofline", "of_roofline", "of_copy", "of_quiet")


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
    entry = line(section, rows, machine, date.today().isoformat(), commit())
    if entry["ratios"]:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def line(
    section: str, rows: list[dict[str, Any]], machine: dict[str, Any], day: str, revision: str
) -> dict[str, Any]:
    """One line of the history."""
    ratios = {}
    for row in rows:
        values = {key: round(row[key], 4) for key in RATIOS if row.get(key) is not None}
        if values:
            ratios[row["workload"]] = values
    host = {key: machine[key] for key in ("cpu", "threads", "torch")}
    return {"date": day, "commit": revision, **host, "section": section, "ratios": ratios}


def commit() -> str:
    """The commit of this checkout, with a plus sign if files differ from it."""
    command = ["git", "describe", "--always", "--exclude", "*", "--dirty=+"]
    folder = Path(__file__).parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"

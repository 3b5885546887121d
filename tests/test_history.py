"""The performance history: runs of the benchmarks append to it, and the page draws it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import spodgt
from benchmarks import history
from tools import history as page

MACHINE = {"cpu": "a CPU", "threads": 2, "torch": "2.13.0", "gemm_gflops": 1.0}


def test_ratios_are_appended_with_machine_and_commit(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows: list[dict[str, Any]] = [
        {"workload": "svm", "times_loop": 40.00001, "rounds_per_s": 7.0},
        {"workload": "mlp"},
    ]
    history.append("svm", rows, MACHINE, path)
    history.append("memory", [{"workload": "memory", "states_mb": 3.0}], MACHINE, path)
    history.append("svm", [{"workload": "svm", "times_loop": 41.0}], MACHINE, path)
    first, second = map(json.loads, path.read_text("utf-8").splitlines())
    assert first["ratios"] == {"svm": {"times_loop": 40.0}}
    assert {key: first[key] for key in ("cpu", "threads", "torch", "section")} == {
        "cpu": "a CPU",
        "threads": 2,
        "torch": "2.13.0",
        "section": "svm",
    }
    assert first["commit"]
    assert first["version"] == history.version()
    assert second["ratios"]["svm"]["times_loop"] == 41.0
    assert [(each.workload, each.value) for each in page.read(path)] == [
        ("svm", 40.0),
        ("svm", 41.0),
    ]


def test_the_stored_history_is_complete_and_drawn(tmp_path: Path) -> None:
    stored = page.read()
    workloads = {each.workload for each in stored}
    assert len(workloads & set(page.DRAWN)) >= 5  # a renamed workload would end its line
    assert all(each.commit and each.cpu and each.value > 0 for each in stored)
    assert len(page.table().splitlines()) == 2 + len(workloads)
    page.draw(tmp_path / "history.png")
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")


def test_the_value_before_is_of_the_same_cpu() -> None:
    values = [("a", "Intel Xeon", 3.0), ("b", "AMD EPYC", 5.0), ("c", "Intel Xeon", 4.0)]
    measured = [page.Measurement("2026-11-17", *value[:2], "svm", value[2]) for value in values]
    assert page.table(measured).splitlines()[-1] == (
        "| svm | 3 | 4 | `c` | 2026-11-17 | Intel Xeon |"
    )
    assert page.table(measured[:2]).splitlines()[-1].startswith("| svm | – | 5 | `b` |")


def test_a_version_with_unreleased_changes_is_named(tmp_path: Path) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## Unreleased\n\n## 0.1 (2026-01-01)\n", "utf-8")
    assert history.version(changelog) == f"after {spodgt.__version__}"
    changelog.write_text("# Changelog\n\n## 0.1 (2026-01-01)\n", "utf-8")
    assert history.version(changelog) == spodgt.__version__


def test_the_page_of_speeds_is_written_from_its_numbers(tmp_path: Path) -> None:
    """`python benchmarks/speed.py --page` changes nothing: nobody has edited the page by hand."""
    shutil.copy(history.HISTORY.parent / "speed.json", tmp_path)
    command = [sys.executable, "benchmarks/speed.py", "--page", "--out", str(tmp_path)]
    subprocess.run(command, cwd=history.ROOT, check=True)
    written = (tmp_path / "README.md").read_text("utf-8")
    assert written == (history.HISTORY.parent / "README.md").read_text("utf-8")
    assert (tmp_path / "growth.png").exists()

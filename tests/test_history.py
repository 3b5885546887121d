"""The performance history: runs of the benchmarks append to it, and the page draws it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    assert second["ratios"]["svm"]["times_loop"] == 41.0
    assert [(each.workload, each.value) for each in page.read(path)] == [
        ("svm", 40.0),
        ("svm", 41.0),
    ]


def test_the_stored_history_is_complete_and_drawn(tmp_path: Path) -> None:
    stored = page.read()
    assert {each.workload for each in stored} >= set(page.DRAWN)
    assert all(each.commit and each.cpu and each.value > 0 for each in stored)
    assert len(page.table().splitlines()) == 2 + len({each.workload for each in stored})
    page.draw(tmp_path / "history.png")
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")

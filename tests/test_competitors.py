"""The page of the public benchmark: what is stored can be read, drawn and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import competitors
from benchmarks.competitors import Row, add, draw, page, reached, table, verdict

STORED = Path(competitors.__file__).parent / "results" / "competitors.json"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text())
    return found


def row(speed: float, label: str = "it") -> dict[str, Any]:
    return {
        "label": label,
        "versions": {"it": "1.0"},
        "gradients_per_s": [speed],
        "seconds_to_target": [None],
        "peak_mb": [100.0],
        "curve": [[0.1, 10, 0.5], [2.0, 200, 0.7]],
    }


def test_the_page_of_the_stored_results_is_the_one_in_the_docs(stored: dict[str, Any]) -> None:
    assert page(stored) == (competitors.DOCS / "benchmark.md").read_text(encoding="utf-8")


def test_every_row_is_there_measured_or_with_the_reason_why_not(stored: dict[str, Any]) -> None:
    for rows in stored["models"].values():
        assert list(rows) == list(competitors.ROWS)
        for one in rows.values():
            assert one.get("missing") or (min(one["gradients_per_s"]) > 0 and one["versions"])


def test_the_picture_is_drawn_from_what_is_stored(stored: dict[str, Any], tmp_path: Path) -> None:
    draw(stored, tmp_path / "one.png")
    draw(stored, tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert 10_000 < (tmp_path / "one.png").stat().st_size < 150_000


def test_the_verdict_names_the_fastest_that_computes_the_same() -> None:
    rows = {
        "spodgt": row(600.0),
        "loop": row(10.0, "a loop"),
        "decent-bench": row(20.0, "other"),
        "flower": row(500.0),
    }
    assert "other" in verdict(rows)
    assert "30× as fast" in verdict(rows)
    rows["spodgt"], rows["spodgt-25"] = row(590.0), row(800.0)
    assert "29.5× as fast" in verdict(rows)
    assert "25 of them at once 40×" in verdict(rows)
    rows["decent-bench"] = {"label": "other", "missing": "cannot be installed: no"}
    assert "a loop" in verdict(rows)


def test_a_missing_competitor_says_why_in_the_table() -> None:
    rows = {
        "spodgt": row(600.0),
        "decent-bench": {"label": "other", "missing": "needs Python 3.13"},
    }
    assert "| other | needs Python 3.13 | | | | |" in table(rows)
    assert any("70.0% after 2 s" in line for line in table(rows))


def test_repeats_add_up_and_the_curve_is_that_of_the_best() -> None:
    kept: dict[str, Any] = {}
    for speed, peak in ((5.0, 1.0), (9.0, 3.0), (7.0, 2.0)):
        curve = [[1.0, 2, 0.5], [speed, 3, 0.9]]
        one = {"gradients_per_s": speed, "versions": {}, "peak_mb": peak, "curve": curve}
        kept = add(Row("plain", "it", "this"), kept, one)
    assert kept["gradients_per_s"] == [5.0, 9.0, 7.0]
    assert kept["seconds_to_target"] == [5.0, 9.0, 7.0]
    assert kept["curve"][-1][0] == 9.0
    assert competitors.speed(kept) == 9.0


def test_accuracy_is_reached_at_the_first_time_it_is_high_enough() -> None:
    assert reached([[1.0, 1, 0.1], [2.0, 2, competitors.TARGET], [3.0, 3, 0.99]]) == 2.0
    assert reached([[1.0, 1, 0.1]]) is None


def test_all_get_the_same_work(tmp_path: Path) -> None:
    competitors.write_work(tmp_path)
    found = {path.name: dict(np.load(path)) for path in tmp_path.iterdir()}
    assert sorted(found) == ["linear-0.npz", "linear-1.npz", "perceptron-0.npz", "perceptron-1.npz"]
    for work in found.values():
        np.testing.assert_allclose(work["weights"].sum(0), 1, atol=1e-6)
        np.testing.assert_array_equal(work["weights"], work["weights"].T)
        np.testing.assert_array_equal(work["bounds"], np.arange(11) * 600)
    assert found["linear-1.npz"]["start"].shape == (7850,)
    assert found["perceptron-1.npz"]["start"].shape == (50890,)
    assert found["linear-0.npz"]["local_steps"] == 38


def test_a_run_of_some_rows_only_can_be_drawn(tmp_path: Path) -> None:
    results = {"cpu": "a machine", "seconds": 1.0, "models": {"perceptron": {"loop": row(10.0)}}}
    competitors.write(results, tmp_path)
    written = (tmp_path / "benchmark.md").read_text("utf-8")
    assert "| it | 10 | one run |  | 70.0% after 2 s | 100 |" in written
    assert "| it 1.0 |" in written  # what it was measured with

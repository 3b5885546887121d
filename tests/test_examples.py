"""The scripts of `examples/`, each in its small form: they run, and what they show is so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str) -> dict[str, float]:
    """What the script's `main` returns."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, float] = module.main(small=True)
    return found


def test_tabular() -> None:
    assert run("tabular")["f1"] > 0.5


def test_text() -> None:
    assert run("text_lstm")["accuracy"] > 0.8


def test_regression() -> None:
    assert run("regression")["r2"] > 0.5


def test_autoencoder() -> None:
    found = run("autoencoder")
    assert found["last"] < 0.8 * found["first"]


def test_adapters() -> None:
    found = run("lora")
    assert found["after"] < found["before"] / 20
    assert found["last"] > found["first"] + 0.2


def test_a_pretrained_model_starts_at_its_accuracy() -> None:
    found = run("pretrained")
    assert found["first"] == pytest.approx(found["before"], abs=1e-9)
    assert found["last"] > found["before"]


def test_personal_heads() -> None:
    found = run("personal_head")
    assert found["personal heads"] > 0.8 > found["one model for all"]


def test_the_snippets_of_the_page_on_own_data_run() -> None:
    text = (EXAMPLES.parent / "docs" / "own-data.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(snippet, names)
    assert (names["whole"].parameters, names["frozen"].parameters) == (83, 27)

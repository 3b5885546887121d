"""The scripts of `examples/`, each in its small form: they run, and what they show is so."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[[str], dict[str, float]]
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return lambda name: run_in(tmp_path, name)


def script(name: str) -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_in(folder: Path, name: str) -> dict[str, float]:
    """What the script's `main` returns; it draws, too."""
    module = script(name)
    found: dict[str, float] = module.main(small=True, picture=str(folder / "picture.png"))
    assert (folder / "picture.png").stat().st_size > 1000
    return found


def test_tabular(run: Run) -> None:
    assert run("tabular")["f1"] > 0.5


def test_text(run: Run) -> None:
    assert run("text_lstm")["accuracy"] > 0.8


def test_regression(run: Run) -> None:
    assert run("regression")["r2"] > 0.5


def test_autoencoder(run: Run) -> None:
    found = run("autoencoder")
    assert found["last"] < 0.8 * found["first"]


def test_adapters(run: Run) -> None:
    found = run("lora")
    assert found["after"] < found["before"] / 20
    assert found["last"] > found["first"] + 0.2


def test_a_pretrained_model_starts_at_its_accuracy(run: Run) -> None:
    found = run("pretrained")
    assert found["first"] == pytest.approx(found["before"], abs=1e-9)
    assert found["last"] > found["before"]


def test_personal_heads(run: Run) -> None:
    found = run("personal_head")
    assert found["personal heads"] > 0.8 > found["one model for all"]


def test_a_million_clients(run: Run) -> None:
    found = run("million_clients")
    assert found["last"] > found["first"] + 0.05


def test_the_bound_vanishes(run: Run) -> None:
    found = run("vanishing_bound")
    assert found["memory, full batches"] < found["fixed"]


def test_cells_of_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """All code cells, with a shorter run; what they use is not deprecated."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = json.loads((EXAMPLES / "compare.ipynb").read_text("utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for source in cells:
            lines = [line for line in source.splitlines() if not line.startswith("%")]
            short = "\n".join(lines).replace("delay=600", "delay=40")
            exec(compile(short, "compare.ipynb", "exec"), names)
    assert "delay=600" in cells[0]
    assert names["result"].frame["delay"].max() < 100
    assert set(names["clients"]["method"]) == {"spod-gt"}


def test_the_notebook_is_saved_with_its_outputs() -> None:
    path = EXAMPLES / "compare.ipynb"
    assert path.stat().st_size < 300_000
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"]
            assert all(output["output_type"] != "error" for output in cell["outputs"])

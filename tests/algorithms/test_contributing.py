"""CONTRIBUTING.md says what it takes to add a method: a file, a line, an export. Here it is done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from torch.testing import assert_close

from spodgt.algorithms import ALGORITHMS, method
from spodgt.problems import Quadratic
from tests.helpers import final, make_run, ring_of

ROOT = Path(__file__).parents[2]
COPIED = (
    "src",
    "tests",
    "tools",
    "docs/reference/methods.md",
    "docs/reference/literature.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
)
REFERENCE = """

def test_alone() -> None:
    bench = Bench("alone", 0.5, 0.5)
    x, out = bench.x0.copy(), [bench.x0]
    for k in range(ROUNDS):
        v, _, _ = bench.active(k)
        x = np.stack([x[i] - STEP * v[i] * bench.grad(i, x[i]) for i in range(5)])
        out.append(x)
    bench.agrees(out)
"""


def example() -> str:
    (text,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL
    )
    return str(text)


def with_the_example(folder: Path) -> None:
    """A copy of the repository with the example's file, list entry, export and second version."""
    for name in COPIED:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target)  # with the compiled loops
        else:
            shutil.copy2(ROOT / name, target)
    (folder / "src/spodgt/algorithms/alone.py").write_text(example(), "utf-8")
    with (folder / "tests/algorithms/test_algorithms_reference.py").open(
        "a", encoding="utf-8"
    ) as file:
        file.write(REFERENCE)
    package = folder / "src/spodgt"
    insert(package / "algorithms/registry.py", r"(METHODS = \([^)]*)\)", r'\1    "alone",\n)')
    insert(package / "__init__.py", r"(_METHODS = \{[^}]*)\}", r'\1    "alone": "Alone",\n}')
    stub = package / "__init__.pyi"
    line = "from spodgt.algorithms.alone import Alone"
    insert(stub, r"(?m)^(from spodgt.algorithms.ab import)", rf"{line}\n\1")
    insert(stub, r"(__all__ = \[)", r'\1\n    "Alone",')


def insert(path: Path, pattern: str, replacement: str) -> None:
    text, places = re.subn(pattern, replacement, path.read_text("utf-8"))
    assert places == 1
    path.write_text(text, "utf-8")


def run_tests(folder: Path, *options: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/algorithms",
        "-x",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    command += ["--ignore", "tests/algorithms/test_contributing.py"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def test_the_example_keeps_the_contract(tmp_path: Path) -> None:
    """The tests of the new method, and those of the list, the page and the references."""
    with_the_example(tmp_path)
    run_tests(
        tmp_path,
        "tests/test_layers.py",
        "-k",
        "alone or public_names or (test_algorithms_checks and not refus and not runs_or_names)",
    )


@pytest.mark.slow
def test_the_example_leaves_all_tests_green(tmp_path: Path) -> None:
    with_the_example(tmp_path)
    run_tests(tmp_path)


def test_the_skeleton_works_and_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/howto")
    Skeleton = import_module("new_method").Skeleton
    assert Skeleton.name not in ALGORITHMS
    problem, network = Quadratic.random(5, 2, seed=1), ring_of(5)
    ours = final(make_run(Skeleton(0.1), problem, network), 10)
    assert ours._fields == Skeleton.traits.state
    assert_close(ours.x, final(make_run(method("dsgd", step_size=0.1), problem, network), 10).x)

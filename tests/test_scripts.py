"""Scripts outside the package import names that exist."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("benchmarks", "deploy", "docs", "examples", "tests", "tools")
OTHER_VERSIONS = {("benchmarks/by_turns.py", "spodgt.runtimes.virtual.world")}
NEEDS = {"spodgt.integrations.flower": "flwr"}


def imported_names(folder: str) -> Iterator[tuple[str, str, str]]:
    """File, module of this package and name, for each name that a script imports from the package."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spodgt"):
                for alias in node.names:
                    yield str(path.relative_to(ROOT)), str(node.module), alias.name


def exists(module: str, name: str) -> bool:
    """Whether a module has an attribute or a submodule of this name."""
    try:
        return (
            hasattr(importlib.import_module(module), name)
            or find_spec(f"{module}.{name}") is not None
        )
    except ModuleNotFoundError:  # there is no such module, or it is no package
        return False


def test_a_missing_name_is_found() -> None:
    assert exists("spodgt", "train")
    assert exists("spodgt", "peer")
    assert not exists("spodgt.report.page", "Page")
    assert not exists("spodgt.virtual", "World")


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("folder", FOLDERS)
def test_scripts_import_names_that_exist(folder: str) -> None:
    missing = []
    for file, module, name in imported_names(folder):
        package = NEEDS.get(module)
        is_absent = package is not None and find_spec(package) is None
        if is_absent or (file, module) in OTHER_VERSIONS:
            continue
        if not exists(module, name):
            missing.append(f"{file}: {module}.{name}")
    assert not missing

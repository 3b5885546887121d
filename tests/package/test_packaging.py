"""Lists of versions agree: pyproject.toml, uv.lock, constraints.txt, the examples and the workflow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PUBLIC_INDEX = "https://pypi.org/simple"
PUBLIC_FILES = "files.pythonhosted.org"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_SCRIPT = re.compile(r"^# /// script\n(?P<body>(?:#.*\n)+?)# ///$", re.MULTILINE)


def read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def locked_versions() -> dict[str, set[str]]:
    """Versions by package name; a package may have one version for each Python."""
    versions: dict[str, set[str]] = {}
    for package in read_toml("uv.lock")["package"]:
        if package["name"] != "spodgt":
            versions.setdefault(package["name"], set()).add(package["version"])
    return versions


def test_constraints_are_the_versions_of_the_lock() -> None:
    versions: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        requirement = Requirement(line)
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        versions.setdefault(requirement.name, set()).add(pin.version)
    assert versions == locked_versions(), "run make lock"


def test_the_lock_names_the_public_index_only() -> None:
    hosts: set[str] = set()
    for package in read_toml("uv.lock")["package"]:
        if package["name"] == "spodgt":
            assert package["source"] == {"editable": "."}
            continue
        assert package["source"] == {"registry": PUBLIC_INDEX}
        files = package.get("wheels", [])
        if "sdist" in package:
            files = [*files, package["sdist"]]
        hosts.update(urlsplit(file["url"]).netloc for file in files)
    assert hosts == {PUBLIC_FILES}


def test_the_lock_is_that_of_the_declared_dependencies() -> None:
    project = read_toml("pyproject.toml")["project"]
    lock = read_toml("uv.lock")
    assert lock["requires-python"] == project["requires-python"]
    (root,) = [package for package in lock["package"] if package["name"] == "spodgt"]
    assert root["version"] == project["version"]
    declared = [Requirement(text) for text in project["dependencies"]]
    names = {requirement.name for requirement in declared}
    assert {package["name"] for package in root["dependencies"]} == names, "run make lock"
    versions = locked_versions()
    for requirement in declared:
        for version in versions[requirement.name]:
            assert requirement.specifier.contains(version), f"{requirement}: run make lock"


def test_the_ends_are_installed_without_the_pin_of_the_lock() -> None:
    """`uv pip install` in the checkout would else take the torch of `tool.uv` at both ends."""
    assert read_toml("pyproject.toml")["tool"]["uv"]["constraint-dependencies"]
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlowest newest:\n")[2]
    recipe = recipe.partition("\n\n")[0]
    installs = [line for line in recipe.splitlines() if "uv pip install" in line]
    assert len(installs) == 2
    assert all("--no-config" in line for line in installs)


def test_every_supported_python_is_declared_and_tested() -> None:
    project = read_toml("pyproject.toml")["project"]
    supported = SpecifierSet(project["requires-python"])
    assert PYTHONS[0] in supported
    assert "3.10" not in supported
    marks = [f"Programming Language :: Python :: {version}" for version in PYTHONS]
    declared = [text for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert declared == marks
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert (
        f"python: [{', '.join(repr(version) for version in PYTHONS)}]".replace("'", '"') in workflow
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem
)
def test_examples_declare_what_they_need_for_uv_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    header = _SCRIPT.match(text)
    assert header is not None, f"{path.name} must begin with the # /// script block of the others"
    lines = [line.removeprefix("#").removeprefix(" ") for line in header["body"].splitlines()]
    script = tomllib.loads("\n".join(lines))
    project = read_toml("pyproject.toml")["project"]
    assert script["requires-python"] == project["requires-python"]
    assert [Requirement(text).name for text in script["dependencies"]][:1] == ["spodgt"]
    source = script["tool"]["uv"]["sources"]["spodgt"]
    assert (path.parent / source["path"]).resolve() == ROOT

"""Copies of the user's code in a run folder, so that its config runs from anywhere.

    runs/first/config.toml       [problem] build = "code/problem.py:build"
    runs/first/code/problem.py   the file, and those in its folder that it imports

Data are not copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spodgt.code_references import helper_files, map_texts
from spodgt.experiment.toml import Table
from spodgt.record.run_folder import write

CODE = "code"


def copy_code(tables: Table, files: Mapping[str, Path], folder: Path) -> Table:
    """Copy files with code to `folder`/code; returns the tables of a config that names the copies.

    Args:
        tables: of the config of an experiment.
        files: by the references "file.py:name" in these tables.
        folder: the run folder.
    """
    copies: dict[str, str] = {}  # by reference
    for reference, file in files.items():
        name = reference.rpartition(":")[2]
        for helper in helper_files(file):
            copy = folder / CODE / helper.relative_to(file.resolve().parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            write(copy, helper.read_bytes())
        copies[reference] = f"{CODE}/{file.name}:{name}"
    renamed = _rename(tables, copies)
    problem = renamed.get("problem")
    if isinstance(problem, dict) and tables["problem"].get("build") in copies:
        problem.pop("folder", None)
    return renamed


def _rename(tables: Table, copies: Mapping[str, str]) -> Table:
    """The tables with other references."""
    renamed = dict(tables)
    problem = dict(tables.get("problem", {}))
    if problem.get("build") in copies:
        problem["build"] = copies[problem["build"]]
        renamed["problem"] = problem
    run = dict(tables.get("run", {}))
    for key in ("step_size", "methods"):
        if key in run:
            run[key] = map_texts(run[key], lambda text: copies.get(text, text))
    renamed["run"] = run
    return renamed

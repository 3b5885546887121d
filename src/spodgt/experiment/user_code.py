"""The user's code that an experiment names by references "file.py:name"."""

from __future__ import annotations

from pathlib import Path

from spodgt.algorithms import user_code
from spodgt.code_references import UserObject
from spodgt.experiment.experiment import Experiment
from spodgt.problems.python_problem import PythonProblem


def code_checksums(experiment: Experiment) -> dict[str, str]:
    """Checksums of the code, by descriptions of what they are of."""
    checksums = {}
    problem = experiment.problem
    if isinstance(problem, PythonProblem):
        checksums[f"source of {problem.build}"] = problem.digest
    for reference, imported in _methods_and_steps(experiment).items():
        checksums[f"source of {reference}"] = imported.digest
    return checksums


def code_files(experiment: Experiment) -> dict[str, Path]:
    """The files with the code, by reference."""
    imports = _methods_and_steps(experiment)
    files = {reference: imported.file for reference, imported in imports.items()}
    problem = experiment.problem
    if isinstance(problem, PythonProblem):
        files[problem.build] = problem.file
    return {reference: file for reference, file in files.items() if file is not None}


def _methods_and_steps(experiment: Experiment) -> dict[str, UserObject]:
    """Methods and step sizes of the user, by reference."""
    imports: dict[str, UserObject] = {}
    for method in experiment.methods:
        imports.update(user_code(method))
    return imports

"""Checks of experiments before a sweep or a search starts."""

from __future__ import annotations

from spodgt.algorithms import is_installed
from spodgt.experiment.experiment import Experiment
from spodgt.experiment.toml import is_rerunnable
from spodgt.participation import TraceFile


def check_files(experiment: Experiment) -> None:
    """Read the files and data that an experiment names, so that missing ones raise now."""
    _ = experiment.network.clients
    _ = experiment.base_problem
    if isinstance(experiment.participation, TraceFile):
        _ = experiment.participation.trace


def is_portable(experiment: Experiment) -> bool:
    """Whether another process can create it from its tables, without objects of this script."""
    return is_rerunnable(experiment.to_dict()) and all(map(is_installed, experiment.methods))

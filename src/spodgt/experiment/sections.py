"""Sections of a config as the fields of an `Experiment`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spodgt.experiment import toml
from spodgt.experiment.run_options import RunOptions
from spodgt.experiment.toml import SECTIONS, Table
from spodgt.runtimes.events.durations import Time
from spodgt.validation import from_table, reject_unknown_keys, to_table

if TYPE_CHECKING:
    from spodgt.experiment.experiment import Experiment


def read_sections(tables: Mapping[str, object]) -> Table:
    """The fields of an `Experiment` that the sections in `tables` set.

    Raises:
        InvalidConfig: for an unknown section or key, or an invalid value.
    """
    reject_unknown_keys(tables, SECTIONS, "the config")
    fields: Table = {}
    for name, table in tables.items():
        if name == "run":
            fields["run"] = RunOptions.parse(toml.check_table(table, name))
        elif name == "network":
            fields["network"], fields["weights"] = toml.read_network(table)
        elif name == "participation":
            fields["participation"] = toml.read_participation(table)
        elif name == "time":
            fields["time"] = from_table(Time, toml.check_table(table, name), name)
        else:
            fields["problem"] = toml.read_problem(table)
    return fields


def section_table(experiment: Experiment, section: str) -> Table:
    """One section of the config of an experiment; the inverse of `read_sections`."""
    if section == "run":
        return experiment.run.to_dict()
    if section == "network":
        return toml.network_table(experiment.network, experiment.weights)
    if section == "participation":
        return toml.describe_recipe(experiment.participation)
    if section == "problem":
        return toml.problem_table(experiment.problem)
    return {} if experiment.time is None else to_table(experiment.time)

"""The tables of a record: evaluations, participation, clients and facts of methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spodgt.participation.roles import HasRoles
from spodgt.problems.protocols import HasClientWeights, HasSamples
from spodgt.record.metrics import RunSnapshot
from spodgt.record.networks import link_columns, with_names
from spodgt.record.record import no_clients
from spodgt.runtimes.world import Run, Tally
from spodgt.training.stopping import Row
from spodgt.types import Ints, Problem

if TYPE_CHECKING:
    import pandas as pd

_BASE = ("method", "seed", "round", "delay", "bytes", "loss")
_PARTICIPATION = (
    "method",
    "seed",
    "kind",
    "receiver",
    "sender",
    "probability",
    "gradients",
    "messages",
    "bytes",
    "root",
)
_MAX_LABELS = 10  # classes that are listed for a client


def metrics_table(rows: list[Row], labels: Sequence[str]) -> pd.DataFrame:
    """One row per evaluation, methods in the order of `labels`."""
    import pandas as pd

    columns = dict.fromkeys(_BASE)  # a set in the order of insertion
    for row in rows:
        columns.update(dict.fromkeys(row))
    order = {label: number for number, label in enumerate(labels)}
    rows = sorted(rows, key=lambda row: (order[row["method"]], row["seed"], row["round"]))
    frame = pd.DataFrame(rows, columns=list(columns))
    frame["method"] = frame["method"].astype(str)
    return frame


def participation_table(counts: Iterable[tuple[str, Run, Tally]]) -> pd.DataFrame:
    """One row per client and per link of every run.

    Columns are the probability, the number of gradients, messages and bytes, and whether a client
    is a root.

    Args:
        counts: for every run the label of its method, the run, and what was counted.
    """
    import pandas as pd

    tables = [pd.DataFrame(columns=_PARTICIPATION)]
    for label, run, tally in counts:
        network = run.network
        availability = run.availability
        no_messages = np.zeros(network.clients, np.int64)
        no_gradients = np.zeros(network.links, np.int64)
        is_root = np.zeros(network.clients + network.links, bool)
        if isinstance(availability, HasRoles):
            is_root[list(availability.roots)] = True
        columns = {
            "method": label,
            "seed": run.seed,
            **link_columns(network, availability),
            "gradients": np.concatenate([tally.gradients, no_gradients]),
            "messages": np.concatenate([no_messages, tally.messages]),
            "bytes": np.concatenate([no_messages, tally.bytes]),
            "root": is_root,
        }
        tables.append(with_names(pd.DataFrame(columns), network))
    return pd.concat(tables[1:] or tables, ignore_index=True)


def method_traits(batches: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, Any]]:
    """Facts about methods by label: name if the label has settings, local steps, waiting."""
    traits_by_label = {}
    for label, runs in batches.items():
        facts: dict[str, Any] = {}
        if label != runs[0].algorithm.name:
            facts["method"] = runs[0].algorithm.name
        periods = [run.algorithm.period for run in runs]
        if max(periods) > 1:
            facts["local_steps"] = periods
        traits = runs[0].algorithm.traits
        if "waits" in (traits.sporadic_clients, traits.sporadic_links):
            facts["waits"] = True
        if facts:
            traits_by_label[label] = facts
    return traits_by_label


def client_rows(label: str, run: Run, snapshot: RunSnapshot) -> pd.DataFrame:
    """One row per client of a run: its data, and the loss and metrics of its last model."""
    import pandas as pd

    problem = run.problem
    clients = run.network.clients
    table: dict[str, Any] = {"method": label, "seed": run.seed, "client": np.arange(clients)}
    if run.network.names is not None:
        table["client_name"] = list(run.network.names)
    if isinstance(problem, HasSamples):
        table["samples"] = problem.sizes()
        labels = problem.labels()
        if labels is not None:
            table["labels"] = [_label_counts(row) for row in labels]
    if isinstance(problem, HasClientWeights) and problem.loss_scales is not None:
        table["weight"] = problem.loss_scales / clients
    table["loss"] = snapshot.clients.loss.cpu().numpy()
    for name, values in snapshot.clients.metrics.items():
        table[name] = values.cpu().numpy()
    return pd.DataFrame(table)


def objective_of(problem: Problem) -> str:
    """The objective of all methods on a problem, in words."""
    weighting = problem.weighting if isinstance(problem, HasClientWeights) else "equal"
    descriptions = {
        "equal": "in which every client weighs the same",
        "samples": "weighted by their numbers of samples (client_weights='samples')",
    }
    description = descriptions.get(weighting, "weighted by the given client_weights")
    return f"the mean of the clients' losses, {description}"


def _label_counts(row: Ints) -> str:
    """The numbers of samples of a client by class, the largest first: `3: 600, 7: 120`."""
    labels = [int(label) for label in np.argsort(-row, kind="stable") if row[label]]
    text = ", ".join(f"{label}: {row[label]}" for label in labels[:_MAX_LABELS])
    if len(labels) > _MAX_LABELS:
        text += f", {len(labels) - _MAX_LABELS} more"
    return text


def clients_table(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables of clients of all runs, one below the other."""
    import pandas as pd

    return pd.concat(tables or [no_clients()], ignore_index=True)

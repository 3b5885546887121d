"""The tables of a record, and what tells one experiment from another when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spodgt.participation.roles import HasRoles
from spodgt.problems.protocols import HasClientWeights, HasSamples
from spodgt.record.metrics import RunSnapshot
from spodgt.record.networks import with_names
from spodgt.record.record import no_clients
from spodgt.runtimes.world import Run, Tally
from spodgt.types import Ints, Problem

if TYPE_CHECKING:
    import pandas as pd

_BASE = ("algorithm", "seed", "round", "delay", "bytes", "loss")
_PARTICIPATION = (
    "algorithm",
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
_MOST_LABELS = 10  # classes of a client that are listed


def metrics_table(rows: list[dict[str, Any]], labels: Sequence[str]) -> pd.DataFrame:
    """One row per evaluation, methods in the order of `labels`."""
    import pandas as pd

    columns = list(dict.fromkeys([*_BASE, *(name for row in rows for name in row)]))
    order = {label: number for number, label in enumerate(labels)}
    frame = pd.DataFrame(rows, columns=columns)
    frame["algorithm"] = frame["algorithm"].astype(str)
    return frame.sort_values(
        ["algorithm", "seed", "round"],
        key=lambda column: column.map(order) if column.name == "algorithm" else column,
        ignore_index=True,
    )


def participation_table(counts: Iterable[tuple[str, Run, Tally]]) -> pd.DataFrame:
    """One row per client and per link of every run.

    Columns are the probability, the number of gradients, messages and bytes, and whether a client is a root.

    Args:
        counts: for every run the label of its method, the run, and what was counted.
    """
    import pandas as pd

    tables = [pd.DataFrame(columns=_PARTICIPATION)]
    for label, run, tally in counts:
        network = run.network
        availability = run.availability
        clients = np.arange(network.clients)
        no_messages = np.zeros(network.clients, np.int64)
        no_gradients = np.zeros(network.links, np.int64)
        is_root = np.zeros(network.clients + network.links, bool)
        if isinstance(availability, HasRoles):
            is_root[list(availability.roots)] = True
        columns = {
            "algorithm": label,
            "seed": run.seed,
            "kind": ["client"] * network.clients + ["link"] * network.links,
            "receiver": np.concatenate([clients, network.receivers]),
            "sender": np.concatenate([clients, network.senders]),
            "probability": np.concatenate([availability.p, availability.p_hat]),
            "gradients": np.concatenate([tally.gradients, no_gradients]),
            "messages": np.concatenate([no_messages, tally.messages]),
            "bytes": np.concatenate([no_messages, tally.bytes]),
            "root": is_root,
        }
        tables.append(with_names(pd.DataFrame(columns), network))
    return pd.concat(tables[1:] or tables, ignore_index=True)


def method_traits(batches: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, Any]]:
    """Facts about methods by label: name if the label has settings, local steps by seed, waiting."""
    found = {}
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
            found[label] = facts
    return found


def client_rows(label: str, run: Run, snapshot: RunSnapshot) -> pd.DataFrame:
    """One row per client of a run: what it holds, and the loss and metrics of its last model."""
    import pandas as pd

    m, problem = run.network.clients, run.problem
    table: dict[str, Any] = {"algorithm": label, "seed": run.seed, "client": np.arange(m)}
    if run.network.names is not None:
        table["client_name"] = list(run.network.names)
    if isinstance(problem, HasSamples):
        table["samples"] = problem.sizes()
        if (labels := problem.labels()) is not None:
            table["labels"] = [_counts(row) for row in labels]
    if isinstance(problem, HasClientWeights) and problem.loss_scales is not None:
        table["weight"] = problem.loss_scales / m
    table["loss"] = snapshot.clients.loss.cpu().numpy()
    table |= {name: values.cpu().numpy() for name, values in snapshot.clients.metrics.items()}
    return pd.DataFrame(table)


def objective_of(problem: Problem) -> str:
    """What all methods minimise on a problem, in words."""
    weighting = problem.weighting if isinstance(problem, HasClientWeights) else "equal"
    by = {
        "equal": "in which every client weighs the same",
        "samples": "weighted by their numbers of samples (client_weights='samples')",
    }
    return f"the mean of the clients' losses, {by.get(weighting, 'weighted by the given client_weights')}"


def _counts(row: Ints) -> str:
    """The classes a client holds, with how many samples: `3: 600, 7: 120`; the largest if there are many."""
    held = [int(label) for label in np.argsort(-row, kind="stable") if row[label]]
    shown = ", ".join(f"{label}: {row[label]}" for label in held[:_MOST_LABELS])
    return f"{shown}, {len(held) - _MOST_LABELS} more" if len(held) > _MOST_LABELS else shown


def clients_table(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables of clients of all runs, one below the other."""
    import pandas as pd

    return pd.concat(tables or [no_clients()], ignore_index=True)

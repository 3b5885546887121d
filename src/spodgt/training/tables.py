"""The tables of a record, and what tells one experiment from another when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spodgt.experiment.config import checksum
from spodgt.participation.roles import HasRoles
from spodgt.problems.protocols import HasClientWeights, HasIdentity, HasSamples
from spodgt.record.metrics import RunSnapshot
from spodgt.record.record import no_clients, with_names
from spodgt.runtimes.world import Run, Tally
from spodgt.types import Ints, Problem

if TYPE_CHECKING:
    import pandas as pd

_BASE = ("algorithm", "seed", "round", "delay", "bytes", "loss")
_PARTICIPATION: tuple[str, ...] = ("algorithm", "seed", "kind", "receiver", "sender")
_PARTICIPATION += ("probability", "gradients", "messages", "bytes", "root")
_MOST_LABELS = 10  # classes of a client that are listed
_TRIED = 2**22  # draws that are tried to tell one participation from another


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


def participation_table(done: Iterable[tuple[str, Sequence[Run], Tally]]) -> pd.DataFrame:
    """One row per client and per link of every run: its probability, what it really did, was it a root.

    Args:
        done: for every finished method its label, its runs, and what they did, one run after the other.
    """
    import pandas as pd

    tables = []
    for label, runs, tally in done:
        client = link = 0
        for run in runs:
            net, av = run.network, run.availability
            own, out = slice(client, client + net.clients), slice(link, link + net.links)
            client, link = own.stop, out.stop
            everyone, none = np.arange(net.clients), np.zeros(net.clients, np.int64)
            values = (
                label,
                run.seed,
                ["client"] * net.clients + ["link"] * net.links,
                np.r_[everyone, net.receivers],
                np.r_[everyone, net.senders],
                np.r_[av.p, av.p_hat],
                np.r_[tally.gradients[own], np.zeros(net.links, np.int64)],
                np.r_[none, tally.messages[out]],
                np.r_[none, tally.bytes[out]],
                np.isin(
                    np.r_[everyone, -1 - net.receivers],
                    av.roots if isinstance(av, HasRoles) else (),
                ),
            )
            tables.append(
                with_names(pd.DataFrame(dict(zip(_PARTICIPATION, values, strict=True))), net)
            )
    return pd.concat(tables or [pd.DataFrame(columns=_PARTICIPATION)], ignore_index=True)


def method_traits(batches: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, Any]]:
    """Method → what the tables of a record say of it: the local steps of each seed, and whether it waits."""
    found = {}
    for label, runs in batches.items():
        facts: dict[str, Any] = {}
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


def clients_table(tables: Iterable[Iterable[pd.DataFrame]]) -> pd.DataFrame:
    """The client tables of all methods, one below the other."""
    import pandas as pd

    return pd.concat(
        [each for method in tables for each in method] or [no_clients()], ignore_index=True
    )


# --- resuming ----------------------------------------------------------------------------------------
def identity(runs: Sequence[Run]) -> dict[str, Any]:
    """What a config only names: the data, the network in a file, who was there in a trace."""
    told = [run.problem.identity for run in runs if isinstance(run.problem, HasIdentity)]
    numbers = {
        id(array): array for _, arrays in told for array in arrays
    }  # seeds share most of them
    happens = []
    for world in (run.availability for run in runs):
        most = _TRIED // (len(world.p) + len(world.p_hat)) if world.length is None else world.length
        span = range(1, 1 + (min(max(most, 1), 256) if world.length is None else most))
        links = world.links(span)
        happens += [world.computes(span), links.pull, links.pushing]
    nets = [run.network for run in runs]
    arrays = [
        a
        for net in nets
        for a in (net.receivers, net.senders, net.a, net.b, net.w)
        if a is not None
    ]
    return {
        "links": checksum(*arrays),
        "problem's settings": told[0][0] if told else {},
        "data": checksum(*numbers.values()),
        "who takes part": checksum(*happens),
    }


def difference(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> str:
    """A sentence with the first key in which two configurations differ."""

    def walk(a: Any, b: Any, path: str) -> tuple[str, Any, Any] | None:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in dict.fromkeys([*a, *b]):  # what a user sets comes before check sums
                found = walk(a.get(key), b.get(key), f"{path}.{key}" if path else key)
                if found:
                    return found
            return None
        return None if a == b else (path, a, b)

    found = walk(old, new, "")
    assert found is not None, "they differ"
    key, was, now = found
    differ = f"{key} is {was!r} there and {now!r} here"
    return f"{where} holds another run: {differ}; use the same settings or another folder."

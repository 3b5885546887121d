"""The networks of a record: links, probabilities and observed participation of every seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spodgt.network import Digraph, Network
from spodgt.types import Array, Availability, Floats, Ints

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class DrawnNetwork(Digraph):
    """The network of one seed, as read from a record."""

    p: Floats  # (clients,) probability that a client computes in a round
    senders: Ints  # (links,)
    receivers: Ints  # (links,)
    p_hat: Floats  # (links,) probability that a link is active in a round
    positions: Floats | None  # (clients, 2); None if the network has none
    names: tuple[str, ...] | None = None  # of the clients; None if they have numbers only

    @property
    def clients(self) -> int:  # type: ignore[override]
        return len(self.p)


@dataclass(frozen=True, eq=False)
class Observed:
    """The observed participation of clients and links in one run."""

    rounds: int  # the number of the last one
    clients: Floats  # (clients,) fraction of rounds in which each computed, with round 0
    links: Floats  # (links,) fraction of rounds in which each carried a message, without round 0


def networks_table(drawn: Iterable[tuple[int, Network, Availability]]) -> pd.DataFrame:
    """The table of networks of a record: one row per seed and client or link."""
    import pandas as pd

    tables = []
    for seed, network, availability in drawn:
        positions = np.full((network.clients + network.links, 2), np.nan)
        if network.positions is not None:
            positions[: network.clients] = network.positions[:, :2]
        columns = {
            "seed": seed,
            **link_columns(network, availability),
            "x": positions[:, 0],
            "y": positions[:, 1],
        }
        tables.append(with_names(pd.DataFrame(columns), network))
    return pd.concat(tables, ignore_index=True)


def link_columns(network: Network, availability: Availability) -> dict[str, list[str] | Array]:
    """The columns of a table with one row per client, then one per link."""
    clients = np.arange(network.clients)
    return {
        "kind": ["client"] * network.clients + ["link"] * network.links,
        "receiver": np.concatenate([clients, network.receivers]),
        "sender": np.concatenate([clients, network.senders]),
        "probability": np.concatenate([availability.p, availability.p_hat]),
    }


def with_names(table: pd.DataFrame, network: Network) -> pd.DataFrame:
    """Add the names of receivers and senders to their numbers, if the network has names."""
    if network.names is not None:
        names = np.array(network.names, object)
        for end in ("receiver", "sender"):
            table[f"{end}_name"] = names[table[end]]
    return table


def read_networks(table: pd.DataFrame) -> dict[int, DrawnNetwork]:
    """The networks of a table of `networks_table`, by seed."""
    networks = {}
    for seed, rows in table.groupby("seed", sort=False):
        clients = rows[rows["kind"] == "client"]
        links = rows[rows["kind"] == "link"]
        positions: Floats = clients[["x", "y"]].to_numpy(float)
        has_positions = not np.isnan(positions).any()
        names = None
        if "receiver_name" in clients:
            names = tuple(clients["receiver_name"])
        networks[int(str(seed))] = DrawnNetwork(
            p=clients["probability"].to_numpy(float),
            senders=links["sender"].to_numpy(int),
            receivers=links["receiver"].to_numpy(int),
            p_hat=links["probability"].to_numpy(float),
            positions=positions if has_positions else None,
            names=names,
        )
    return networks


def read_participation(
    participation: pd.DataFrame, last_rounds: dict[tuple[str, int], int]
) -> dict[str, dict[int, Observed]]:
    """The observed participation of runs, by method and seed.

    Args:
        participation: the table of a record.
        last_rounds: the last round of each run (method, seed); others are left out.
    """
    observed: dict[str, dict[int, Observed]] = {}
    for (method, number), rows in participation.groupby(["method", "seed"], sort=False):
        seed = int(str(number))
        rounds = last_rounds.get((str(method), seed))
        if rounds is None:
            continue
        is_client = rows["kind"] == "client"
        gradients = rows.loc[is_client, "gradients"].to_numpy(float)
        messages = rows.loc[~is_client, "messages"].to_numpy(float)
        observed.setdefault(str(method), {})[seed] = Observed(
            rounds, gradients / (rounds + 1), messages / max(1, rounds)
        )
    return observed

"""The record of a run: tidy tables and facts, complete in memory and on disk.

A run folder holds `metrics.parquet`, `participation.parquet`, `networks.parquet`, `clients.parquet` and
`summary.json`; everything a report shows is in them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from spodgt.errors import InvalidInput
from spodgt.experiment.config import rerunnable
from spodgt.network import Named, Network
from spodgt.record import statistics
from spodgt.record.folder import parquet, plain, write
from spodgt.record.metrics import METRICS, declare
from spodgt.types import Availability, Better, Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary.json"
_TABLES = {name: name for name in ("participation", "networks", "clients")} | {"frame": "metrics"}


_ENDS = ("kind", "receiver", "sender", "probability")
_NEEDED = {
    "frame": ("algorithm", "seed", "round", "delay"),
    "participation": ("algorithm", "seed", *_ENDS, "gradients", "messages"),
    "networks": ("seed", *_ENDS),
}


@dataclass(frozen=True)
class Diverged:
    """A run that was ended because its numbers stopped being finite."""

    algorithm: str  # the method's label in the frame
    seed: int
    round: int  # in which this was found
    finite_at: int  # the last round at which all numbers were known to be finite
    step_size: str  # the method's, as text

    def __str__(self) -> str:
        return (
            f"{self.algorithm} (seed {self.seed}) diverged by round {self.round}, finite at round "
            f"{self.finite_at}, with step_size={self.step_size}; use a smaller step_size."
        )


@dataclass(frozen=True, eq=False)
class DrawnNetwork(Named):
    """The network of one seed as a record keeps it."""

    p: Floats  # (clients,) the probability that a client computes in a round
    senders: Ints  # (links,)
    receivers: Ints  # (links,)
    p_hat: Floats  # (links,) the probability that a link works in a round
    positions: Floats | None  # (clients, 2); None where the network has no positions
    names: tuple[str, ...] | None = None  # of the clients; None where they are called by their numbers

    @property
    def clients(self) -> int:
        return len(self.p)

    @property
    def links(self) -> int:
        return len(self.senders)


@dataclass(frozen=True, eq=False)
class Observed:
    """What the clients and links of one run really did."""

    rounds: int  # the number of the last one
    clients: Floats  # (clients,) the fraction of rounds in which each computed; round 0 counts
    links: Floats  # (links,) the fraction of rounds in which each carried a message; round 0 has none


def no_clients() -> pd.DataFrame:
    """The table of clients, empty."""
    import pandas as pd

    return pd.DataFrame(columns=["algorithm", "seed", "client", "loss"])


@dataclass(eq=False, repr=False)
class Record:
    """What happened in a run: all methods, all seeds.

    Args:
        frame: One row per evaluation: algorithm, seed, round, delay and the metrics.
        participation: One row per method, seed and client or link: its probability, and what it really did.
        networks: One row per seed and client or link: probability, and position of a client. Both tables
            have columns receiver_name and sender_name where clients have names.
        config: The settings, as the tables of a TOML file.
        versions: The versions of Python and of the packages that matter.
        diverged: The runs that left the finite numbers.
        complete: Whether every method reached its end.
        seconds: How long the run took; None where it was not measured.
        prediction: What the theory predicts for this run, if somebody asked: {"lines": [{method, seeds,
            rounds, measured, predicted, floor, rate}]}.
        scores: The problem's own metrics (accuracy, a user's), and whether higher or lower is better.
        clients: One row per method, seed and client: what it holds, loss and metrics of its last model.
    """

    frame: pd.DataFrame
    participation: pd.DataFrame
    networks: pd.DataFrame
    config: dict[str, Any]
    versions: dict[str, str]
    diverged: list[Diverged] = field(default_factory=list)
    complete: bool = True
    seconds: float | None = None
    prediction: dict[str, Any] | None = None
    scores: dict[str, Better] = field(default_factory=dict)
    clients: pd.DataFrame = field(default_factory=no_clients)

    @property
    def algorithms(self) -> list[str]:
        """The methods' labels, in the order of the run."""
        return statistics.methods(self.frame)

    @property
    def judged(self) -> str:
        """The metric the result is judged by: accuracy where something is classified, else the loss."""
        return statistics.judged(self.frame)

    @property
    def budget(self) -> float | None:
        """The delay at which runs end, where the settings name one."""
        section = self.config.get("run")
        return section.get("delay") if isinstance(section, dict) else None

    @property
    def rerunnable(self) -> bool:
        """Whether the settings say everything: no object of Python was given."""
        return rerunnable(self.config)

    @property
    def source(self) -> str:
        """The settings as TOML text."""
        return tomli_w.dumps(plain(self.config))

    def drawn(self) -> dict[int, DrawnNetwork]:
        """Seed → its network."""
        found = {}
        for seed, rows in self.networks.groupby("seed", sort=False):
            clients, links = rows[rows["kind"] == "client"], rows[rows["kind"] == "link"]
            positions = clients[["x", "y"]].to_numpy(float)
            found[int(str(seed))] = DrawnNetwork(
                clients["probability"].to_numpy(float),
                links["sender"].to_numpy(int),
                links["receiver"].to_numpy(int),
                links["probability"].to_numpy(float),
                None if np.isnan(positions).any() else positions,
                tuple(clients["receiver_name"]) if "receiver_name" in clients else None,
            )
        return found

    def observed(self) -> dict[str, dict[int, Observed]]:
        """Method → seed → who really took part. Diverged runs are left out: their rounds are not known."""
        gone = {(each.algorithm, each.seed) for each in self.diverged}
        last = self.frame.groupby(["algorithm", "seed"], sort=False)["round"].max()
        found: dict[str, dict[int, Observed]] = {}
        for (method, seed), rows in self.participation.groupby(["algorithm", "seed"], sort=False):
            if (method, seed) not in gone:
                rounds, client = int(last.get((method, seed), 0)), rows["kind"] == "client"
                computed = rows.loc[client, "gradients"].to_numpy(float) / (rounds + 1)
                carried = rows.loc[~client, "messages"].to_numpy(float) / max(1, rounds)
                found.setdefault(str(method), {})[int(str(seed))] = Observed(rounds, computed, carried)
        return found

    def final(self) -> pd.DataFrame:
        """The last evaluation of every run, and whether the run diverged."""
        gone = {(each.algorithm, each.seed) for each in self.diverged}
        last = statistics.final(self.frame)
        last["diverged"] = [pair in gone for pair in zip(last["algorithm"], last["seed"], strict=True)]
        return last

    def summary(self) -> pd.DataFrame:
        """One row per algorithm: metrics (mean over seeds; sigma of the first), delay, rounds, seeds.

        `diverged` counts the seeds that left the finite numbers; there is no mean where one did.
        """
        last = statistics.final(self.frame)
        # Of the whole frame: a metric that all runs have lost at the end is shown as lost, not left out.
        first, *others = [name for name in statistics.known(self.frame) if METRICS[name].column] or ["loss"]
        table = statistics.summary(last, [first, *others, "delay", "round"]).reset_index()
        gone = [each.algorithm for each in self.diverged]
        table["diverged"] = [gone.count(name) for name in table["algorithm"]]
        columns = ["algorithm", first, f"{first}_std", *others, "delay", "round", "seeds", "diverged"]
        return table[columns].rename(columns={"algorithm": "name", "round": "rounds"})

    def __repr__(self) -> str:
        """The summary in short: metrics of the last models, best first."""
        table = self.summary().drop(columns="delay")
        if not self.diverged:
            table = table.drop(columns="diverged")
        table = table.sort_values(self.judged, ascending=statistics.better(self.judged) < 0)
        table = table.rename(columns={f"{self.judged}_std": "± σ", f"{self.judged}_average": "average"})
        table = table.rename(columns={f"{self.judged}_worst": "worst"})
        table["rounds"] = [f"{rounds:.0f}" for rounds in table["rounds"]]
        return table.to_string(index=False, float_format=lambda value: f"{value:.4g}")

    def _repr_html_(self) -> str:
        """The summary, as a notebook shows it."""
        return str(self.summary().to_html(index=False))

    def as_dict(self) -> dict[str, Any]:
        """Everything but the tables, as `summary.json` holds it."""
        facts = {
            "algorithms": json.loads(self.summary().to_json(orient="records")),
            "complete": self.complete,
            "diverged": [asdict(each) for each in self.diverged],
            "config": plain(self.config),
            "versions": self.versions,
            "seconds": self.seconds,
            "scores": self.scores,
            "metrics": {
                name: {key: getattr(metric, key) for key in ("label", "unit", "better", "log")}
                for name, metric in METRICS.items()
                if name in self.frame
            },
        }
        return facts if self.prediction is None else facts | {"prediction": self.prediction}

    def write(self, folder: str | Path) -> None:
        """Write the tables, then the summary.

        Args:
            folder: The run folder; it exists.
        """
        folder = Path(folder)
        for name, file in _TABLES.items():
            write(folder / f"{file}.parquet", parquet(getattr(self, name)))
        write(folder / SUMMARY, json.dumps(self.as_dict(), indent=2).encode())

    @classmethod
    def read(cls, folder: str | Path) -> Record:
        """The record of a run folder; `config.toml` is not needed.

        Args:
            folder: The run folder.
        """
        import pandas as pd

        folder = Path(folder)
        try:
            facts = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            files = {name: folder / f"{file}.parquet" for name, file in _TABLES.items()}
            if not files["clients"].exists():  # a run of before there was such a table
                del files["clients"]
            tables = {name: pd.read_parquet(file) for name, file in files.items()}
            for name, columns in _NEEDED.items():
                if missing := [column for column in columns if column not in tables[name]]:
                    raise KeyError(f"{files[name].name} has no column {missing[0]}")
            scores = dict(facts.get("scores", {}))
            declare(scores)
            return cls(
                **tables,
                config=dict(facts["config"]),
                versions=dict(facts["versions"]),
                diverged=[Diverged(**each) for each in facts["diverged"]],
                complete=facts["complete"] is True,
                seconds=facts["seconds"],
                prediction=facts.get("prediction"),
                scores=scores,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidInput(f"{folder} is not a whole run directory ({reason}); run it again.") from None


def is_complete(folder: Path) -> bool:
    """Whether a folder, which may be missing, holds a run that reached its end."""
    try:
        return json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["complete"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def networks_table(drawn: Iterable[tuple[int, Network, Availability]]) -> pd.DataFrame:
    """One row per seed and client or link: the table of networks of a record."""
    import pandas as pd

    columns = ("seed", "kind", "receiver", "sender", "probability", "x", "y")
    tables = [pd.DataFrame(columns=columns)]
    for seed, network, availability in drawn:
        m, everyone = network.clients, np.arange(network.clients)
        place = np.full((m + network.links, 2), np.nan)
        if network.positions is not None:
            place[:m] = network.positions[:, :2]
        values = (
            seed,
            ["client"] * m + ["link"] * network.links,
            np.r_[everyone, network.receivers],
            np.r_[everyone, network.senders],
            np.r_[availability.p, availability.p_hat],
            *place.T,
        )
        tables.append(with_names(pd.DataFrame(dict(zip(columns, values, strict=True))), network))
    return pd.concat(tables[1:] or tables, ignore_index=True)


def with_names(table: pd.DataFrame, network: Network) -> pd.DataFrame:
    """A table with receivers and senders by number, and also by name where the network has names."""
    if network.names is not None:
        for end in ("receiver", "sender"):
            table[f"{end}_name"] = np.array(network.names, object)[table[end]]
    return table


def versions() -> dict[str, str]:
    """The versions of Python and of the packages whose numbers a result depends on."""
    names = ("spodgt", "torch", "numpy", "scipy", "networkx", "pandas")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}

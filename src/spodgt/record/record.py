"""The record of a run: tidy tables and facts, complete in memory and on disk.

A run folder holds `metrics.parquet`, `participation.parquet`, `networks.parquet`, `clients.parquet` and
`summary.json`; everything a report shows is in them.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from html import escape
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from spodgt._util.text import first_line
from spodgt.errors import InvalidInput
from spodgt.experiment.toml import is_rerunnable
from spodgt.network import Digraph, Network
from spodgt.record import statistics
from spodgt.record.folder import parquet, plain, write
from spodgt.record.metrics import METRICS, declare
from spodgt.record.stalled import Stalled, find_stalled
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
class DrawnNetwork(Digraph):
    """The network of one seed as a record keeps it."""

    p: Floats  # (clients,) the probability that a client computes in a round
    senders: Ints  # (links,)
    receivers: Ints  # (links,)
    p_hat: Floats  # (links,) the probability that a link works in a round
    positions: Floats | None  # (clients, 2); None where the network has no positions
    names: tuple[str, ...] | None = (
        None  # of the clients; None where they are called by their numbers
    )

    @property
    def clients(self) -> int:  # type: ignore[override]
        return len(self.p)


@dataclass(frozen=True, eq=False)
class Observed:
    """What the clients and links of one run really did."""

    rounds: int  # the number of the last one
    clients: Floats  # (clients,) the fraction of rounds in which each computed; round 0 counts
    links: (
        Floats  # (links,) the fraction of rounds in which each carried a message; round 0 has none
    )


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
        clients: One row per method, seed and client: what it holds, loss and metrics of its last model; its
            name in client_name where clients have names, its weight in the objective where it is not equal.
        traits: Method → what tables say of it: {"local_steps": [K of each seed], "waits": True}; a method
            without either is left out.
        objective: What all methods minimise, in words.
        engine: What the rounds were computed by, see `spodgt.engine`; empty where it is not known.
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
    traits: dict[str, dict[str, Any]] = field(default_factory=dict)
    objective: str = ""
    engine: str = ""

    @property
    def algorithms(self) -> list[str]:
        """The methods' labels, in the order of the run."""
        return statistics.methods(self.frame)

    @property
    def method_names(self) -> dict[str, str]:
        """The name of the method of each label that has settings, too."""
        return {label: facts["method"] for label, facts in self.traits.items() if "method" in facts}

    @property
    def stalled(self) -> list[Stalled]:
        """The runs whose models did not move in their last rounds, although they have not converged."""
        return find_stalled(
            self.frame, scheduled="schedule" in json.dumps(plain(self.config.get("run", {})))
        )

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
        return is_rerunnable(self.config)

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
                found.setdefault(str(method), {})[int(str(seed))] = Observed(
                    rounds, computed, carried
                )
        return found

    def final(self) -> pd.DataFrame:
        """The last evaluation of every run, and whether the run diverged."""
        gone = {(each.algorithm, each.seed) for each in self.diverged}
        last = statistics.final(self.frame)
        last["diverged"] = [
            pair in gone for pair in zip(last["algorithm"], last["seed"], strict=True)
        ]
        return last

    def summary(self) -> pd.DataFrame:
        """One row per algorithm: metrics (mean over seeds; sigma of the first), costs, seeds.

        The costs are means per seed: delay, in virtual time also seconds, rounds, gradients
        and messages of all clients, bytes. Gradients and messages of a method that has not finished are NaN.
        `diverged` counts the seeds that left the finite numbers; there is no mean where one did.
        """
        last = statistics.final(self.frame)
        # Of the whole frame: a metric that all runs have lost at the end is shown as lost, not left out.
        first, *others = [
            name for name in statistics.known(self.frame) if METRICS[name].column
        ] or ["loss"]
        measured = [name for name in ("seconds", "bytes") if _has_values(last, name)]
        table = statistics.summary(
            last, [first, *others, "delay", "round", *measured]
        ).reset_index()
        for name in ("gradients", "messages"):
            table[name] = table["algorithm"].map(self._per_seed(name))
        gone = [each.algorithm for each in self.diverged]
        table["diverged"] = [gone.count(name) for name in table["algorithm"]]
        time = [name for name in measured if name != "bytes"]
        traffic = [name for name in measured if name == "bytes"]
        columns = ["algorithm", first, f"{first}_std", *others, "delay", *time, "round"]
        columns += ["gradients", "messages", *traffic, "seeds", "diverged"]
        return table[columns].rename(columns={"algorithm": "name", "round": "rounds"})

    def _per_seed(self, column: str) -> dict[str, float]:
        """Method → the sum of a column of the table of participation, mean over seeds."""
        if column not in self.participation:
            return {}
        sums = self.participation.groupby("algorithm")[column].sum()
        seeds = self.frame.groupby("algorithm")["seed"].nunique()
        return {
            str(method): float(count) / int(seeds.get(method, 1)) for method, count in sums.items()
        }

    def notes(self) -> list[str]:
        """Sentences below a table of results: what is evaluated, and what a round costs."""
        sentences = []
        local = {
            method: facts["local_steps"] for method, facts in self._known_traits("local_steps")
        }
        if local:
            named = ", ".join(f"{method} (K = {_spread(steps)})" for method, steps in local.items())
            sentences.append(f"With local steps, evaluated after the last exchange: {named}.")
        waiting = [method for method, _ in self._known_traits("waits")]
        others = [method for method in self.algorithms if method not in waiting]
        by_rounds = self.budget is None and "seconds" not in self.frame
        if waiting and others and by_rounds:
            delay = statistics.final(self.frame).groupby("algorithm")["delay"].mean()
            slower = [method for method in waiting if delay[method] > delay[others].max()]
            if slower:
                sentences.append(
                    f"Compared by rounds, but a round of {' and of '.join(slower)} waits for idle clients or "
                    "links and takes longer (column delay); give a delay to compare at equal delay."
                )
        return sentences

    def _known_traits(self, key: str) -> list[tuple[str, dict[str, Any]]]:
        """The methods of the result that have a trait."""
        found = [(method, self.traits.get(method, {})) for method in self.algorithms]
        return [(method, facts) for method, facts in found if facts.get(key)]

    def __repr__(self) -> str:
        """The summary in short, in 80 columns: metrics of the last models, best first, and costs per seed."""
        import pandas as pd

        judged = self.judged
        summary = self.summary().sort_values(judged, ascending=statistics.better(judged) < 0)
        hidden = ["gradients", "messages", "diverged"]
        hidden += ["loss"] if judged != "loss" else []
        hidden += ["delay"] if "seconds" in summary else []
        headings = {
            f"{judged}_std": "± σ",
            f"{judged}_average": "average",
            f"{judged}_worst": "worst",
        }
        table = {}
        for name in summary.columns.drop(hidden, errors="ignore"):
            table[headings.get(name, name)] = [_cell(name, value) for value in summary[name]]
        lines = [pd.DataFrame(table, dtype=str).to_string(index=False)]
        for row in summary[summary["diverged"] > 0].to_dict("records"):
            lines.append(f"{row['name']} diverged in {row['diverged']} of {row['seeds']} seeds.")
        return "\n".join(lines + self.notes())

    def _repr_html_(self) -> str:
        """The summary, as a notebook shows it."""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes())
        return str(self.summary().to_html(index=False)) + notes

    def as_dict(self) -> dict[str, Any]:
        """Everything but the tables, as `summary.json` holds it."""
        facts = {
            "algorithms": json.loads(self.summary().to_json(orient="records")),
            "complete": self.complete,
            "diverged": [asdict(each) for each in self.diverged],
            "stalled": [asdict(each) for each in self.stalled],
            "config": plain(self.config),
            "versions": self.versions,
            "engine": self.engine,
            "seconds": self.seconds,
            "scores": self.scores,
            "traits": self.traits,
            "objective": self.objective,
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
                traits=dict(facts.get("traits", {})),
                objective=str(facts.get("objective", "")),
                engine=str(facts.get("engine", "")),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = first_line(error)
            raise InvalidInput(
                f"{folder} is not a whole run directory ({reason}); run it again."
            ) from None


def _has_values(table: pd.DataFrame, column: str) -> bool:
    """Whether a table has a column with something in it: bytes of methods without messages are no costs."""
    return column in table and bool((table[column].fillna(0) != 0).any())


def _cell(column: str, value: float | str) -> str:
    """A value of the summary as `print(result)` shows it."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if column == "bytes":
        return short_bytes(float(value))
    if column in ("delay", "rounds"):
        return f"{float(value):,.0f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _spread(values: Sequence[int]) -> str:
    """`5`, or `3 to 9` where seeds differ."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def short_count(count: float) -> str:
    """At most five characters: 9,999, 38.9k, 132k, 12.3M, 4.5G."""
    if not np.isfinite(count):
        return "–"
    if count < 9_999.5:
        return f"{count:,.0f}"
    return _scaled(count, ("k", "M", "G"))


def short_bytes(count: float) -> str:
    """At most seven characters: 999 B, 83.2 kB, 1.2 MB."""
    if not np.isfinite(count):
        return "–"
    if count < 999.5:
        return f"{count:.0f} B"
    return _scaled(count, (" kB", " MB", " GB", " TB"))


def _scaled(count: float, units: Sequence[str]) -> str:
    """A number of at least 1,000 in thousands, millions, …, with about three digits."""
    for unit in units:
        count /= 1000
        if count < 99.95:
            return f"{count:.1f}{unit}"
        if count < 999.5:
            return f"{count:.0f}{unit}"
    return f"{count:,.0f}{units[-1]}"


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
    return dict(_installed_versions())


@cache
def _installed_versions() -> dict[str, str]:
    """Read once: every look-up searches the folders of all installed packages."""
    found = {"python": platform.python_version()}
    for name in ("spodgt", "torch", "numpy", "numba", "scipy", "networkx", "pandas"):
        found[name] = metadata.version(name)
    return found

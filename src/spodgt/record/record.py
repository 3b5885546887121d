"""The record of a run: tidy tables and facts, complete in memory and on disk.

A run folder holds `metrics.parquet`, `participation.parquet`, `networks.parquet`, `clients.parquet`
and `summary.json`; a report needs nothing else.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomli_w

from spodgt._util.deprecation import RenamedAttribute
from spodgt._util.text import first_line
from spodgt.errors import InvalidInput
from spodgt.experiment.toml import is_rerunnable
from spodgt.record import statistics
from spodgt.record.metrics import METRICS, declare, label_of
from spodgt.record.networks import DrawnNetwork, Observed, read_networks, read_participation
from spodgt.record.run_folder import parquet, plain, write
from spodgt.record.stalled import Stalled, find_stalled
from spodgt.record.summary import (
    summary_html,
    summary_latex,
    summary_notes,
    summary_table,
    summary_text,
)
from spodgt.types import Better

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary.json"
_FILES = {  # table → file
    "participation": "participation.parquet",
    "networks": "networks.parquet",
    "clients": "clients.parquet",
    "frame": "metrics.parquet",
}
_LINK_COLUMNS = ("kind", "receiver", "sender", "probability")
_REQUIRED_COLUMNS = {
    "frame": ("method", "seed", "round", "delay"),
    "participation": ("method", "seed", *_LINK_COLUMNS, "gradients", "messages"),
    "networks": ("seed", *_LINK_COLUMNS),
    "clients": ("method", "seed", "client", "loss"),
}


@dataclass(frozen=True)
class Diverged:
    """A run that was stopped because its models became infinite or NaN."""

    method: str  # its label
    seed: int
    round: int  # in which it was detected
    finite_at: int  # the last round in which all models were checked to be finite
    step_size: str  # of the method, as text

    def __str__(self) -> str:
        return (
            f"{self.method} (seed {self.seed}) diverged by round {self.round}, finite at round "
            f"{self.finite_at}, with step_size={self.step_size}; use a smaller step_size."
        )

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Diverged:
        """From an entry of summary.json; older versions called the method `algorithm`."""
        facts = dict(facts)
        if "algorithm" in facts:
            facts["method"] = facts.pop("algorithm")
        return cls(**facts)

    algorithm = RenamedAttribute("method")  # deprecated, removed in the next release


@dataclass(frozen=True)
class Stopped:
    """A run that stopped before its limits: by early stopping or by a callback."""

    method: str  # its label
    seed: int
    round: int  # its last one
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.method} (seed {self.seed}) stopped early in round {self.round}: {self.reason}."
        )


@dataclass(frozen=True)
class Best:
    """The best evaluation of a run, whose models are kept with `keep="best"`."""

    method: str  # its label
    seed: int
    round: int
    metric: str  # a column of `Record.frame`
    value: float

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Best:
        """From an entry of summary.json, where a value that is not finite is text."""
        return cls(**{**facts, "value": float(facts["value"])})


def no_clients() -> pd.DataFrame:
    """An empty table of clients."""
    import pandas as pd

    return pd.DataFrame(columns=["method", "seed", "client", "loss"])


@dataclass(eq=False, repr=False)
class Record:
    """The results of a run: all methods, all seeds.

    Args:
        frame: One row per evaluation: method, seed, round, delay and the metrics.
        participation: One row per method, seed and client or link: its probability, and numbers of
            gradients, messages and bytes.
        networks: One row per seed and client or link: probability, and position of a client. Both
            tables have columns receiver_name and sender_name if clients have names.
        config: The settings, as the tables of a TOML file.
        versions: The versions of Python and of the packages that matter.
        diverged: The runs that diverged.
        stopped: The runs that stopped early.
        best: The best evaluation of every run, with `keep="best"`.
        complete: Whether every method reached its end.
        seconds: The duration of the run; None if it was not measured.
        prediction: The prediction of the theory for this run, if it was computed: {"lines":
            [{method, seeds, rounds, measured, predicted, floor, rate}]}.
        scores: The metrics of the problem (accuracy, or the user's), and whether higher or lower is
            better.
        clients: One row per method, seed and client: its samples, loss and metrics of its last
            model; its name in client_name if clients have names, its weight in the objective if
            weights differ.
        traits: Facts of methods for tables: {"local_steps": [K of each seed], "waits": True}; a
            method without either is left out.
        objective: The objective of all methods, in words.
        engine: How the rounds were computed, see `spodgt.engine`; empty if it is unknown.
    """

    frame: pd.DataFrame
    participation: pd.DataFrame
    networks: pd.DataFrame
    config: dict[str, Any]
    versions: dict[str, str]
    diverged: list[Diverged] = field(default_factory=list)
    stopped: list[Stopped] = field(default_factory=list, kw_only=True)
    best: list[Best] = field(default_factory=list, kw_only=True)
    complete: bool = True
    seconds: float | None = None
    prediction: dict[str, Any] | None = None
    scores: dict[str, Better] = field(default_factory=dict)
    clients: pd.DataFrame = field(default_factory=no_clients)
    traits: dict[str, dict[str, Any]] = field(default_factory=dict)
    objective: str = ""
    engine: str = ""

    def __post_init__(self) -> None:
        from spodgt.record.frames import with_old_names

        self.frame = with_old_names(self.frame)
        self.participation = with_old_names(self.participation)
        self.clients = with_old_names(self.clients)

    @property
    def methods(self) -> list[str]:
        """The labels of the methods, in the order of the run."""
        return statistics.methods(self.frame)

    @property
    def method_names(self) -> dict[str, str]:
        """The name of the method of each label that has settings, too."""
        return {label: facts["method"] for label, facts in self.traits.items() if "method" in facts}

    @property
    def stalled(self) -> list[Stalled]:
        """Runs with models that did not move in their last rounds, but have not converged."""
        options = json.dumps(plain(self.config.get("run", {})))
        return find_stalled(self.frame, scheduled="schedule" in options)

    @property
    def primary_metric(self) -> str:
        """The metric by which methods are compared: the accuracy if there is one, else the loss."""
        return statistics.primary_metric(self.frame)

    @property
    def evaluated_on(self) -> str:
        """The data of the metrics: "test", or "validation" with that value of `evaluate_on`.

        Empty for a problem with a known optimum, whose loss is the objective itself.
        """
        if "distance" in self.frame:
            return ""
        section = self.config.get("run")
        if isinstance(section, dict) and section.get("evaluate_on") == "validation":
            return "validation"
        return "test"

    @property
    def budget(self) -> float | None:
        """The delay at which runs end, if there is such a limit."""
        section = self.config.get("run")
        return section.get("delay") if isinstance(section, dict) else None

    @property
    def rerunnable(self) -> bool:
        """Whether the settings are complete: no object of Python was given."""
        return is_rerunnable(self.config)

    @property
    def source(self) -> str:
        """The settings as TOML text."""
        return tomli_w.dumps(plain(self.config))

    def drawn(self) -> dict[int, DrawnNetwork]:
        """The networks by seed."""
        return read_networks(self.networks)

    def observed(self) -> dict[str, dict[int, Observed]]:
        """The observed participation by method and seed, without diverged runs."""
        diverged = {(run.method, run.seed) for run in self.diverged}
        last_rounds = {}
        for (method, seed), rounds in self.frame.groupby(["method", "seed"])["round"]:
            run = (str(method), int(str(seed)))
            if run not in diverged:
                last_rounds[run] = int(rounds.max())
        return read_participation(self.participation, last_rounds)

    def final(self) -> pd.DataFrame:
        """The last evaluation of every run, and whether the run diverged."""
        diverged = {(run.method, run.seed) for run in self.diverged}
        last = statistics.final(self.frame)
        runs = zip(last["method"], last["seed"], strict=True)
        last["diverged"] = [run in diverged for run in runs]
        return last

    def summary(self) -> pd.DataFrame:
        """One row per method: metrics (mean over seeds; sigma of the first), costs, seeds.

        The costs are means per seed: delay, in virtual time also seconds, rounds, gradients
        and messages of all clients, bytes. Gradients and messages of an unfinished method are NaN.
        `diverged` counts the seeds that diverged; the mean is NaN if one did.
        """
        return summary_table(self)

    def notes(self) -> list[str]:
        """Sentences below a table: which models are evaluated, and the cost of a round."""
        return summary_notes(self)

    def to_latex(self) -> str:
        """The summary as a LaTeX table: mean ± σ over seeds, best first; needs booktabs."""
        return summary_latex(self)

    def __repr__(self) -> str:
        return summary_text(self)

    def _repr_html_(self) -> str:
        """The summary in a notebook."""
        return summary_html(self)

    # --- files -----------------------------------------------------------------------------------
    def as_dict(self) -> dict[str, Any]:
        """Everything but the tables, as in `summary.json`."""
        metrics = {}
        for name, metric in METRICS.items():
            if name in self.frame:
                metrics[name] = {
                    "label": label_of(name, self.evaluated_on),
                    "unit": metric.unit,
                    "better": metric.better,
                    "log": metric.log,
                }
        methods = json.loads(self.summary().to_json(orient="records"))
        facts = {
            "methods": methods,
            "algorithms": _old_rows(methods),
            "complete": self.complete,
            "diverged": [asdict(run) for run in self.diverged],
            "stalled": [asdict(run) for run in self.stalled],
            "stopped": [asdict(run) for run in self.stopped],
            "best": plain([asdict(run) for run in self.best]),
            "config": plain(self.config),
            "versions": self.versions,
            "engine": self.engine,
            "seconds": self.seconds,
            "scores": self.scores,
            "traits": self.traits,
            "objective": self.objective,
            "metrics": metrics,
        }
        if self.prediction is not None:
            facts["prediction"] = self.prediction
        return facts

    def write(self, folder: str | Path) -> None:
        """Write the tables, then the summary.

        Args:
            folder: The run folder; it exists.
        """
        folder = Path(folder)
        for name, file in _FILES.items():
            write(folder / file, parquet(getattr(self, name)))
        write(folder / SUMMARY, json.dumps(self.as_dict(), indent=2).encode())

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The record of a run folder; `config.toml` is not needed.

        Args:
            folder: The run folder.

        Raises:
            InvalidInput: if a file is missing or damaged.
        """
        folder = Path(folder)
        try:
            facts = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            scores = dict(facts["scores"])
            declare(scores)
            record = cls(
                **_read_tables(folder),
                config=dict(facts["config"]),
                versions=dict(facts["versions"]),
                diverged=[Diverged.from_dict(run) for run in facts["diverged"]],
                stopped=[Stopped(**run) for run in facts.get("stopped", [])],
                best=[Best.from_dict(run) for run in facts.get("best", [])],
                complete=facts["complete"] is True,
                seconds=facts["seconds"],
                prediction=facts.get("prediction"),
                scores=scores,
                traits=dict(facts.get("traits", {})),
                objective=str(facts.get("objective", "")),
                engine=str(facts.get("engine", "")),
            )
            _check_columns(record)
            return record
        except (OSError, ValueError, KeyError, TypeError) as error:
            _refuse_sweep(folder)
            reason = first_line(error)
            if isinstance(error, FileNotFoundError):
                reason = f"no {SUMMARY}" if not (folder / SUMMARY).exists() else "a file is missing"
            raise InvalidInput(
                f"{folder} is not a whole run directory ({reason}); run it again."
            ) from None

    # Deprecated names, removed in the next release.
    judged = RenamedAttribute("primary_metric")
    algorithms = RenamedAttribute("methods")


def _refuse_sweep(folder: Path) -> None:
    """Raise if a folder holds a sweep, whose cells are run folders."""
    try:
        cells = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["cells"]
        cell = folder / cells[0]["folder"]
    except (OSError, ValueError, LookupError, TypeError):
        return
    raise InvalidInput(f"{folder} holds a sweep; give the run folder of a cell, such as {cell}.")


def _read_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables of a run folder."""
    import pandas as pd

    tables: dict[str, pd.DataFrame] = {}
    for name, file in _FILES.items():
        tables[name] = pd.read_parquet(folder / file)
    return tables


def _check_columns(record: Record) -> None:
    """Raise KeyError if a table lacks a column that is required."""
    for name, columns in _REQUIRED_COLUMNS.items():
        for column in columns:
            if column not in getattr(record, name):
                raise KeyError(f"{_FILES[name]} has no column {column}")


def _old_rows(methods: list[dict[str, object]]) -> list[dict[str, object]]:
    """The rows of methods with the key `name` of older versions; removed in the next release."""
    rows = []
    for row in methods:
        values = dict(row)
        rows.append({"name": values.pop("method"), **values})
    return rows


def is_complete(folder: Path) -> bool:
    """Whether a folder, which may be missing, holds a run that reached its end."""
    try:
        return json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["complete"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    return dict(_installed_versions())


@cache
def _installed_versions() -> dict[str, str]:
    """Cached: every look-up searches the folders of all installed packages."""
    found = {"python": platform.python_version()}
    for name in ("spodgt", "torch", "numpy", "numba", "scipy", "networkx", "pandas"):
        found[name] = metadata.version(name)
    return found

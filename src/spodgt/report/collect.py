"""What a report is made of, read from folders: nothing here needs the run to be in memory."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd

from spodgt.errors import InvalidInput, SpodgtError
from spodgt.record.record import Diverged
from spodgt.sweeps.cell import seconds_of
from spodgt.sweeps.sweep import SOURCE, SUMMARY, label, last_looks

MOST_RUNS = 24  # of a sweep: more would make the page too heavy, they have their own folders


@dataclass(frozen=True, eq=False)
class RunData:
    """A run directory."""

    folder: Path
    name: str
    frame: pd.DataFrame
    activity: pd.DataFrame
    config: dict[str, Any]
    versions: dict[str, str]
    complete: bool
    stopped: list[str]
    seconds: float | None
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def budget(self) -> float | None:
        """The delay at which runs end, where a config says so."""
        section = self.config.get("run")
        return section.get("delay") if isinstance(section, dict) else None

    @property
    def title(self) -> str:
        return ", ".join(f"{key.rsplit('.', 1)[-1]} {label(value)}" for key, value in self.keys.items())


@dataclass(frozen=True, eq=False)
class Page:
    """Everything a report shows."""

    folder: Path
    title: str
    runs: list[RunData]
    results: pd.DataFrame  # one row per cell, algorithm and seed
    grid: dict[str, list[Any]] = field(default_factory=dict)
    figure: str = ""
    paper: str = ""
    scale: str = ""
    source: str = ""  # TOML to rerun from
    command: str = ""
    failures: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # cells not run yet
    seconds: float | None = None


def read(folder: str | Path) -> Page:
    """A run directory, or the folder of a sweep or a reproduction."""
    folder = Path(folder)
    if (folder / SUMMARY).exists():
        return _sweep(folder)
    if (folder / "summary.json").exists():
        return _single(folder)
    raise InvalidInput(
        f"{folder} holds neither a run (summary.json) nor a sweep ({SUMMARY}); "
        "give the folder that spodgt compare, run, sweep or reproduce wrote to."
    )


def read_run(folder: Path, name: str = "", keys: dict[str, Any] | None = None) -> RunData:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        frame = pd.read_parquet(folder / "metrics.parquet")
        activity = pd.read_parquet(folder / "participation.parquet")
        return RunData(
            folder,
            name or folder.name,
            frame,
            activity,
            summary["config"],
            summary["versions"],
            bool(summary["complete"]),
            [str(Diverged(**each)) for each in summary["diverged"]],
            seconds_of(folder),
            keys or {},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(f"{folder} is not a whole run directory ({reason}); run it again.") from None


def _single(folder: Path) -> Page:
    run = read_run(folder)
    looks = last_looks(folder)
    source = (folder / "config.toml").read_text(encoding="utf-8")
    config = run.config.get("run")
    command = _again("run", folder / "config.toml", folder) if config else ""
    return Page(folder, folder.name, [run], looks, source=source, command=command, seconds=run.seconds)


def _sweep(folder: Path) -> Page:
    try:
        note = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        cells = note["cells"]
        done = [cell for cell in cells if cell["complete"]]
        runs = [read_run(folder / cell["folder"], cell["name"], cell["keys"]) for cell in done[:MOST_RUNS]]
        results = pd.read_parquet(folder / "results.parquet") if done else pd.DataFrame()
        times = [cell["seconds"] for cell in done if cell["seconds"]]
        shipped = bool(note["figure"])
        return Page(
            folder,
            note["title"] or note["name"],
            runs,
            results,
            grid=note["grid"],
            figure=note["figure"],
            paper=note["paper"],
            scale="; ".join(filter(None, (note["scale"], _changes(note["changes"])))),
            source=(folder / SOURCE).read_text(encoding="utf-8"),
            command=_reproduce(note) if shipped else _again("sweep", folder / SOURCE, folder),
            failures={cell["name"]: cell["error"] for cell in cells if cell["error"]},
            missing=[cell["name"] for cell in cells if not cell["complete"] and not cell["error"]],
            seconds=sum(times) if times else None,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{folder}/{SUMMARY} cannot be read ({error}); run the sweep again.") from None


def _again(command: str, file: Path, folder: Path) -> str:
    return shlex.join(["spodgt", command, str(file), "--out", f"{folder}-again"])


def _changes(changes: dict[str, Any]) -> str:
    listed = ", ".join(f"{key} = {label(value)}" for key, value in changes.items())
    return f"changed by hand: {listed}" if listed else ""


def _reproduce(note: dict[str, Any]) -> str:
    words = ["spodgt", "reproduce", note["name"], "--scale", note["scale"].split(" ")[0] or "paper"]
    for key, value in note["changes"].items():  # JSON of a number, text or list reads as TOML
        words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join(words)


# --- networks and what they really did ------------------------------------------------------------
def networks(run: RunData) -> dict[int, dict[str, Any]]:
    """For every seed: where the clients stand, p of each, and (sender, receiver, p̂) of every link."""
    if not len(run.activity):
        return {}
    drawn = {}
    first = run.activity["algorithm"].iloc[0]
    for seed, rows in run.activity[run.activity["algorithm"] == first].groupby("seed", sort=False):
        clients, links = rows[rows["kind"] == "client"], rows[rows["kind"] == "link"]
        pairs = links[["sender", "receiver"]].to_numpy(int)
        drawn[int(str(seed))] = {
            "places": _places(run, int(str(seed)), len(clients), pairs),
            "p": clients["probability"].to_numpy(float),
            "links": pairs,
            "p_hat": links["probability"].to_numpy(float),
        }
    return drawn


def _places(run: RunData, seed: int, clients: int, links: np.ndarray) -> np.ndarray:
    """The drawn positions where the config tells them and they are those of this run, else a layout."""
    from spodgt import figures
    from spodgt.experiment import Experiment

    try:
        network, _ = Experiment.parse(run.config).draw_network(seed)
        same = np.array_equal(np.stack([network.senders, network.receivers], 1), links)
        if network.clients == clients and same:
            return np.asarray(figures.positions(network))
    except (SpodgtError, KeyError, TypeError):
        pass  # a run from Python has no config; its links are enough
    if clients <= 60:
        graph = nx.Graph()
        graph.add_nodes_from(range(clients))
        graph.add_edges_from(map(tuple, links))
        layout = nx.kamada_kawai_layout(graph)
        return np.array([layout[client] for client in range(clients)])
    angle = 2 * np.pi * np.arange(clients) / clients
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def seen(run: RunData) -> dict[str, dict[int, dict[str, Any]]]:
    """For every method and seed: the share of rounds in which each client computed and each link carried.

    Round 0 has gradients but no messages. Runs that diverged are left out: their rounds are not known.
    """
    if not len(run.activity):
        return {}
    rounds = run.frame.groupby(["algorithm", "seed"], sort=False)["round"].max()
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for (method, seed), rows in run.activity.groupby(["algorithm", "seed"], sort=False):
        if any(text.startswith(f"{method} (seed {seed})") for text in run.stopped):
            continue
        last = int(str(rounds.get((method, seed), 0)))
        clients, links = rows[rows["kind"] == "client"], rows[rows["kind"] == "link"]
        found.setdefault(str(method), {})[int(str(seed))] = {
            "rounds": last,
            "clients": clients["gradients"].to_numpy() / (last + 1),
            "links": links["messages"].to_numpy() / max(1, last),
        }
    return found

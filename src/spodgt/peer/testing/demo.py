"""`spodgt peer demo`: five local peers on images, two of them killed and restarted, and a picture of it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from spodgt.errors import Failed, InvalidInput
from spodgt.experiment import Experiment
from spodgt.figures import COLOURS
from spodgt.peer.membership.run_folders import create
from spodgt.peer.options import Deployment, Options
from spodgt.peer.testing.fleet import Fleet

_START_SECONDS = 180.0
_PLAN = ((0.3, "p1", "killed"), (0.45, "p1", "back"), (0.5, "p3", "killed"), (0.7, "p3", "back"))
Event = tuple[float, str, str]  # wall time, client, "killed" or "back"


def five_peers(*, step_size: float, labels: int, method: str = "spod-gt-memory") -> Experiment:
    """A linear model on images, `labels` classes per client."""
    partition = {"kind": "labels-per-client", "labels": labels}
    return Experiment.parse(
        {
            "run": {"methods": [method], "step_size": step_size, "seeds": 1},
            "network": {"kind": "exponential", "clients": 5},
            "participation": {"kind": "always"},
            "problem": {"data": "fashion-mnist-small", "model": "svm", "partition": partition},
        }
    )


def demo(out: Path, seconds: float, console: Console) -> dict[str, object]:
    """Run the peers for `seconds`, audit their disks and draw demo.png. Replaces an earlier demo."""
    if not seconds >= 10:
        raise InvalidInput(f"seconds must be at least 10, got {seconds}; use --seconds 40.")
    run, mark = out / "run", out / "run" / ".demo"
    if mark.exists():
        shutil.rmtree(run)
    elif run.exists():
        raise InvalidInput(f"{run} is there and not of a demo; give another folder with --out.")
    create(run, five_peers(step_size=0.05, labels=2), Deployment(rounds_per_second=30.0))
    mark.touch()
    with Fleet(run, Options(durability="process", report_every=0.5, evaluate_every=1.0)) as fleet:
        console.print(f"starting {len(fleet.names)} peers in {run} …")
        fleet.start()
        try:
            fleet.rounds(2, _START_SECONDS)
        except TimeoutError:
            why = f"the peers did not start within {_START_SECONDS:.0f} s"
            raise Failed(f"{why}; see {run}/*/log.jsonl.") from None
        begun = time.time()
        events = _disturb(fleet, begun, seconds, console)
        fleet.stop()
        found = fleet.audit()
        rows = {name: fleet.log(name, "status") for name in fleet.names}
    picture = out / "demo.png"
    draw(rows, events, found.error, picture)
    last = {name: log[-1]["accuracy"] for name, log in rows.items() if log}
    zero = "(relative; zero to rounding)"
    console.print(f"audit of all mass, from the disks: [bold]{found.error:.1e}[/] {zero}")
    console.print("accuracy: " + ", ".join(f"{name} {value:.3f}" for name, value in last.items()))
    console.print(f"picture: [bold]{picture}[/]")
    times = [(at - begun, name, what) for at, name, what in events]
    return {"audit": vars(found), "accuracy": last, "picture": str(picture), "events": times}


def _disturb(fleet: Fleet, begun: float, seconds: float, console: Console) -> list[Event]:
    """Kill and restart clients by the plan, until `seconds` are over."""
    events = []
    for fraction, name, what in _PLAN:
        time.sleep(max(0.0, begun + fraction * seconds - time.time()))
        (fleet.kill if what == "killed" else fleet.start)(name)
        events.append((time.time(), name, what))
        note = " (kill -9)" if what == "killed" else ""
        console.print(f"{events[-1][0] - begun:5.1f} s  {name} {what}{note}")
    time.sleep(max(0.0, begun + seconds - time.time()))
    return events


def draw(
    rows: dict[str, list[dict[str, Any]]], events: list[Event], error: float | None, path: Path
) -> None:
    """Accuracy of every client against time and its local audit below, from rows "status" of their logs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    start = min((row["time"] for log in rows.values() for row in log), default=0.0)
    at = {(name, what): when - start for when, name, what in events}
    for (name, log), colour in zip(rows.items(), COLOURS, strict=False):
        points = [(row["time"] - start, row["accuracy"], max(row["audit"], 1e-20)) for row in log]
        times, accuracy, audit = np.array(points, float).reshape(-1, 3).T
        below.plot(times, audit, ".", color=colour, markersize=4)
        killed = at.get((name, "killed"), np.inf)
        for part, label in ((times <= killed, name), (times > killed, None)):
            above.plot(times[part], accuracy[part], color=colour, label=label, linewidth=1.8)
        if (name, "back") in at:
            back = min(
                times[times > at[name, "back"]], default=at[name, "back"]
            )  # until its first report
            above.axvspan(killed, back, color=colour, alpha=0.12, linewidth=0)
            above.text(killed, 0.02, f" {name} dead", color=colour, fontsize=9)
    total = "" if error is None else f"; all mass, from the disks at the end: {error:.1e}"
    above.set_title(f"five peers, two killed and restarted{total}", loc="left", fontsize=10)
    above.set(ylabel="test accuracy", ylim=(0, 1))
    above.legend(ncols=5, frameon=False, fontsize=9, loc="upper left")
    below.set(yscale="log", ylim=(1e-21, 1e-8), xlabel="seconds")
    below.set_ylabel("local audit |L|\n(0 is drawn at 1e-20)")
    below.axhline(1e-12, color="0.5", linestyle="--", linewidth=1)
    right = below.get_yaxis_transform()
    below.text(1, 2e-12, "limit 1e-12", ha="right", fontsize=8, color="0.4", transform=right)
    for axes in (above, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)

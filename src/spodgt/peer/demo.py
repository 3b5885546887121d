"""`spodgt peer demo`: five local peers on images, two of them killed on the way, and a picture of it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from spodgt.errors import Failed, InvalidInput
from spodgt.experiment.config import Config
from spodgt.figures import COLOURS
from spodgt.peer import setup
from spodgt.peer.fleet import Fleet
from spodgt.peer.runner import Options

_START_SECONDS = 180.0


def five_peers(*, step_size: float, labels: int) -> Config:
    """A linear model on images, `labels` classes per client."""
    return Config.parse(
        {
            "run": {"methods": ["spod-gt-memory"], "step_size": step_size, "seeds": 1},
            "network": {"kind": "exponential", "clients": 5},
            "participation": {"kind": "always"},
            "problem": {
                "data": "fashion-mnist-small",
                "model": "svm",
                "partition": {"kind": "labels-per-client", "labels": labels},
            },
        }
    )


def demo(out: Path, seconds: float, console: Console) -> dict[str, Any]:
    """Run it, audit the disks, draw `demo.png`."""
    if not seconds >= 10:
        raise InvalidInput(f"seconds must be at least 10, got {seconds}; use --seconds 40.")
    run, mark = out / "run", out / "run" / ".demo"
    if mark.exists():
        shutil.rmtree(run)  # an earlier demo
    elif run.exists():
        raise InvalidInput(f"{run} is there and not of a demo; give another folder with --out.")
    setup.init(run, five_peers(step_size=0.05, labels=2), options={"rounds_per_second": 30.0})
    mark.touch()
    options = Options(durability="process", report_seconds=0.5, evaluate_seconds=1.0)
    moments: list[tuple[float, str, str]] = []
    with Fleet(run, options) as fleet:
        console.print(f"starting {len(fleet.names)} peers in {run} …")
        fleet.start()
        try:
            fleet.rounds(2, _START_SECONDS)
        except TimeoutError:
            raise Failed(
                f"the peers did not start within {_START_SECONDS:.0f} s; see {run}/*/log.jsonl."
            ) from None
        begun = time.time()
        plan = [(0.3, "p1", "killed"), (0.45, "p1", "back"), (0.5, "p3", "killed"), (0.7, "p3", "back")]
        for share, name, what in plan:
            time.sleep(max(0.0, begun + share * seconds - time.time()))
            (fleet.kill if what == "killed" else fleet.start)(name)
            moments.append((time.time() - begun, name, what))
            console.print(
                f"{moments[-1][0]:5.1f} s  {name} {what}" + (" (kill -9)" if what == "killed" else "")
            )
        time.sleep(max(0.0, begun + seconds - time.time()))
        fleet.stop()
        found = fleet.audit()
        rows = {name: fleet.log(name, "status") for name in fleet.names}
    picture = out / "demo.png"
    draw(rows, moments, begun, found.error, picture)
    last = {name: log[-1]["accuracy"] for name, log in rows.items() if log}
    console.print(
        f"audit of all mass, from the disks: [bold]{found.error:.1e}[/] (relative; zero to rounding)"
    )
    console.print("accuracy: " + ", ".join(f"{name} {value:.3f}" for name, value in last.items()))
    console.print(f"picture: [bold]{picture}[/]")
    return {"audit": found.to_dict(), "accuracy": last, "picture": str(picture), "moments": moments}


def draw(
    rows: dict[str, list[dict[str, Any]]],
    moments: list[tuple[float, str, str]],
    begun: float,
    error: float | None,
    path: Path,
) -> None:
    """Accuracy of every client against time, and its local audit below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    start = min((row["time"] for log in rows.values() for row in log), default=begun)
    gaps = {(name, what): at + begun - start for at, name, what in moments}
    begun = start
    for number, (name, log) in enumerate(rows.items()):
        colour = COLOURS[number % len(COLOURS)]
        times = [row["time"] - begun for row in log]
        values: list[float] = [row["accuracy"] for row in log]
        killed, back = gaps.get((name, "killed")), gaps.get((name, "back"))
        if killed is not None and back is not None:
            at = sum(t <= killed for t in times)
            back = next((t for t in times if t > back), back)  # until it speaks again
            times.insert(at, killed)
            values.insert(at, float("nan"))  # no line while it is dead
            above.axvspan(killed, back, color=colour, alpha=0.12, linewidth=0)
            above.annotate(
                f"{name} dead",
                (killed, 0.02),
                xytext=(3, 0),
                textcoords="offset points",
                color=colour,
                fontsize=9,
            )
        above.plot(times, values, color=colour, label=name, linewidth=1.8)
        below.plot(
            [row["time"] - begun for row in log],
            [max(row["audit"], 1e-20) for row in log],
            ".",
            color=colour,
            markersize=4,
        )
    above.set_ylabel("test accuracy")
    above.set_ylim(0, 1)
    above.legend(ncols=5, frameon=False, fontsize=9, loc="upper left")
    total = "" if error is None else f"; all mass, from the disks at the end: {error:.1e}"
    above.set_title(f"five peers, two killed and restarted{total}", loc="left", fontsize=10)
    below.set_yscale("log")
    below.set_ylim(1e-21, 1e-8)
    below.axhline(1e-12, color="0.5", linestyle="--", linewidth=1)
    below.text(
        0.995,
        2e-12,
        "limit 1e-12",
        ha="right",
        va="bottom",
        fontsize=8,
        color="0.4",
        transform=below.get_yaxis_transform(),
    )
    below.set_ylabel("local audit |L|\n(0 is drawn at 1e-20)")
    below.set_xlabel("seconds")
    for axes in (above, below):
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)

"""The report page of `spodgt simulate`: scores, exchanges and the audit of all sites, in one HTML file."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from spodgt.figures import COLOURS
from spodgt.peer.protocol.audit import Audit
from spodgt.sites.simulate import ScriptRun

AUDIT_LIMIT = 1e-12
_SCORES = {"loss": "loss", "accuracy": "accuracy"}
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class SiteSummary:
    """One row of the report."""

    name: str
    participation: float  # p
    blocks: int
    steps: int
    messages: int  # sent
    megabytes: float  # sent
    loss: float | None  # reported last; None: never
    accuracy: float | None
    seconds: float


@dataclass(frozen=True)
class Point:
    """Scores that a site has reported."""

    seconds: float  # since the first report of any site
    steps: int
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True)
class SimulationResult:
    """What came out of a run of a script on all sites."""

    run: ScriptRun
    sites: list[SiteSummary]
    curves: dict[str, list[Point]]
    audit: Audit

    @classmethod
    def read(cls, run: ScriptRun) -> SimulationResult:
        """From the folders of the sites, after their processes have ended."""
        sites = [summarize(run, name) for name in run.names]
        return cls(run, sites, read_curves(run), run.audit())

    @property
    def audit_passed(self) -> bool:
        """Whether no mass is missing."""
        return self.audit.passed(AUDIT_LIMIT)

    @property
    def remarks(self) -> list[str]:
        """What is unusual about the run."""
        silent = [site.name for site in self.sites if site.messages == 0]
        if not silent:
            return []
        return [
            f"{', '.join(silent)} sent no message: the training ended before the links were connected; "
            "train longer."
        ]

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {
            "folder": str(self.run.folder),
            "sites": [vars(site) for site in self.sites],
            "audit": self.audit.error,
            "audit_passed": self.audit_passed,
            "problems": self.audit.problems,
            "remarks": self.remarks,
        }


def summarize(run: ScriptRun, name: str) -> SiteSummary:
    """The row of a site, from its last status."""
    status = run.status(name)
    sent = [link for link in status.get("neighbours", ()) if link["way"] == "to"]
    return SiteSummary(
        name=name,
        participation=float(str(run.manifest.client(name).compute.get("p", 1.0))),
        blocks=max(0, status.get("k", 1) - 1),
        steps=status.get("gradients", 0),
        messages=sum(link["messages"] for link in sent),
        megabytes=sum(link["bytes"] for link in sent) / 1e6,
        loss=status.get("loss"),
        accuracy=status.get("accuracy"),
        seconds=status.get("seconds", 0.0),
    )


def read_curves(run: ScriptRun) -> dict[str, list[Point]]:
    """Reported scores of each site, from the logs."""
    rows = {name: _score_rows(run.site_folder(name) / "log.jsonl") for name in run.names}
    start = min((site[0]["time"] for site in rows.values() if site), default=0.0)
    curves = {}
    for name, site in rows.items():
        curves[name] = [
            Point(row["time"] - start, row["steps"], row["loss"], row["accuracy"]) for row in site
        ]
    return curves


def _score_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    if not path.exists():
        return []
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed process
            row = json.loads(line)
            if row.get("event") == "scores":
                rows.append(row)
    return rows


def write_report(result: SimulationResult, path: Path) -> None:
    """Write the page, with its picture inside."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    run = result.run
    links = [
        f"{link.sender} → {link.receiver} (p̂ = {link.p_hat:.3g})" for link in run.manifest.links
    ]
    page = environment.get_template("simulation.html.j2").render(
        script=str(run.script),
        arguments=" ".join(run.arguments),
        result=result,
        links=links,
        limit=AUDIT_LIMIT,
        picture=draw_curves(result),
    )
    path.write_text(page, encoding="utf-8")


def draw_curves(result: SimulationResult) -> str:
    """SVG of the reported scores against steps; "" if the script has reported none."""
    drawn = [key for key in _SCORES if _has_score(result, key)]
    if not drawn:
        return ""
    figure = Figure(figsize=(8, 2.6 * len(drawn)), layout="constrained")
    panels = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    for axes, key in zip(panels, drawn, strict=True):
        for number, (name, points) in enumerate(result.curves.items()):
            steps = [point.steps for point in points if getattr(point, key) is not None]
            values = [getattr(point, key) for point in points if getattr(point, key) is not None]
            axes.plot(steps, values, label=name, color=COLOURS[number % len(COLOURS)])
        axes.set_ylabel(_SCORES[key])
        axes.grid(alpha=0.25)
    panels[0].legend(ncols=8, frameon=False, fontsize=8)
    panels[-1].set_xlabel("local steps")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _has_score(result: SimulationResult, key: str) -> bool:
    return any(
        getattr(point, key) is not None for points in result.curves.values() for point in points
    )

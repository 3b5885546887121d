"""The report page of `spodgt simulate`: scores, exchanges and the audit, in one HTML file."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from spodgt.figures import COLOURS
from spodgt.peer.protocol.audit import Audit
from spodgt.sites.simulate import ScriptRun, SiteProgress

AUDIT_LIMIT = 1e-12
_HERE = Path(__file__).parent


class SiteRow(NamedTuple):
    """One row of the report."""

    name: str
    participation: float  # p
    progress: SiteProgress

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {"name": self.name, "p": self.participation, **self.progress._asdict()}


class ReportedScore(NamedTuple):
    """Scores that a site has reported."""

    time: float  # of the clock
    steps: int
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True)
class SimulationResult:
    """What came out of a run of a script on all sites."""

    run: ScriptRun
    sites: list[SiteRow]
    scores: dict[str, list[ReportedScore]]
    audit: Audit

    @classmethod
    def read(cls, run: ScriptRun) -> SimulationResult:
        """From the folders of the sites, after their processes have ended."""
        sites = [read_site(run, name) for name in run.names]
        scores = {name: read_scores(run.site_folder(name) / "log.jsonl") for name in run.names}
        return cls(run, sites, scores, run.audit())

    @property
    def audit_passed(self) -> bool:
        """Whether no mass is missing."""
        return self.audit.passed(AUDIT_LIMIT)

    @property
    def remarks(self) -> list[str]:
        """What is unusual about the run."""
        silent = [site.name for site in self.sites if site.progress.messages == 0]
        if not silent:
            return []
        return [
            f"{', '.join(silent)} sent no message: the training ended before the links were "
            "connected; train longer."
        ]

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {
            "folder": str(self.run.folder),
            "sites": [site.to_dict() for site in self.sites],
            "audit": self.audit.error,
            "audit_passed": self.audit_passed,
            "problems": self.audit.problems,
            "remarks": self.remarks,
        }


def read_site(run: ScriptRun, name: str) -> SiteRow:
    """The row of a site, from its last status."""
    participation = float(str(run.manifest.client(name).compute.get("p", 1.0)))
    return SiteRow(name, participation, run.progress(name))


def read_scores(path: Path) -> list[ReportedScore]:
    """The scores in the log of a site."""
    if not path.exists():
        return []
    scores = []
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed process
            row = json.loads(line)
            if row.get("event") == "scores":
                scores.append(
                    ReportedScore(row["time"], row["steps"], row["loss"], row["accuracy"])
                )
    return scores


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
        picture=draw_scores(result),
    )
    path.write_text(page, encoding="utf-8")


def draw_scores(result: SimulationResult) -> str:
    """SVG of the reported scores against steps; "" if the script has reported none."""
    drawn = [key for key in ("loss", "accuracy") if _has_score(result, key)]
    if not drawn:
        return ""
    figure = Figure(figsize=(8, 2.6 * len(drawn)), layout="constrained")
    panels = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    for axes, key in zip(panels, drawn, strict=True):
        for number, (name, scores) in enumerate(result.scores.items()):
            reported = [score for score in scores if getattr(score, key) is not None]
            steps = [score.steps for score in reported]
            values = [getattr(score, key) for score in reported]
            axes.plot(steps, values, label=name, color=COLOURS[number % len(COLOURS)])
        axes.set_ylabel(key)
        axes.grid(alpha=0.25)
    panels[0].legend(ncols=8, frameon=False, fontsize=8)
    panels[-1].set_xlabel("local steps")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _has_score(result: SimulationResult, key: str) -> bool:
    last = [scores[-1] for scores in result.scores.values() if scores]
    return any(getattr(score, key) is not None for score in last)

"""A run on quadratics against what the theory predicts for it: a section of `report.html`."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from spodgt.algorithms.base import Rule
from spodgt.errors import Failed, SpodgtError
from spodgt.problems import Quadratic
from spodgt.theory.dynamics import Dynamics
from spodgt.theory.survey import METHODS, MOST_EXACT, rounds_per_digit, setup
from spodgt.types import Floats, Ints

_SECONDS = 4.0  # for the curves of one method
_BINS = 25
_LEAST = 20  # rounds of a curve that is worth drawing


@dataclass(frozen=True, eq=False)
class Line:
    """One method: root mean squares over `seeds` of the distance from the optimum."""

    method: str
    seeds: list[int]
    rounds: Ints  # of the measured points
    measured: Floats
    predicted: Floats  # (K + 1,) for every round, as far as it was affordable
    floor: float  # where it must end; NaN where that would take too long
    rate: float  # slowest factor of the mean square per round; NaN likewise

    def as_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "seeds": self.seeds,
            "rounds": self.rounds.tolist(),
            "measured": self.measured.tolist(),
            "predicted": self.predicted.tolist(),
            "floor": None if np.isnan(self.floor) else self.floor,
            "rate": None if np.isnan(self.rate) else self.rate,
        }


@dataclass(frozen=True, eq=False)
class Section:
    """Measured against predicted, as data and as a piece of HTML."""

    lines: list[Line]

    def as_dict(self) -> dict[str, Any]:
        return {"lines": [line.as_dict() for line in self.lines]}

    def picture(self) -> bytes:
        """SVG: points are measured, lines predicted, dashes the floor."""
        from spodgt import figures

        figure, axes = figures.new(7.2, 4.0)
        for number, line in enumerate(self.lines):
            colour = figures.COLOURS[number]
            axes.plot(line.predicted, color=colour, linewidth=1.6, label=line.method)
            axes.plot(line.rounds, line.measured, "o", color=colour, markersize=3, alpha=0.7)
            if line.floor > 0:
                axes.axhline(line.floor, color=colour, linewidth=0.9, linestyle="--")
        axes.set_yscale("log")
        axes.set_xlabel("round")
        axes.set_ylabel("distance from the optimum (root mean square)")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()

    def html(self) -> str:
        """A section that needs no script."""
        rows = "".join(
            f"<tr><td>{escape(line.method)}</td><td>{_number(line.measured[-1])}</td>"
            f"<td>{_number(line.predicted[-1] if _reaches(line) else np.nan)}</td>"
            f"<td>{_number(line.floor)}</td><td>{_number(line.rate, 6)}</td>"
            f"<td>{_number(rounds_per_digit(line.rate) if line.rate < 1 else np.nan)}</td></tr>"
            for line in self.lines
        )
        image = base64.b64encode(self.picture()).decode()
        return f"""<section>
<h2>Measured and predicted</h2>
<p class="soft">On quadratics the mean square of the distance from the optimum can be computed. Points are
measured over seeds {escape(", ".join(map(str, self.lines[0].seeds)))}, lines predicted for the same networks,
dashes where they must end.</p>
<figure><img alt="distance from the optimum against rounds, measured and predicted"
style="max-width:100%;background:#fff" src="data:image/svg+xml;base64,{image}"></figure>
<div class="scroll"><table><thead><tr><th>method</th><th>distance at the end</th><th>predicted</th>
<th>floor</th><th>rate of the mean square</th><th>rounds a digit</th></tr></thead>
<tbody>{rows}</tbody></table></div>
</section>
"""


def section(config: dict[str, Any], frame: pd.DataFrame) -> Section | None:
    """The section for a run with this config and these metrics; None where there is nothing to predict."""
    from spodgt.experiment import Experiment

    try:
        chosen = Experiment.parse(config)
        if config["problem"]["kind"] != "quadratic" or "distance" not in frame:
            return None
        if chosen.participation.name not in ("always", "bernoulli", "beta"):
            return None
        lines = [_line(chosen, frame, rule, method) for rule, method in METHODS.items()]
    except (SpodgtError, KeyError, TypeError):  # a run from Python has no config to build the problem from
        return None
    found = [line for line in lines if line is not None]
    return Section(found) if found else None


def _line(config: Any, frame: pd.DataFrame, rule: Rule, method: str) -> Line | None:
    rows = frame[(frame["algorithm"] == method) & np.isfinite(frame["distance"])]
    step = {
        table.get("step_size", config.run.step_size) for table in _tables(config) if table["name"] == method
    }
    if not len(rows) or len(step) != 1 or not isinstance(eta := step.pop(), int | float):
        return None
    drawn = {int(seed): setup(config, int(seed)) for seed in rows["seed"].unique()}
    first = next(iter(drawn.values()))
    assert isinstance(first.problem, Quadratic)
    states = first.problem.clients * first.problem.parameters * (3 if rule == "memory" else 2)
    rounds, seconds = int(rows["round"].max()), 1e-3 + 2e-7 * states**2
    affordable = int(_SECONDS / seconds)
    if affordable < _LEAST:
        return None
    seeds = list(drawn)[: max(1, affordable // max(1, rounds))]
    squares, floors, rates = [], [], []
    for seed in seeds:
        s = drawn[seed]
        dynamics = Dynamics(
            s.network,
            s.p,
            s.p_hat,
            s.problem.H.double().numpy(),
            s.problem.c.double().numpy(),
            rule=rule,
            noise=s.problem.noise,
        )
        x0 = s.problem.start(seed).double().numpy()
        squares.append(dynamics.curve(eta, x0, min(rounds, affordable)))
        small = s.network.clients * s.problem.parameters <= MOST_EXACT
        rates.append(dynamics.mean_square_radius(eta) if small else np.nan)
        floors.append(_floor(dynamics, eta) if small else np.nan)
    looks = rows[rows["seed"].isin(seeds)]
    looks = looks.assign(square=looks["distance"] ** 2, at=looks["round"])
    if (looks.groupby("round")["seed"].nunique() < len(seeds)).any():
        # looked at by delay, so in other rounds for every seed: take rounds together
        width = max(1, -(-rounds // _BINS))
        middle = (looks["round"] // width * width + width // 2).clip(upper=rounds)
        looks = looks.assign(at=middle.where(looks["round"] > 0, 0))
    measured = looks.groupby("at")["square"].mean()
    with np.errstate(over="ignore"):
        predicted = np.sqrt(np.maximum(np.mean(squares, axis=0), 0.0))
    return Line(
        method,
        seeds,
        measured.index.to_numpy(np.int64),
        np.sqrt(measured.to_numpy(np.float64)),
        predicted,
        float(np.sqrt(np.mean(floors))),
        float(np.max(rates)),
    )


def _floor(dynamics: Dynamics, eta: float) -> float:
    try:
        return dynamics.floor(eta)
    except Failed:
        return float("nan")


def _tables(config: Any) -> list[dict[str, Any]]:
    return [{"name": entry} if isinstance(entry, str) else entry for entry in config.run.methods]


def _reaches(line: Line) -> bool:
    return bool(len(line.predicted) > line.rounds[-1])


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if np.isfinite(value) else "–"

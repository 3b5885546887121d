"""`spodgt theory`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from spodgt.cli.app import Changes, ConfigOption, JsonOption, SetOption, app, experiment_of, plain_table
from spodgt.errors import InvalidInput

if TYPE_CHECKING:
    from spodgt.experiment import Experiment
    from spodgt.theory import Estimates, Overview, Setting
    from spodgt.theory.inputs import Variant
    from spodgt.types import Floats


@app.command(epilog="Example: [bold]spodgt theory --set run.step_size=0.05 --set network.radius=0.6[/]")
def theory(
    config: ConfigOption = None,
    assign: SetOption = None,
    seed: Annotated[str, typer.Option(help="Which seed to draw.", metavar="NUMBER")] = "0",
    exact: Annotated[
        bool, typer.Option("--exact", help="Analyse large quadratics exactly; may take minutes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the theory's conditions and bounds for an experiment, and exact or modelled rates."""
    from spodgt.theory import overview

    if not seed.isdigit():
        raise InvalidInput(f"--seed must be a whole number of at least 0, got {seed!r}; use --seed 0.")
    asked = setting_of(experiment_of(config, Changes(assign=assign).keys()), int(seed))
    waiting = Console(stderr=True)
    with nullcontext() if as_json or not waiting.is_terminal else waiting.status("") as status:
        found = overview(
            asked, exact=exact, report=lambda step: status.update(f"{step} …") if status else None
        )
    if as_json:
        print(json.dumps(found.as_dict(), indent=2, allow_nan=False))
        return
    console = Console(highlight=False, width=None)
    _experiment(console, found)
    _data(console, found.estimates)
    _conditions(console, found, "paper", "Conditions of the paper")
    _conditions(console, found, "corrected", "Conditions for which the proofs go through")
    _exact(console, found)


def setting_of(experiment: Experiment, seed: int) -> Setting:
    """One draw, with the step size of the first method that the theory covers and the length of the run."""
    from spodgt.algorithms.base import HasStepSize, positive
    from spodgt.algorithms.compose.schedules import schedule
    from spodgt.theory import setting

    run = experiment.run
    covered = [method for method in experiment.methods if method.traits.rule is not None]
    steps = [method.step_size for method in covered if isinstance(method, HasStepSize)]
    first = steps[0] if steps else None
    step = positive(schedule(run.step_size), "step_size of run") if first is None else first
    rounds = run.rounds or max(1, round((run.delay or 0) / 3))  # each of a round's three parts costs about 1
    return setting(experiment.draw(seed), step, rounds)


def _experiment(console: Console, found: Overview) -> None:
    s = found.setting
    _heading(console, f"The experiment, seed {s.draw.seed}")
    facts = {
        "clients, links": f"{s.draw.network.clients}, {s.draw.network.links}"
        + (" (every link both ways)" if s.draw.network.two_way else ""),
        "p, p̂": f"{_range(s.p)}, {_range(s.p_hat)}",
        "step size η": _range(s.step_size),
        "rounds": f"{s.rounds:,}",
        "diameter D, utility K": f"{found.graph.diameter}, {found.graph.edge_utility}",
        "Perron vectors φ̂, π̂": f"largest/smallest {_ratio(found.phi)}, {_ratio(found.pi)}; "
        f"effective step size m φ̂ᵀπ̂ η = {_n(found.effective_step)} η",
        "doubly stochasticable": ("yes" if found.doubly_stochasticable else "no") + ", without self-weights",
    }
    _facts(console, facts)
    for note in s.notes:
        _text(console, f"Note: {note}.")


def _data(console: Console, estimates: Estimates) -> None:
    from spodgt.theory.estimates import LETTERS

    e = estimates
    _heading(console, "The data" + (", exactly" if e.curvature == "exact" else ", estimated"))
    table = _table("", "mean", "smallest", "largest", "interval of the largest")
    for letter, one in zip(LETTERS.values(), (e.L, e.sigma0, e.sigma1, e.delta0, e.delta1), strict=True):
        worst = int(one.value.argmax())
        low, high = one.low[worst], one.high[worst]
        values = (one.value.mean(), one.value.min(), one.value.max())
        table.add_row(letter, *map(_n, values), f"{_n(low)} to {_n(high)}" if low < high else "exact")
    console.print(table)
    if e.curvature != "exact":
        _text(
            console,
            f"At {len(e.losses)} points of a descent from F = {_n(e.losses[0])} to {_n(e.losses[-1])}, |∇F| "
            f"{_n(e.gradient_norms[0])} to {_n(e.gradient_norms[-1])}; L by {e.curvature}.",
        )
    for note in e.notes:
        _text(console, f"Note: {note}.")


def _conditions(console: Console, found: Overview, variant: Variant, title: str) -> None:
    from spodgt.theory import Infeasible

    _heading(console, title)
    table = _table("", "condition", "value", "limit", "missed by")
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    for one in found.conditions[variant]:
        missed = f"×{_n(one.factor)}" if math.isfinite(one.factor) else "no limit"
        table.add_row(
            "[green]✓[/]" if one.holds else "[red]✗[/]",
            one.formula,
            _n(one.value),
            "–" if isinstance(one.limit, Infeasible) else _n(one.limit),
            "" if one.holds else missed,
        )
    console.print(table)
    limits = [one.limit for one in found.conditions[variant]]
    for reason in dict.fromkeys(limit.reason for limit in limits if isinstance(limit, Infeasible)):
        _text(console, f"No limit: {reason}.")
    _text(console, _bound(found, variant))


def _bound(found: Overview, variant: Variant) -> str:
    from spodgt.theory import Infeasible

    left = f"Bound on the mean of E|∇F|² over {found.setting.rounds:,} rounds"
    bound = found.paper_bound if variant == "paper" else found.corrected_bound
    if isinstance(bound, Infeasible):
        return f"{left}: none, it is infeasible."
    if isinstance(bound, float):
        text = f"{left}: {_n(bound)}"
    else:
        names = ("optimality", "models", "trackers", "η²", "constant")
        terms = ", ".join(f"{name} {_n(value)}" for name, value in zip(names, bound, strict=True))
        text = f"{left}: {_n(float(bound.sum()))} ({terms})"
    met = all(one.holds for one in found.conditions[variant])
    return f"{text}." if met else f"{text}; but not all conditions hold, so it proves nothing."


def _exact(console: Console, found: Overview) -> None:
    c = found.contraction
    _heading(console, "What is exactly true")
    facts = {
        "pulling": f"contracts disagreement of models by {c.A:.6g} a round in mean square "
        f"(1 - {_n(c.one_minus_bound_A)} at worst)",
        "pushing": f"contracts that of trackers by {c.B:.6g}"
        + (" (in the paper's norm, where it may grow)" if c.B > 1 else "")
        + f" and adds {_n(c.injection)} |Σy|²",
    }
    _facts(console, facts)
    _text(console, found.model.text)
    if not found.outlooks:
        _text(console, "Note: the dynamics of so many clients would take too long; they are left out.")
        return
    _outlooks(console, found)
    _text(
        console,
        "Rounds per decade: rounds for a 10× reduction of the distance, at the configured and at the "
        "recommended step size. Bias: distance of the mean limit from the optimum. Noise: stationary root "
        "mean square distance from the mean limit. Floor: both together.",
    )
    _text(console, _idle(found))


def _outlooks(console: Console, found: Overview) -> None:
    per_decade = ("rounds/\ndecade", "recom-\nmended")
    table = _table("method", "stable\nbelow", "recom-\nmended", *per_decade, "bias", "noise", "floor")
    for o in found.outlooks:
        table.add_row(
            o.method,
            _n(o.largest_stable_step),
            _n(o.recommended_step),
            _rounds(o.rounds_per_decade),
            _rounds(o.recommended_rounds_per_decade),
            *(_n(value, 2) for value in (o.bias, o.noise, o.floor)),
        )
    console.print(table)
    for o in found.outlooks:
        if not o.stable:
            _text(console, f"[red]{o.method} diverges with this step size[/]: the rate is {o.rate:.6g}.")


def _idle(found: Overview) -> str:
    """How far idle clients move the limit of the method that counts their gradients as zero."""
    from spodgt.types import HasOptimum

    zero, problem = found.outlooks[0], found.setting.draw.problem
    if isinstance(problem, HasOptimum):
        away = float((problem.optimum(found.setting.p) - problem.optimum()).norm())
        idle = f"Idle clients move the limit of {zero.method} by {_n(away)} from the optimum"
    else:
        idle = (
            f"Idle clients: at the last point the gradient that {zero.method} follows, Σ p_i ∇F_i / Σ p_i, "
            f"differs by {_n(found.gradient_bias)} of a client's typical gradient; in the model that moves "
            f"the limit by {_n(zero.bias)}"
        )
    return f"{idle}; with memory (or importance weights) by 0."


# --- words and numbers -------------------------------------------------------------------------------
def _table(first: str, *others: str) -> Table:
    table = plain_table()
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/]")


def _text(console: Console, text: str) -> None:
    console.print(Padding(text, (0, 0, 0, 0)))


def _facts(console: Console, facts: dict[str, str]) -> None:
    table = plain_table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    console.print(table)


def _n(value: float, digits: int = 3) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.{digits}g}"


def _rounds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:,.0f}"


def _range(values: Iterable[float]) -> str:
    some = list(values) or [1.0]  # a network without links
    low, high = min(some), max(some)
    return _n(low) if low == high else f"{_n(low)} to {_n(high)}"


def _ratio(values: Floats) -> str:
    return _n(float(values.max() / values.min()))

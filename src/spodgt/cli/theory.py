"""`spodgt theory`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from spodgt.cli.app import (
    ConfigOption,
    ConfigOptions,
    JsonOption,
    SetOption,
    app,
    flag,
    load_experiment,
    parse_seed,
    plain_table,
)
from spodgt.errors import InvalidInput

if TYPE_CHECKING:
    from spodgt.experiment import Experiment
    from spodgt.theory import Condition, Estimates, Setting, TheorySummary
    from spodgt.theory.constants import Variant
    from spodgt.types import Floats

_MAX_STEP_SIZE = 1e30  # its fourth power is a finite number
_BOUND_TERMS = ("optimality", "models", "trackers", "η²", "constant")
_EXPLANATION = (
    "Rounds per decade: rounds for a 10× reduction of the distance, at the configured and at the "
    "recommended step size. Bias: distance of the mean limit from the optimum. Noise: stationary "
    "root mean square distance from the mean limit. Floor: both together."
)


@app.command(
    epilog="Example: [bold]spodgt theory --set run.step_size=0.05 --set network.radius=0.6[/]"
)
def theory(
    config: ConfigOption = None,
    assign: SetOption = None,
    seed: Annotated[
        str, typer.Option(help="Seed of the network and the data.", metavar="NUMBER")
    ] = "0",
    exact: Annotated[
        bool, flag("--exact", "Analyse large quadratics exactly; may take minutes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the theory's conditions and bounds for an experiment, and exact or modelled rates."""
    from spodgt.theory import summarize

    number = parse_seed(seed)
    experiment = load_experiment(config, ConfigOptions(assign=assign).config_changes())
    setting = setting_of(experiment, number)
    step_size = float(setting.step_size.max())
    if step_size > _MAX_STEP_SIZE:
        raise InvalidInput(
            f"step_size={step_size:g} is too large to compute with; use --set run.step_size=0.01."
        )
    with Console(stderr=True, quiet=as_json).status("") as status:  # shown in terminals only
        summary = summarize(setting, exact=exact, report=lambda step: status.update(f"{step} …"))
    if as_json:
        print(json.dumps(summary.as_dict(), indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    for part in _parts(summary):
        console.print(part)


def setting_of(experiment: Experiment, seed: int) -> Setting:
    """One draw with the length of the run, and the step size of the first method in the theory."""
    from spodgt.algorithms.base import HasStepSize, positive
    from spodgt.algorithms.compose.schedules import schedule
    from spodgt.theory import setting

    run = experiment.run
    step_size = None
    for method in experiment.methods:
        if method.traits.rule is not None and isinstance(method, HasStepSize):
            step_size = method.step_size
            break
    if step_size is None:
        default = 0.01 if run.step_size is None else run.step_size
        step_size = positive(schedule(default), "step_size of run")
    # each of the three parts of a round costs a delay of about 1
    rounds = run.rounds or max(1, round((run.delay or 0) / 3))
    return setting(experiment.draw(seed), step_size, rounds)


def _parts(summary: TheorySummary) -> Iterator[str | Table]:
    """The texts and tables of the terminal output."""
    yield from _experiment(summary)
    yield from _data(summary.estimates)
    yield from _conditions(summary, "paper", "Conditions of the paper")
    yield from _conditions(summary, "corrected", "Conditions for which the proofs go through")
    yield from _dynamics(summary)


def _experiment(summary: TheorySummary) -> Iterator[str | Table]:
    setting = summary.setting
    network = setting.draw.network
    both_ways = " (every link both ways)" if network.two_way else ""
    doubly_stochasticable = "yes" if summary.doubly_stochasticable else "no"
    phi_ratio = _number(float(summary.phi.max() / summary.phi.min()))
    pi_ratio = _number(float(summary.pi.max() / summary.pi.min()))
    yield f"\n[bold]The experiment, seed {setting.draw.seed}[/]"
    yield _facts(
        {
            "clients, links": f"{network.clients}, {network.links}{both_ways}",
            "p, p̂": f"{_range(setting.p)}, {_range(setting.p_hat)}",
            "step size η": _range(setting.step_size),
            "rounds": f"{setting.rounds:,}",
            "diameter D, utility K": f"{summary.graph.diameter}, {summary.graph.edge_utility}",
            "Perron vectors φ̂, π̂": f"largest/smallest {phi_ratio}, {pi_ratio}; "
            f"effective step size m φ̂ᵀπ̂ η = {_number(summary.effective_step)} η",
            "doubly stochasticable": f"{doubly_stochasticable}, without self-weights",
        }
    )
    for note in setting.notes:
        yield f"Note: {note}."


def _data(estimates: Estimates) -> Iterator[str | Table]:
    from spodgt.theory.estimates import LETTERS

    is_exact = estimates.curvature == "exact"
    yield f"\n[bold]The data, {'exactly' if is_exact else 'estimated'}[/]"
    table = _table("", "mean", "smallest", "largest", "interval of the largest")
    for name, letter in LETTERS.items():
        estimate = getattr(estimates, name)
        values = estimate.value
        largest = int(values.argmax())
        low = estimate.low[largest]
        high = estimate.high[largest]
        interval = f"{_number(low)} to {_number(high)}" if low < high else "exact"
        means = (_number(values.mean()), _number(values.min()), _number(values.max()))
        table.add_row(letter, *means, interval)
    yield table
    if not is_exact:
        losses = estimates.losses
        norms = estimates.gradient_norms
        yield (
            f"At {len(losses)} points of a descent from F = {_number(losses[0])} to "
            f"{_number(losses[-1])}, |∇F| {_number(norms[0])} to {_number(norms[-1])}; "
            f"L by {estimates.curvature}."
        )
    for note in estimates.notes:
        yield f"Note: {note}."


def _conditions(summary: TheorySummary, variant: Variant, title: str) -> Iterator[str | Table]:
    conditions = summary.conditions[variant]
    yield f"\n[bold]{title}[/]"
    table = _table("", "condition", "value", "limit", "missed by")
    table.columns[1].justify = "left"
    table.columns[1].no_wrap = False
    reasons: dict[str, None] = {}  # in the order of the conditions
    for condition in conditions:
        table.add_row(*_condition_cells(condition))
        if not isinstance(condition.limit, float):
            reasons[condition.limit.reason] = None
    yield table
    for reason in reasons:
        yield f"No limit: {reason}."
    all_hold = all(condition.holds for condition in conditions)
    yield _bound(summary, variant, all_hold)


def _condition_cells(condition: Condition) -> list[str]:
    """Mark, formula, value, limit, and the factor by which it is missed."""
    limit = "–"
    if isinstance(condition.limit, float):
        limit = _number(condition.limit)
    mark = "[green]✓[/]"
    missed_by = ""
    if not condition.holds:
        mark = "[red]✗[/]"
        missed_by = "no limit"
        if math.isfinite(condition.factor):
            missed_by = f"×{_number(condition.factor)}"
    return [mark, condition.formula, _number(condition.value), limit, missed_by]


def _bound(summary: TheorySummary, variant: Variant, all_hold: bool) -> str:
    """A sentence with the bound on the mean squared gradient."""
    from spodgt.theory import Infeasible

    text = f"Bound on the mean of E|∇F|² over {summary.setting.rounds:,} rounds: "
    bound = summary.paper_bound if variant == "paper" else summary.corrected_bound
    if isinstance(bound, Infeasible):
        return f"{text}none, it is infeasible."
    if isinstance(bound, float):
        text += _number(bound)
    else:
        pairs = zip(_BOUND_TERMS, bound, strict=True)
        terms = ", ".join(f"{name} {_number(value)}" for name, value in pairs)
        text += f"{_number(float(bound.sum()))} ({terms})"
    if all_hold:
        return f"{text}."
    return f"{text}; but not all conditions hold, so it proves nothing."


def _dynamics(summary: TheorySummary) -> Iterator[str | Table]:
    contraction = summary.contraction
    may_grow = " (in the paper's norm, where it may grow)" if contraction.B > 1 else ""
    yield "\n[bold]What is exactly true[/]"
    yield _facts(
        {
            "pulling": f"contracts disagreement of models by {contraction.A:.6g} a round in mean "
            f"square (1 - {_number(contraction.one_minus_bound_A)} at worst)",
            "pushing": f"contracts that of trackers by {contraction.B:.6g}{may_grow} and adds "
            f"{_number(contraction.injection)} |Σy|²",
        }
    )
    yield summary.model.text
    if not summary.outlooks:
        yield "Note: the dynamics of so many clients would take too long; they are left out."
        return
    yield _outlooks(summary)
    for outlook in summary.outlooks:
        if not outlook.stable:
            where = "" if summary.model.exact else " in the model"
            yield (
                f"[red]{outlook.method} diverges{where} with this step size[/]: the rate is "
                f"{outlook.rate:.6g}."
            )
    yield _EXPLANATION
    yield _idle_clients(summary)


def _outlooks(summary: TheorySummary) -> Table:
    per_decade = ("rounds/\ndecade", "recom-\nmended")
    table = _table(
        "method", "stable\nbelow", "recom-\nmended", *per_decade, "bias", "noise", "floor"
    )
    for outlook in summary.outlooks:
        table.add_row(
            outlook.method,
            _number(outlook.largest_stable_step),
            _number(outlook.recommended_step),
            _rounds(outlook.rounds_per_decade),
            _rounds(outlook.recommended_rounds_per_decade),
            _number(outlook.bias, 2),
            _number(outlook.noise, 2),
            _number(outlook.floor, 2),
        )
    return table


def _idle_clients(summary: TheorySummary) -> str:
    """The shift of the limit by idle clients if their gradients count as zero."""
    from spodgt.problems.protocols import HasOptimum

    zero = summary.outlooks[0]
    problem = summary.setting.draw.problem
    if isinstance(problem, HasOptimum):
        shift = float((problem.optimum(summary.setting.p) - problem.optimum()).norm())
        text = f"Idle clients move the limit of {zero.method} by {_number(shift)} from the optimum"
    else:
        text = (
            f"Idle clients: at the last point the gradient that {zero.method} follows, Σ p_i ∇F_i "
            f"/ Σ p_i, differs by {_number(summary.gradient_bias)} of a client's typical gradient; "
            f"in the model that moves the limit by {_number(zero.bias)}"
        )
    return f"{text}; with memory (or importance weights) by 0."


def _table(first: str, *others: str) -> Table:
    table = plain_table()
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _facts(facts: dict[str, str]) -> Table:
    table = plain_table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def _number(value: float, digits: int = 3) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.{digits}g}"


def _rounds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:,.0f}"


def _range(values: Floats) -> str:
    if not len(values):  # a network without links
        return "1"
    low = _number(values.min())
    high = _number(values.max())
    return low if values.min() == values.max() else f"{low} to {high}"

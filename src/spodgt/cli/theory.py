"""`spodgt theory`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from spodgt.cli.app import (
    ConfigOption,
    ExperimentOptions,
    JsonOption,
    SetOption,
    app,
    load_experiment,
    parse_seed,
    plain_table,
)
from spodgt.errors import InvalidInput

if TYPE_CHECKING:
    from spodgt.experiment import Experiment
    from spodgt.theory import Estimates, Overview, Setting
    from spodgt.theory.constants import Variant
    from spodgt.types import Floats


_LARGEST_STEP = 1e30  # fourth powers of it are still numbers


@app.command(
    epilog="Example: [bold]spodgt theory --set run.step_size=0.05 --set network.radius=0.6[/]"
)
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

    number = parse_seed(seed)
    asked = setting_of(
        load_experiment(config, ExperimentOptions(assign=assign).config_changes()), number
    )
    if (step := float(asked.step_size.max())) > _LARGEST_STEP:
        raise InvalidInput(
            f"step_size={step:g} is too large to compute with; use --set run.step_size=0.01."
        )
    with Console(stderr=True, quiet=as_json).status("") as status:  # shown in terminals only
        found = overview(asked, exact=exact, report=lambda step: status.update(f"{step} …"))
    if as_json:
        print(json.dumps(found.as_dict(), indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    conditions = (
        _conditions(found, "paper", "Conditions of the paper"),
        _conditions(found, "corrected", "Conditions for which the proofs go through"),
    )
    for part in chain(_experiment(found), _data(found.estimates), *conditions, _exact(found)):
        console.print(part)


def setting_of(experiment: Experiment, seed: int) -> Setting:
    """One draw, with the step size of the first method that the theory covers and the length of the run."""
    from spodgt.algorithms.base import HasStepSize, positive
    from spodgt.algorithms.compose.schedules import schedule
    from spodgt.theory import setting

    run = experiment.run
    covered = [method for method in experiment.methods if method.traits.rule is not None]
    steps = [method.step_size for method in covered if isinstance(method, HasStepSize)]
    first = steps[0] if steps else None
    own = 0.01 if run.step_size is None else run.step_size
    step = positive(schedule(own), "step_size of run") if first is None else first
    rounds = run.rounds or max(
        1, round((run.delay or 0) / 3)
    )  # each of a round's three parts costs about 1
    return setting(experiment.draw(seed), step, rounds)


def _experiment(found: Overview) -> Iterator[str | Table]:
    s, network = found.setting, found.setting.draw.network
    doubly = "yes" if found.doubly_stochasticable else "no"
    both_ways = " (every link both ways)" if network.two_way else ""
    phi, pi = (_n(float(vector.max() / vector.min())) for vector in (found.phi, found.pi))
    yield f"\n[bold]The experiment, seed {s.draw.seed}[/]"
    yield _facts(
        {
            "clients, links": f"{network.clients}, {network.links}{both_ways}",
            "p, p̂": f"{_range(s.p)}, {_range(s.p_hat)}",
            "step size η": _range(s.step_size),
            "rounds": f"{s.rounds:,}",
            "diameter D, utility K": f"{found.graph.diameter}, {found.graph.edge_utility}",
            "Perron vectors φ̂, π̂": f"largest/smallest {phi}, {pi}; "
            f"effective step size m φ̂ᵀπ̂ η = {_n(found.effective_step)} η",
            "doubly stochasticable": f"{doubly}, without self-weights",
        }
    )
    yield from (f"Note: {note}." for note in s.notes)


def _data(e: Estimates) -> Iterator[str | Table]:
    from spodgt.theory.estimates import LETTERS

    yield f"\n[bold]The data, {'exactly' if e.curvature == 'exact' else 'estimated'}[/]"
    table = _table("", "mean", "smallest", "largest", "interval of the largest")
    for letter, one in zip(
        LETTERS.values(), (e.L, e.sigma0, e.sigma1, e.delta0, e.delta1), strict=True
    ):
        worst = int(one.value.argmax())
        low, high = one.low[worst], one.high[worst]
        values = (one.value.mean(), one.value.min(), one.value.max())
        table.add_row(
            letter, *map(_n, values), f"{_n(low)} to {_n(high)}" if low < high else "exact"
        )
    yield table
    if e.curvature != "exact":
        yield (
            f"At {len(e.losses)} points of a descent from F = {_n(e.losses[0])} to {_n(e.losses[-1])}, |∇F| "
            f"{_n(e.gradient_norms[0])} to {_n(e.gradient_norms[-1])}; L by {e.curvature}."
        )
    yield from (f"Note: {note}." for note in e.notes)


def _conditions(found: Overview, variant: Variant, title: str) -> Iterator[str | Table]:
    from spodgt.theory import Infeasible

    conditions = found.conditions[variant]
    yield f"\n[bold]{title}[/]"
    table = _table("", "condition", "value", "limit", "missed by")
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    for one in conditions:
        mark = "[green]✓[/]" if one.holds else "[red]✗[/]"
        limit = "–" if isinstance(one.limit, Infeasible) else _n(one.limit)
        missed = f"×{_n(one.factor)}" if math.isfinite(one.factor) else "no limit"
        table.add_row(mark, one.formula, _n(one.value), limit, "" if one.holds else missed)
    yield table
    reasons = dict.fromkeys(
        one.limit.reason for one in conditions if isinstance(one.limit, Infeasible)
    )
    yield from (f"No limit: {reason}." for reason in reasons)
    bound = found.paper_bound if variant == "paper" else found.corrected_bound
    text = f"Bound on the mean of E|∇F|² over {found.setting.rounds:,} rounds: "
    if isinstance(bound, Infeasible):
        yield f"{text}none, it is infeasible."
        return
    if isinstance(bound, float):
        text += _n(bound)
    else:
        names = ("optimality", "models", "trackers", "η²", "constant")
        terms = ", ".join(f"{name} {_n(value)}" for name, value in zip(names, bound, strict=True))
        text += f"{_n(float(bound.sum()))} ({terms})"
    met = all(one.holds for one in conditions)
    yield f"{text}." if met else f"{text}; but not all conditions hold, so it proves nothing."


def _exact(found: Overview) -> Iterator[str | Table]:
    c = found.contraction
    grows = " (in the paper's norm, where it may grow)" if c.B > 1 else ""
    yield "\n[bold]What is exactly true[/]"
    yield _facts(
        {
            "pulling": f"contracts disagreement of models by {c.A:.6g} a round in mean square "
            f"(1 - {_n(c.one_minus_bound_A)} at worst)",
            "pushing": f"contracts that of trackers by {c.B:.6g}{grows} and adds {_n(c.injection)} |Σy|²",
        }
    )
    yield found.model.text
    if not found.outlooks:
        yield "Note: the dynamics of so many clients would take too long; they are left out."
        return
    per_decade = ("rounds/\ndecade", "recom-\nmended")
    table = _table(
        "method", "stable\nbelow", "recom-\nmended", *per_decade, "bias", "noise", "floor"
    )
    for o in found.outlooks:
        steps = (_n(step) for step in (o.largest_stable_step, o.recommended_step))
        rounds = (_rounds(each) for each in (o.rounds_per_decade, o.recommended_rounds_per_decade))
        table.add_row(
            o.method, *steps, *rounds, *(_n(value, 2) for value in (o.bias, o.noise, o.floor))
        )
    yield table
    for o in found.outlooks:
        if not o.stable:
            where = "" if found.model.exact else " in the model"
            yield f"[red]{o.method} diverges{where} with this step size[/]: the rate is {o.rate:.6g}."
    yield (
        "Rounds per decade: rounds for a 10× reduction of the distance, at the configured and at the "
        "recommended step size. Bias: distance of the mean limit from the optimum. Noise: stationary root "
        "mean square distance from the mean limit. Floor: both together."
    )
    yield _idle(found)


def _idle(found: Overview) -> str:
    """How far idle clients move the limit of the method that counts their gradients as zero."""
    from spodgt.problems.protocols import HasOptimum

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


def _facts(facts: dict[str, str]) -> Table:
    table = plain_table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def _n(value: float, digits: int = 3) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.{digits}g}"


def _rounds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:,.0f}"


def _range(values: Floats) -> str:
    low, high = (
        (values.min(), values.max()) if len(values) else (1.0, 1.0)
    )  # a network without links
    return _n(low) if low == high else f"{_n(low)} to {_n(high)}"

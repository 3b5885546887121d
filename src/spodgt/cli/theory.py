"""`spodgt theory`."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding

from spodgt.cli.app import ConfigOption, JsonOption, SetOption, app, plain_table
from spodgt.cli.compare import changes_of
from spodgt.errors import InvalidInput


@app.command(epilog="Example: [bold]spodgt theory --set run.step_size=0.05 --set network.radius=0.6[/]")
def theory(
    config: ConfigOption = None,
    assign: SetOption = None,
    seed: Annotated[str, typer.Option(help="Which draw.", metavar="NUMBER")] = "0",
    exact: Annotated[
        bool, typer.Option("--exact", help="Analyse large quadratics exactly; may take minutes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what the theory promises for an experiment, and what is exactly true of it."""
    from spodgt.experiment import Experiment
    from spodgt.theory.survey import setup, survey

    if not seed.isdigit():
        raise InvalidInput(f"--seed must be a whole number of at least 0, got {seed!r}; use --seed 0.")
    chosen = (Experiment.read(config) if config else Experiment()).override(changes_of(assign=assign))
    console = Console(highlight=False, width=None)
    waiting = Console(stderr=True)
    drawn = setup(chosen, int(seed))
    with nullcontext() if as_json or not waiting.is_terminal else waiting.status("") as status:
        found = survey(drawn, exact=exact, say=(lambda text: status.update(f"{text} …")) if status else _mute)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2, allow_nan=False))
        return
    _show(console, found)


def _mute(_: str) -> None:
    pass


def _show(console: Console, found: Any) -> None:
    s, e = found.setup, found.estimates
    _heading(console, f"The experiment, seed {s.seed}")
    facts = {
        "clients, links": f"{s.network.clients}, {s.network.links}"
        + (" (every link both ways)" if s.network.two_way else ""),
        "p, p̂": f"{_range(s.p)}, {_range(s.p_hat)}",
        "step size η": _range(s.step_size),
        "rounds": f"{s.rounds:,}",
        "diameter D, utility K": f"{found.graph.diameter}, {found.graph.edge_utility}",
        "Perron vectors φ̂, π̂": f"largest/smallest {_ratio(found.phi)}, {_ratio(found.pi)}; "
        f"a step counts m φ̂ᵀπ̂ = {_n(found.effective_step)} times",
        "doubly stochasticable": ("yes" if found.doubly_stochasticable else "no") + ", without self-weights",
    }
    _facts(console, facts)
    for note in s.notes:
        _text(console, f"Note: {note}.")
    _heading(console, "The data" + {"exact": ", exactly"}.get(e.curvature, ", estimated"))
    table = plain_table()
    for column in ("", "mean", "smallest", "largest", "interval of the largest"):
        table.add_column(column, justify="left" if not column else "right")
    letters = {"L": "L", "sigma0": "σ₀", "sigma1": "σ₁", "delta0": "δ₀", "delta1": "δ₁"}
    for name, letter in letters.items():
        one = getattr(e, name)
        worst = int(one.value.argmax())
        between = (
            f"{_n(one.low[worst])} to {_n(one.high[worst])}" if one.low[worst] < one.high[worst] else "exact"
        )
        table.add_row(letter, *(_n(f(one.value)) for f in (_mean, min, max)), between)
    console.print(table)
    if e.curvature != "exact":
        _text(
            console,
            f"At {len(e.losses)} points of a descent from F = {_n(e.losses[0])} to {_n(e.losses[-1])}, |∇F| "
            f"{_n(e.gradient_norms[0])} to {_n(e.gradient_norms[-1])}; L by {e.curvature}.",
        )
    for note in e.notes:
        _text(console, f"Note: {note}.")
    _conditions(console, found)
    _exact(console, found)


def _conditions(console: Console, found: Any) -> None:
    titles = {
        "paper": "Conditions of the paper",
        "corrected": "Conditions for which the proofs go through",
    }
    for which, some in found.conditions.items():
        _heading(console, titles[which])
        table = plain_table()
        for column in ("", "condition", "value", "limit", "missed by"):
            table.add_column(
                column,
                justify="left" if column in ("", "condition") else "right",
                no_wrap=column != "condition",
                overflow="fold",
            )
        reasons = []
        for one in some:
            limit = one.limit
            if not isinstance(limit, float | int):
                reasons.append(limit.reason)
                limit = math.nan
            table.add_row(
                "[green]✓[/]" if one.holds else "[red]✗[/]",
                one.name.split(": ", 1)[-1] if ": " in one.name else one.name,
                _n(one.value),
                _n(limit),
                "" if one.holds else "×" + _n(one.factor) if math.isfinite(one.factor) else "no limit",
            )
        console.print(table)
        for reason in dict.fromkeys(reasons):
            _text(console, f"No limit: {reason}.")
        _text(console, _bound(found, which))


def _bound(found: Any, which: str) -> str:
    bound = found.paper_bound if which == "paper" else found.corrected_bound
    left = f"mean of E|∇F|² over {found.setup.rounds:,} rounds"
    if not isinstance(bound, float | int) and not hasattr(bound, "sum"):
        return f"Bound on the {left}: none, it is infeasible."
    text = f"Bound on the {left}: {_n(float(bound.sum() if which == 'paper' else bound))}"
    if which == "paper":
        names = ("optimality", "models", "trackers", "η²", "what never shrinks")
        text += f" ({', '.join(f'{n} {_n(v)}' for n, v in zip(names, bound, strict=True))})"
    met = all(one.holds for one in found.conditions[which])
    return f"{text}." if met else f"{text}; but not all conditions hold, so it proves nothing."


def _exact(console: Console, found: Any) -> None:
    from spodgt.problems import Quadratic

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
        _text(console, "Note: with so many clients the dynamics would take too long; they are left out.")
        return
    table = plain_table()
    columns = (
        "method",
        "stable\nbelow",
        "advised\nη",
        "digit\nin",
        "with\nadvised",
        "bias",
        "noise",
        "floor",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for o in found.outlooks:
        table.add_row(
            o.method,
            _n(o.largest_stable_step),
            _n(o.recommended_step),
            _rounds(o.rounds_per_digit),
            _rounds(o.recommended_rounds_per_digit),
            *(_n(v, 2) for v in ((o.bias, o.noise, o.floor) if o.stable else (o.bias, math.inf, math.inf))),
        )
    console.print(table)
    zero = found.outlooks[0]
    for o in found.outlooks:
        if not o.stable:
            _text(console, f"[red]{o.method} diverges with this step size[/]: the rate is {o.rate:.6g}.")
    _text(
        console,
        "digit in: rounds until the distance falls tenfold, with the step size of the experiment, then with "
        "the advised one. bias: from the optimum to where the mean goes. noise: root mean square about that, "
        "for ever. floor: both together.",
    )
    if isinstance(found.setup.problem, Quadratic):
        away = found.setup.problem.optimum(found.setup.p) - found.setup.problem.optimum()
        idle = f"Idle clients move the limit of spod-gt by {_n(float(away.norm()))} from the optimum"
    else:
        idle = (
            "Idle clients: at the last point the gradient that spod-gt follows, Σ p_i ∇F_i / Σ p_i, is off "
            f"by {_n(found.gradient_bias)} of a client's typical gradient; in the model that moves the limit "
            f"by {_n(zero.bias)}"
        )
    _text(console, f"{idle}; with memory (or importance weights) by 0.")


# --- words and numbers -------------------------------------------------------------------------------
def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/]")


def _text(console: Console, text: str) -> None:
    console.print(Padding(text, (0, 0, 0, 0)))


def _facts(console: Console, facts: dict[str, str]) -> None:
    table = plain_table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    console.print(table)


def _mean(values: Any) -> float:
    return float(values.mean())


def _n(value: float, digits: int = 3) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.{digits}g}"


def _rounds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:,.0f}"


def _range(values: Any) -> str:
    low, high = float(min(values, default=1.0)), float(max(values, default=1.0))
    return _n(low) if low == high else f"{_n(low)} to {_n(high)}"


def _ratio(values: Any) -> str:
    return _n(float(values.max() / values.min()))

"""The summary of the theory for one experiment: constants, conditions, bounds and dynamics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from spodgt.algorithms import ALGORITHMS
from spodgt.algorithms.base import Rule, Schedule
from spodgt.errors import Failed, InvalidInput
from spodgt.problems import Quadratic
from spodgt.problems.protocols import HasWork
from spodgt.record.run_folder import plain
from spodgt.runtimes.world import Draw
from spodgt.theory.conditions import Condition, Start, conditions, rigorous_bound, theorem_terms
from spodgt.theory.constants import Constants, Infeasible, Variant
from spodgt.theory.dynamics import MOST_EXACT, Dynamics
from spodgt.theory.estimates import Estimates, estimate
from spodgt.theory.graph import (
    Contraction,
    EdgeUtility,
    contraction,
    doubly_stochasticable,
    edge_utility,
    per_client,
    perron_vectors,
)
from spodgt.theory.lemmas import constants
from spodgt.theory.model import QuadraticModel, independent_probabilities, quadratic_model
from spodgt.types import Floats

MAX_CLIENTS = 300  # K(G) takes links × clients² steps
_MAX_WORK = 4e9  # multiplications for a pass over all data; above, samples are drawn
_DEPENDENT = (
    "clients and links do not take part independently in every round; the theory assumes "
    "independent draws of the same frequency"
)
_FALLING_SCHEDULE = (
    "the step size is that of round 1; those of a falling schedule need no other check"
)


@dataclass(frozen=True, eq=False)
class Setting:
    """An experiment for the theory; made by `setting`."""

    draw: Draw  # network, availability, problem and initial models
    step_size: Floats  # (clients,)
    rounds: int  # length of the run
    notes: tuple[str, ...] = ()  # on assumptions that the experiment does not meet

    @property
    def p(self) -> Floats:
        """(clients,) probabilities that clients compute in a round."""
        return self.draw.availability.p

    @property
    def p_hat(self) -> Floats:
        """(links,) probabilities that links work in a round."""
        return self.draw.availability.p_hat


def setting(draw: Draw, step_size: ArrayLike | Tensor | Schedule, rounds: int) -> Setting:
    """Prepare one draw of an experiment for `summarize`.

    Args:
        draw: Network, availability and problem, of `Experiment.draw(seed)`; at most 300 clients.
        step_size: η of Spod-GT: one number, one per client, or a schedule (its value in round 1).
        rounds: Length of the run, at least 1.
    """
    clients = draw.network.clients
    if clients > MAX_CLIENTS:
        raise InvalidInput(
            f"network.clients must be at most {MAX_CLIENTS}, because K(G) takes links times "
            f"clients² steps, got {clients}; use network.clients={MAX_CLIENTS}."
        )
    if rounds < 1:
        raise InvalidInput(f"rounds must be at least 1, got {rounds}; use rounds=1000.")
    notes = []
    if independent_probabilities(draw.availability) is None:
        notes.append(_DEPENDENT)
    if isinstance(step_size, Schedule):
        notes.append(_FALLING_SCHEDULE)
        step_size = step_size.at(1)
    values = np.asarray(step_size, dtype=np.float64).reshape(-1)
    return Setting(draw, per_client("step_size", values, clients), rounds, tuple(notes))


@dataclass(frozen=True)
class Outlook:
    """The dynamics of one rule for idle clients on the model, with the step size of the setting."""

    rule: Rule  # "zero", "importance" or "memory"
    method: str  # the method that follows the rule
    largest_stable_step: float  # the mean-square error shrinks below it
    recommended_step: float  # half of the largest stable one, or the fastest one of quadratics
    rate: float  # factor of the mean-square error per round
    rounds_per_decade: float  # for a 10× reduction of the distance; infinite if unstable
    recommended_rounds_per_decade: float  # the same with the recommended step size
    bias: float  # distance of the mean limit from the optimum
    noise: float  # stationary root mean square distance from the mean limit
    floor: float  # root mean square distance from the optimum: bias and noise together

    @property
    def stable(self) -> bool:
        return self.rate < 1


@dataclass(frozen=True, eq=False)
class TheorySummary:
    """Network, data, constants, conditions and bounds of a setting, and its dynamics."""

    setting: Setting  # what was analysed
    graph: EdgeUtility  # diameter and edge utility
    phi: Floats  # (clients,) Perron vector of Â
    pi: Floats  # (clients,) Perron vector of B̂
    doubly_stochasticable: bool  # without self-loops
    contraction: Contraction  # exact factors of one round
    estimates: Estimates  # constants of the data
    paper: Constants  # as printed
    corrected: Constants  # for which the proofs hold
    paper_bound: Floats | Infeasible  # terms: optimality, model, tracking, η², constant
    corrected_bound: float | Infeasible  # on the mean of E|∇F|²
    model: QuadraticModel  # on which the dynamics are computed
    outlooks: tuple[Outlook, ...]  # empty if there are too many clients
    gradient_bias: float  # |mean (p_i/p̄ - 1) ∇F_i| over the RMS of the |∇F_i|, last point

    @property
    def conditions(self) -> dict[Variant, list[Condition]]:
        return {"paper": conditions(self.paper), "corrected": conditions(self.corrected)}

    @property
    def effective_step(self) -> float:
        """m φ̂ᵀπ̂: factor between the step size and the step along the average gradient."""
        return float(len(self.phi) * self.phi @ self.pi)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinite and infeasible values are text."""
        setting = self.setting
        network = setting.draw.network
        facts: dict[str, Any] = {
            "seed": setting.draw.seed,
            "notes": setting.notes,
            "clients": network.clients,
            "rounds": setting.rounds,
            "step_size": setting.step_size,
            "p": setting.p,
            "p_hat": setting.p_hat,
            "network": {
                "links": network.links,
                "links_both_ways": network.two_way,
                **asdict(self.graph),
                "doubly_stochasticable_without_self_loops": self.doubly_stochasticable,
                "phi": self.phi,
                "pi": self.pi,
                "effective_step": self.effective_step,
            },
            "contraction": asdict(self.contraction),
            "estimates": self.estimates.as_dict(),
            "conditions": {},
            "bounds": {"paper": self.paper_bound, "corrected": self.corrected_bound},
            "model": {"exact": self.model.exact, "what": self.model.text},
            "rules": {},
            "gradient_bias": self.gradient_bias,
            "constants": {"paper": vars(self.paper), "corrected": vars(self.corrected)},
        }
        for variant, conditions_ in self.conditions.items():
            rows = [{"name": condition.name, **vars(condition)} for condition in conditions_]
            facts["conditions"][variant] = rows
        for outlook in self.outlooks:
            facts["rules"][outlook.rule] = asdict(outlook) | {"stable": outlook.stable}
        return {name: plain(value) for name, value in facts.items()}


def summarize(
    setting: Setting, *, exact: bool = False, report: Callable[[str], None] | None = None
) -> TheorySummary:
    """Estimate the data, compute both variants of the constants, and analyse the dynamics.

    Args:
        setting: The experiment, from `setting(draw, step_size, rounds)`.
        exact: Analyse large coupled quadratics themselves, not a model of them; may take minutes.
        report: Called with the name of each step before it starts.
    """
    if report is None:
        report = _ignore
    draw = setting.draw
    network = draw.network
    report("estimates from the data")
    estimates = _estimate(draw)
    report("constants of the paper")
    phi, pi = perron_vectors(network, setting.p_hat)
    arguments = (network, setting.p, setting.p_hat, estimates.bounding(), setting.step_size)
    paper = constants(*arguments)
    corrected = constants(*arguments, variant="corrected")
    start = _start(setting, estimates, pi)
    model = quadratic_model(draw, estimates, exact=exact)
    outlooks = []
    if network.clients <= MOST_EXACT:
        for rule, method in _sporadic_methods().items():
            report(f"exact dynamics of {method}")
            outlooks.append(_outlook(setting, model, rule, method))
    return TheorySummary(
        setting=setting,
        graph=edge_utility(network),
        phi=phi,
        pi=pi,
        doubly_stochasticable=doubly_stochasticable(network, self_loops=False),
        contraction=contraction(network, setting.p_hat),
        estimates=estimates,
        paper=paper,
        corrected=corrected,
        paper_bound=theorem_terms(paper, start, setting.rounds),
        corrected_bound=rigorous_bound(corrected, start, setting.rounds),
        model=model,
        outlooks=tuple(outlooks),
        gradient_bias=_gradient_bias(setting.p, estimates.gradients),
    )


def _ignore(step: str) -> None:
    """The default of `report`."""


def _estimate(draw: Draw) -> Estimates:
    """Estimates from all samples, or from some of them if there are many."""
    problem = draw.problem
    work = problem.work if isinstance(problem, HasWork) else math.inf
    max_samples = None
    if work > _MAX_WORK:
        max_samples = int(_MAX_WORK / work * 64) + 64
    return estimate(problem, start=draw.start[0], seed=draw.seed, most=max_samples)


def _start(setting: Setting, estimates: Estimates, pi: Floats) -> Start:
    """The errors of the initial models and trackers; F* of a learning problem is taken as zero."""
    lowest_loss = 0.0
    if isinstance(setting.draw.problem, Quadratic):
        lowest_loss = estimates.losses[-1]
    gap = float(estimates.losses[0] - lowest_loss)
    return Start(gap, 0.0, _tracking_error(setting.p, estimates, pi))


def _sporadic_methods() -> dict[Rule, str]:
    """The first method of each rule that does not wait for idle clients and links."""
    names: dict[Rule, str] = {}
    for name, method in ALGORITHMS.items():
        traits = method.traits
        if traits.rule and traits.sporadic_clients == traits.sporadic_links == "yes":
            names.setdefault(traits.rule, name)
    return {rule: names[rule] for rule in get_args(Rule) if rule in names}


def _tracking_error(p: Floats, estimates: Estimates, pi: Floats) -> float:
    """E‖Π⁻¹Y⁰ - m1ȳ⁰‖²_π = E Σ|y_i|²/π_i - E|Σy|² for y = v ⊙ g."""
    g = estimates.first_gradients
    square = p * ((g**2).sum(1) + estimates.variance(0))
    total = ((p @ g) ** 2).sum() + (square - p**2 * (g**2).sum(1)).sum()
    return float((square / pi).sum() - total)


def _gradient_bias(p: Floats, gradients: Floats) -> float:
    typical = np.sqrt((gradients**2).sum(1).mean())
    bias = np.linalg.norm((p / p.mean() - 1) @ gradients) / len(p)
    return float(bias / typical) if typical > 0 else 0.0


def _outlook(setting: Setting, model: QuadraticModel, rule: Rule, method: str) -> Outlook:
    dynamics = Dynamics(
        setting.draw.network,
        setting.p,
        setting.p_hat,
        model.H,
        model.c,
        rule=rule,
        noise=model.noise,
    )
    largest = dynamics.largest_stable_step(tolerance=1e-3)
    recommended = largest / 2
    # A model with equal curvatures has no flat directions, for which its fastest step is too short.
    if model.exact:
        recommended = min(dynamics.fastest_step(largest), recommended)
    rate = dynamics.mean_square_radius(setting.step_size)
    bias = float(np.linalg.norm(dynamics.bias))
    noise = _stationary_noise(dynamics, setting.step_size)
    recommended_rate = dynamics.mean_square_radius(recommended)
    return Outlook(
        rule=rule,
        method=method,
        largest_stable_step=largest,
        recommended_step=recommended,
        rate=rate,
        rounds_per_decade=_rounds_per_decade(rate),
        recommended_rounds_per_decade=_rounds_per_decade(recommended_rate),
        bias=bias,
        noise=noise,
        floor=math.hypot(noise, bias),
    )


def _stationary_noise(dynamics: Dynamics, step_size: Floats) -> float:
    """Root mean square distance from the mean limit; NaN if it cannot be computed."""
    try:
        return math.sqrt(max(0.0, dynamics.variance(step_size)))
    except Failed:  # the step size is too close to the stability limit
        return math.nan


def _rounds_per_decade(rate: float) -> float:
    """Rounds for a 10× reduction of a root mean square; the square falls by `rate` a round."""
    if rate >= 1:
        return math.inf
    return math.log(100) / -math.log(rate) if rate > 0 else 0.0

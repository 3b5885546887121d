"""A question to the theory, and everything that it says about it: what `spodgt theory` shows."""

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
from spodgt.participation.availability import AvailabilityOverride, BernoulliAvailability
from spodgt.problems import Quadratic
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
from spodgt.types import Availability, Floats

MOST_CLIENTS = 300  # K(G) takes links × clients² steps
_EFFORT = 4e9  # multiplications for a pass over all data; above, samples are drawn
_DEPENDENT = (
    "clients and links do not take part independently in every round; the theory assumes independent draws "
    "of the same frequency"
)
_MODEL = (
    "A model of the problem: F_i = L_i |x - c_i|²/2 with the L_i above in every direction, and with the "
    "gradients and the noise found at the last point of the descent. Exact for the model; for the problem "
    "the step sizes are a guide, distances are of this order, and flat directions are slower."
)


@dataclass(frozen=True, eq=False)
class Setting:
    """A question to the theory; made by `setting`."""

    draw: Draw
    step_size: Floats  # (clients,)
    rounds: int
    notes: tuple[str, ...] = ()  # where the theory reads the experiment in its own way

    @property
    def p(self) -> Floats:
        """(clients,) how often clients compute."""
        return self.draw.availability.p

    @property
    def p_hat(self) -> Floats:
        """(links,) how often links work."""
        return self.draw.availability.p_hat


def setting(draw: Draw, step_size: ArrayLike | Tensor | Schedule, rounds: int) -> Setting:
    """Ask the theory about one draw of an experiment.

    Args:
        draw: network, availability and problem, from `Experiment.draw(seed)`; at most 300 clients.
        step_size: η of Spod-GT: one number, one per client, or a schedule, of which round 1 counts.
        rounds: length of the run, at least 1.
    """
    m, notes = draw.network.clients, []
    if m > MOST_CLIENTS:
        raise InvalidInput(
            f"network.clients must be at most {MOST_CLIENTS}, because K(G) takes links times clients² steps, "
            f"got {m}; use network.clients={MOST_CLIENTS}."
        )
    if rounds < 1:
        raise InvalidInput(f"rounds must be at least 1, got {rounds}; use rounds=1000.")
    if independent(draw.availability) is None:
        notes.append(_DEPENDENT)
    if isinstance(step_size, Schedule):
        notes.append(
            "the step size is that of round 1; those of a falling schedule need no other check"
        )
        step_size = step_size.at(1)
    steps = per_client("step_size", np.asarray(step_size, dtype=np.float64).reshape(-1), m)
    return Setting(draw, steps, rounds, tuple(notes))


def independent(availability: Availability) -> tuple[Floats, Floats] | None:
    """Return p (clients,) and p̂ (links,) if all take part independently in every round, else None.

    Args:
        availability: as drawn, or what a method makes of it; a method that uses all links has p̂ = 1.
    """
    if isinstance(availability, BernoulliAvailability):
        return availability.p, availability.p_hat
    if not isinstance(availability, AvailabilityOverride) or availability.every > 1:
        return None
    clients, links = availability.all_clients, availability.all_links
    found = (
        (availability.p, availability.p_hat)
        if clients and links
        else independent(availability.base)
    )
    if found is None or (availability.pairs is not None and not links):
        return None
    p, p_hat = found
    return np.ones_like(p) if clients else p, np.ones_like(p_hat) if links else p_hat


@dataclass(frozen=True, eq=False)
class Model:
    """The quadratics on which the dynamics are exact, and how they relate to the problem."""

    H: Floats  # (clients, n, n), or (clients, n) where diagonal
    c: Floats  # (clients, n)
    noise: Floats  # (clients,) standard deviation of a gradient's coordinate
    exact: bool  # the problem itself
    text: str


@dataclass(frozen=True)
class Outlook:
    """What one rule for idle clients does on the model, with the step size of the setting."""

    rule: Rule
    method: str  # the method that follows the rule
    largest_stable_step: float
    recommended_step: (
        float  # half of the largest stable one; of quadratics the fastest, if that is less
    )
    rate: float  # factor of the mean-square error per round
    rounds_per_decade: float  # until the distance has fallen tenfold; infinite if unstable
    recommended_rounds_per_decade: float  # the same with the recommended step size
    bias: float  # distance of the mean limit from the optimum
    noise: float  # stationary root mean square distance from the mean limit
    floor: float  # root mean square distance from the optimum: bias and noise together

    @property
    def stable(self) -> bool:
        return self.rate < 1


@dataclass(frozen=True, eq=False)
class Overview:
    """Network, data, constants, conditions and bounds of a setting, and its exact or modelled dynamics."""

    setting: Setting
    graph: EdgeUtility
    phi: Floats
    pi: Floats
    doubly_stochasticable: bool  # without self-loops
    contraction: Contraction
    estimates: Estimates
    paper: Constants
    corrected: Constants
    paper_bound: (
        Floats | Infeasible
    )  # the Theorem's terms: optimality, model, tracking, η², constant
    corrected_bound: float | Infeasible
    model: Model
    outlooks: tuple[Outlook, ...]  # none where there are too many clients
    gradient_bias: (
        float  # |mean (p_i/p̄ - 1) ∇F_i| over the root mean square of the |∇F_i|, at the last point
    )

    @property
    def conditions(self) -> dict[Variant, list[Condition]]:
        return {"paper": conditions(self.paper), "corrected": conditions(self.corrected)}

    @property
    def effective_step(self) -> float:
        """m φ̂ᵀπ̂: the factor by which a step size acts on the average gradient."""
        return float(len(self.phi) * self.phi @ self.pi)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is infinite or infeasible is text."""
        s, network = self.setting, self.setting.draw.network
        facts: dict[str, Any] = {
            "seed": s.draw.seed,
            "notes": s.notes,
            "clients": network.clients,
            "rounds": s.rounds,
            "step_size": s.step_size,
            "p": s.p,
            "p_hat": s.p_hat,
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
            "conditions": {
                variant: [{"name": each.name, **vars(each)} for each in some]
                for variant, some in self.conditions.items()
            },
            "bounds": {"paper": self.paper_bound, "corrected": self.corrected_bound},
            "model": {"exact": self.model.exact, "what": self.model.text},
            "rules": {each.rule: asdict(each) | {"stable": each.stable} for each in self.outlooks},
            "gradient_bias": self.gradient_bias,
            "constants": {"paper": vars(self.paper), "corrected": vars(self.corrected)},
        }
        return {name: plain(value) for name, value in facts.items()}


def overview(
    setting: Setting, *, exact: bool = False, report: Callable[[str], None] = lambda _: None
) -> Overview:
    """Estimate the data, compute both variants of the constants, and analyse the dynamics.

    Args:
        setting: from `setting(draw, step_size, rounds)`.
        exact: analyse large coupled quadratics themselves, not a model of them; may take minutes.
        report: called with the name of each step before it starts.
    """
    s, network, problem = setting, setting.draw.network, setting.draw.problem
    report("estimates from the data")
    most = int(_EFFORT / problem.work * 64) + 64 if problem.work > _EFFORT else None
    found = estimate(problem, start=s.draw.start[0], seed=s.draw.seed, most=most)
    report("constants of the paper")
    phi, pi = perron_vectors(network, s.p_hat)
    given = network, s.p, s.p_hat, found.bounding(), s.step_size
    paper, corrected = constants(*given), constants(*given, variant="corrected")
    lowest = found.losses[-1] if isinstance(problem, Quadratic) else 0.0
    start = Start(float(found.losses[0] - lowest), 0.0, _tracking_error(s.p, found, pi))
    model, outlooks = model_of(s.draw, found, exact=exact), []
    for rule, method in _sporadic_methods().items() if network.clients <= MOST_EXACT else ():
        report(f"exact dynamics of {method}")
        outlooks.append(_outlook(s, model, rule, method))
    return Overview(
        s, edge_utility(network), phi, pi, doubly_stochasticable(network, self_loops=False),
        contraction(network, s.p_hat), found, paper, corrected, theorem_terms(paper, start, s.rounds),
        rigorous_bound(corrected, start, s.rounds), model, tuple(outlooks),
        _gradient_bias(s.p, found.gradients),
    )  # fmt: skip


def _sporadic_methods() -> dict[Rule, str]:
    """The first method of each rule that goes on without idle clients and links."""
    names: dict[Rule, str] = {}
    for name, each in ALGORITHMS.items():
        if each.traits.rule and each.traits.sporadic_clients == each.traits.sporadic_links == "yes":
            names.setdefault(each.traits.rule, name)
    return {rule: names[rule] for rule in get_args(Rule) if rule in names}


def _tracking_error(p: Floats, found: Estimates, pi: Floats) -> float:
    """E‖Π⁻¹Y⁰ - m1ȳ⁰‖²_π = E Σ|y_i|²/π_i - E|Σy|² for y = v ⊙ g."""
    g = found.first_gradients
    square = p * ((g**2).sum(1) + found.variance(0))
    total = ((p @ g) ** 2).sum() + (square - p**2 * (g**2).sum(1)).sum()
    return float((square / pi).sum() - total)


def _gradient_bias(p: Floats, gradients: Floats) -> float:
    typical = np.sqrt((gradients**2).sum(1).mean())
    off = np.linalg.norm((p / p.mean() - 1) @ gradients) / len(p)
    return float(off / typical) if typical > 0 else 0.0


def model_of(draw: Draw, found: Estimates, *, exact: bool = False) -> Model:
    """The problem itself where it is a quadratic that is small, or `exact`; else quadratics like it."""
    m, problem = draw.network.clients, draw.problem
    if isinstance(problem, Quadratic):
        H, c = (t.double().cpu().numpy() for t in (problem.H, problem.c))
        coupled = np.any(H * (1 - np.eye(H.shape[1])) != 0)
        if exact or m * (H.shape[1] if coupled else 1) <= MOST_EXACT:
            return Model(
                H, c, np.full(m, problem.noise), True, "The problem is quadratic: this is exact."
            )
    L, g = found.L.value[:, None], found.gradients
    g = g if g.shape[1] else np.zeros((m, 1))
    # equal curvature in every direction: only inner products of the gradients count, not their directions
    noise = np.sqrt(found.variance(-1) / g.shape[1])
    return Model(np.broadcast_to(L, g.shape), -g / L, noise, False, _MODEL)


def _outlook(s: Setting, model: Model, rule: Rule, method: str) -> Outlook:
    dynamics = Dynamics(
        s.draw.network, s.p, s.p_hat, model.H, model.c, rule=rule, noise=model.noise
    )
    largest = dynamics.largest_stable_step(tolerance=1e-3)
    # A model of one curvature knows no flat directions, whose pace is that of the step: fastest is too short.
    recommended = min(dynamics.fastest_step(largest), largest / 2) if model.exact else largest / 2
    rate = dynamics.mean_square_radius(s.step_size)
    try:
        noise = math.sqrt(max(0.0, dynamics.variance(s.step_size)))
    except Failed:  # so close to the limit that the linear system cannot be solved
        noise = math.nan
    bias = float(np.linalg.norm(dynamics.bias))
    return Outlook(
        rule, method, largest, recommended, rate, _rounds_per_decade(rate),
        _rounds_per_decade(dynamics.mean_square_radius(recommended)), bias, noise, math.hypot(noise, bias),
    )  # fmt: skip


def _rounds_per_decade(rate: float) -> float:
    """Rounds for a 10× reduction of a root mean square whose square falls by `rate` a round."""
    if rate >= 1:
        return math.inf
    return math.log(100) / -math.log(rate) if rate > 0 else 0.0

"""Everything the theory says about one setting: what `spodgt theory` shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from spodgt.algorithms import ALGORITHMS
from spodgt.algorithms.base import Rule
from spodgt.errors import Failed
from spodgt.problems import Quadratic
from spodgt.record.folder import plain
from spodgt.theory.bounds import Start, rigorous_bound, theorem_terms
from spodgt.theory.conditions import Condition, conditions
from spodgt.theory.constants import Constants, Infeasible, constants
from spodgt.theory.contraction import Contraction, contraction
from spodgt.theory.dynamics import MOST_EXACT, Dynamics
from spodgt.theory.estimates import Estimates, estimate
from spodgt.theory.graph import EdgeUtility, doubly_stochasticable, edge_utility, perron_vectors
from spodgt.theory.inputs import Variant
from spodgt.theory.setting import Setting
from spodgt.types import Floats

_EFFORT = 4e9  # multiplications for a pass over all data; above, samples are drawn
_MODEL = (
    "A model of the problem: F_i = L_i |x - c_i|²/2 with the L_i above in every direction, and with the "
    "gradients and the noise found at the last point of the descent. Exact for the model; for the problem "
    "the step sizes are a guide, distances are of this order, and flat directions are slower."
)


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
    recommended_step: float  # the fastest, or half of the largest stable one if that is less
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
    paper_bound: Floats | Infeasible  # the Theorem's terms: optimality, model, tracking, η², constant
    corrected_bound: float | Infeasible
    model: Model
    outlooks: tuple[Outlook, ...]  # none where there are too many clients
    gradient_bias: float  # |mean (p_i/p̄ - 1) ∇F_i| over the root mean square of the |∇F_i|, at the last point

    @property
    def conditions(self) -> dict[Variant, list[Condition]]:
        return {"paper": conditions(self.paper), "corrected": conditions(self.corrected)}

    @property
    def effective_step(self) -> float:
        """m φ̂ᵀπ̂: the factor by which a step size acts on the average gradient."""
        return float(len(self.phi) * self.phi @ self.pi)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is infinite or infeasible is text."""
        s = self.setting
        facts: dict[str, Any] = plain(
            {
                "seed": s.draw.seed,
                "notes": s.notes,
                "clients": s.draw.network.clients,
                "rounds": s.rounds,
                "step_size": s.step_size,
                "p": s.p,
                "p_hat": s.p_hat,
                "network": {
                    "links": s.draw.network.links,
                    "links_both_ways": s.draw.network.two_way,
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
        )
        return facts


def overview(
    setting: Setting, *, exact: bool = False, report: Callable[[str], None] = lambda _: None
) -> Overview:
    """Estimate the data, compute both variants of the constants, and analyse the dynamics.

    Args:
        setting: from `setting(draw, step_size, rounds)`.
        exact: analyse large coupled quadratics themselves, not a model of them; may take minutes.
        report: called with the name of each step before it starts.
    """
    s = setting
    report("estimates from the data")
    most = int(_EFFORT / s.draw.problem.work * 64) + 64 if s.draw.problem.work > _EFFORT else None
    found = estimate(s.draw.problem, start=s.draw.start[0], seed=s.draw.seed, most=most)
    report("constants of the paper")
    phi, pi = perron_vectors(s.draw.network, s.p_hat)
    given = s.draw.network, s.p, s.p_hat, found.bounding(), s.step_size
    paper, corrected = constants(*given), constants(*given, variant="corrected")
    lowest = found.losses[-1] if isinstance(s.draw.problem, Quadratic) else 0.0
    start = Start(float(found.losses[0] - lowest), 0.0, _tracking_error(s, found, pi))
    model = _model(s, found, exact)
    outlooks = []
    if s.draw.network.clients <= MOST_EXACT:
        for rule, method in _sporadic_methods().items():
            report(f"exact dynamics of {method}")
            outlooks.append(_outlook(s, model, rule, method))
    return Overview(
        s, edge_utility(s.draw.network), phi, pi, doubly_stochasticable(s.draw.network, self_loops=False),
        contraction(s.draw.network, s.p_hat), found, paper, corrected, theorem_terms(paper, start, s.rounds),
        rigorous_bound(corrected, start, s.rounds), model, tuple(outlooks),
        _gradient_bias(s.p, found.gradients),
    )  # fmt: skip


def _sporadic_methods() -> dict[Rule, str]:
    """The method of each rule that goes on without idle clients and links."""
    names: dict[Rule, str] = {}
    for rule in get_args(Rule):
        for name, each in ALGORITHMS.items():
            traits = each.traits
            if traits.rule == rule and traits.sporadic_clients == traits.sporadic_links == "yes":
                names.setdefault(rule, name)
    return names


def _tracking_error(s: Setting, found: Estimates, pi: Floats) -> float:
    """E‖Π⁻¹Y⁰ - m1ȳ⁰‖²_π = E Σ|y_i|²/π_i - E|Σy|² for y = v ⊙ g."""
    g, p = found.first_gradients, s.p
    square = p * ((g**2).sum(1) + found.variance(0))
    total = ((p @ g) ** 2).sum() + (square - p**2 * (g**2).sum(1)).sum()
    return float((square / pi).sum() - total)


def _gradient_bias(p: Floats, gradients: Floats) -> float:
    typical = np.sqrt((gradients**2).sum(1).mean())
    off = np.linalg.norm((p / p.mean() - 1) @ gradients) / len(p)
    return float(off / typical) if typical > 0 else 0.0


def _model(s: Setting, found: Estimates, exact: bool) -> Model:
    m = s.draw.network.clients
    if isinstance(s.draw.problem, Quadratic):
        H, c = (np.asarray(t.double().cpu().numpy()) for t in (s.draw.problem.H, s.draw.problem.c))
        coupled = np.any(H * (1 - np.eye(H.shape[1])) != 0)
        if exact or m * (H.shape[1] if coupled else 1) <= MOST_EXACT:
            return Model(
                H, c, np.full(m, s.draw.problem.noise), True, "The problem is quadratic: this is exact."
            )
    L, g = found.L.value, found.gradients
    g = g if g.shape[1] else np.zeros((m, 1))
    # equal curvature in every direction: only inner products of the gradients count, not their directions
    H = np.broadcast_to(L[:, None], g.shape)
    return Model(H, -g / L[:, None], np.sqrt(found.variance(-1) / g.shape[1]), False, _MODEL)


def _outlook(s: Setting, model: Model, rule: Rule, method: str) -> Outlook:
    dynamics = Dynamics(s.draw.network, s.p, s.p_hat, model.H, model.c, rule=rule, noise=model.noise)
    largest = dynamics.largest_stable_step(tolerance=1e-3)
    recommended = min(dynamics.fastest_step(largest), largest / 2)
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

"""Everything the theory says about one experiment: what `spodgt theory` shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spodgt.algorithms.base import Rule
from spodgt.errors import Failed, InvalidInput
from spodgt.network import Network
from spodgt.problems import Quadratic
from spodgt.record.folder import plain
from spodgt.theory.bounds import Start, rigorous_bound, theorem_terms
from spodgt.theory.conditions import Condition, conditions
from spodgt.theory.constants import Constants, Infeasible, constants
from spodgt.theory.contraction import Contraction, contraction
from spodgt.theory.dynamics import Dynamics
from spodgt.theory.estimates import Estimates, estimate
from spodgt.theory.graph import EdgeUtility, doubly_stochasticable, edge_utility, perron_vectors
from spodgt.types import Floats

METHODS: dict[Rule, str] = {
    "zero": "spod-gt",
    "importance": "spod-gt-importance",
    "memory": "spod-gt-memory",
}
MOST_CLIENTS = 300  # K(G) takes |E| m² work
MOST_EXACT = 50  # clients times coupled parameters of an exact analysis that takes seconds
_EFFORT = 4e9  # multiplications for a pass over all data; above, samples are drawn
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Setup:
    """One draw of an experiment: what the theory is asked about."""

    network: Network
    p: Floats
    p_hat: Floats
    problem: Any
    step_size: Floats  # (clients,)
    rounds: int
    seed: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Model:
    """The quadratics on which the dynamics are exact, and what they have to do with the problem."""

    H: Floats
    c: Floats
    noise: Floats
    exact: bool  # the problem itself
    text: str


@dataclass(frozen=True)
class Outlook:
    """What one gradient rule does on the model, with the step size of the experiment."""

    rule: str
    method: str
    largest_stable_step: float
    recommended_step: float  # the fastest, or half of the largest stable one if that is less
    rate: float  # factor of the mean-square error per round
    rounds_per_digit: float  # until the distance has fallen tenfold; infinite if unstable
    recommended_rounds_per_digit: float  # the same with the recommended step size
    bias: float  # distance of the mean limit from the optimum
    noise: float  # root mean square distance from the mean limit, for ever
    floor: float  # both together

    @property
    def stable(self) -> bool:
        return self.rate < 1


@dataclass(frozen=True, eq=False)
class Survey:
    """The page of `spodgt theory`."""

    setup: Setup
    graph: EdgeUtility
    phi: Floats
    pi: Floats
    doubly_stochasticable: bool
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
    def conditions(self) -> dict[str, list[Condition]]:
        return {"paper": conditions(self.paper), "corrected": conditions(self.corrected)}

    @property
    def effective_step(self) -> float:
        """m φ̂ᵀπ̂: what a step size counts for on the average gradient."""
        return float(len(self.phi) * self.phi @ self.pi)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is infinite or infeasible is text."""
        s = self.setup
        return {
            name: plain(value)
            for name, value in {
                "seed": s.seed,
                "notes": list(s.notes),
                "clients": s.network.clients,
                "rounds": s.rounds,
                "step_size": s.step_size,
                "p": s.p,
                "p_hat": s.p_hat,
                "network": {
                    "links": s.network.links,
                    "links_both_ways": s.network.two_way,
                    **asdict(self.graph),
                    "doubly_stochasticable_without_self_loops": self.doubly_stochasticable,
                    "phi": self.phi,
                    "pi": self.pi,
                    "effective_step": self.effective_step,
                },
                "contraction": asdict(self.contraction),
                "estimates": self.estimates.as_dict(),
                "conditions": {
                    which: [asdict(condition) | {"limit": condition.limit} for condition in some]
                    for which, some in self.conditions.items()
                },
                "bounds": {"paper": self.paper_bound, "corrected": self.corrected_bound},
                "model": {"exact": self.model.exact, "what": self.model.text},
                "rules": {each.rule: asdict(each) | {"stable": each.stable} for each in self.outlooks},
                "gradient_bias": self.gradient_bias,
                "constants": {"paper": vars(self.paper), "corrected": vars(self.corrected)},
            }.items()
        }


# --- from a config -------------------------------------------------------------------------------------
def setup(config: Any, seed: int = 0) -> Setup:
    """The draw of an experiment for one seed."""
    from spodgt.algorithms import method
    from spodgt.algorithms.base import Schedule
    from spodgt.participation import Always, Bernoulli, Beta

    experiment = config
    network, availability = experiment.draw_network(seed)
    if network.clients > MOST_CLIENTS:
        raise InvalidInput(
            f"network.clients={network.clients} is too many for the constants of the paper, whose K(G) takes "
            f"links times clients² steps; use at most {MOST_CLIENTS}."
        )
    notes = []
    if not isinstance(experiment.participation, Always | Bernoulli | Beta):
        notes.append(
            f"participation {experiment.participation.name} is taken for independent draws as frequent"
        )
    named = [each for each in experiment.methods if each.name.split("+")[0] in METHODS.values()]
    chosen: Any = named[0] if named else method("spod-gt", step_size=config.run.step_size)
    eta: Any = chosen.step_size
    if isinstance(eta, Schedule):
        notes.append("the step size is that of round 1; those of a falling schedule need no other check")
        eta = eta.at(1)
    step = np.broadcast_to(np.asarray(eta, dtype=np.float64).reshape(-1), (network.clients,))
    rounds = config.run.rounds or max(1, round((config.run.delay or 0) / 3))  # each of three parts takes 1
    problem = experiment.draw(seed).problem
    return Setup(network, availability.p, availability.p_hat, problem, step, rounds, seed, tuple(notes))


def survey(setup: Setup, *, exact: bool = False, say: Say = lambda _: None) -> Survey:
    """All that can be said; `exact` analyses large coupled quadratics themselves, which may take minutes."""
    s = setup
    say("measuring the data")
    most = int(_EFFORT / s.problem.work * 64) + 64 if s.problem.work > _EFFORT else None
    found = estimate(s.problem, seed=s.seed, most=most)
    say("constants of the paper")
    phi, pi = perron_vectors(s.network, s.p_hat)
    given = s.network, s.p, s.p_hat, found.bounding(), s.step_size
    paper, corrected = constants(*given), constants(*given, variant="corrected")
    lowest = found.losses[-1] if isinstance(s.problem, Quadratic) else 0.0
    start = Start(found.losses[0] - lowest, 0.0, _tracking_error(s, found, pi))
    model = _model(s, found, exact)
    outlooks = []
    if s.network.clients <= MOST_EXACT:
        for rule, name in METHODS.items():
            say(f"exact dynamics of {name}")
            outlooks.append(_outlook(s, model, rule))
    return Survey(
        s,
        edge_utility(s.network),
        phi,
        pi,
        doubly_stochasticable(s.network, self_loops=False),
        contraction(s.network, s.p_hat),
        found,
        paper,
        corrected,
        theorem_terms(paper, start, s.rounds),
        rigorous_bound(corrected, start, s.rounds),
        model,
        tuple(outlooks),
        _gradient_bias(s.p, found.gradients),
    )


def _tracking_error(s: Setup, found: Estimates, pi: Floats) -> float:
    """E‖Π⁻¹Y⁰ - m1ȳ⁰‖²_π = E Σ|y_i|²/π_i - E|Σy|² for y = v ⊙ g."""
    g, p = found.first_gradients, s.p
    sampled = (1 - found.batch / found.samples) / found.batch
    spread = sampled * (found.sigma0.value**2 + found.sigma1.value**2 * found.gradient_norms[0] ** 2)
    square = p * ((g**2).sum(1) + spread)
    total = ((p @ g) ** 2).sum() + (square - p**2 * (g**2).sum(1)).sum()
    return float((square / pi).sum() - total)


def _gradient_bias(p: Floats, gradients: Floats) -> float:
    typical = np.sqrt((gradients**2).sum(1).mean())
    off = np.linalg.norm((p / p.mean() - 1) @ gradients) / len(p)
    return float(off / typical) if typical > 0 else 0.0


def _model(s: Setup, found: Estimates, exact: bool) -> Model:
    m = s.network.clients
    if isinstance(s.problem, Quadratic):
        H, c = (np.asarray(t.double().cpu().numpy()) for t in (s.problem.H, s.problem.c))
        coupled = np.any(H * (1 - np.eye(H.shape[1])) != 0)
        if exact or m * (H.shape[1] if coupled else 1) <= MOST_EXACT:
            return Model(H, c, np.full(m, s.problem.noise), True, "The problem is quadratic: this is exact.")
    L, g = found.L.value, found.gradients
    g = g if g.shape[1] else np.zeros((m, 1))
    sampled = (1 - found.batch / found.samples) / found.batch
    spread = sampled * (found.sigma0.value**2 + found.sigma1.value**2 * found.gradient_norms[-1] ** 2)
    text = (
        "A model of the problem: F_i = L_i |x - c_i|²/2 with the L_i above in every direction, and with the "
        "gradients and the noise found at the last point looked at. Exact for it; for the problem the step "
        "sizes are a guide, distances are of this order, and flat directions are slower."
    )
    # equal curvature in every direction: only inner products of the gradients count, not their directions
    H = np.broadcast_to(L[:, None], g.shape)
    return Model(H, -g / L[:, None], np.sqrt(spread / g.shape[1]), False, text)


def _outlook(s: Setup, model: Model, rule: Rule) -> Outlook:
    dynamics = Dynamics(s.network, s.p, s.p_hat, model.H, model.c, rule=rule, noise=model.noise)
    largest = dynamics.largest_stable_step(tolerance=1e-3)
    recommended = min(dynamics.fastest_step(largest), largest / 2)
    rate = dynamics.mean_square_radius(s.step_size)
    try:
        noise = math.sqrt(max(0.0, dynamics.variance(s.step_size)))
    except Failed:  # so close to the limit that the linear system cannot be solved
        noise = math.nan
    bias = float(np.linalg.norm(dynamics.bias))
    there = dynamics.mean_square_radius(recommended)
    return Outlook(
        rule,
        METHODS[rule],
        largest,
        recommended,
        rate,
        rounds_per_digit(rate),
        rounds_per_digit(there),
        bias,
        noise,
        math.hypot(noise, bias),
    )


def rounds_per_digit(rate: float) -> float:
    """Rounds until a root mean square has fallen tenfold."""
    if rate >= 1:
        return math.inf
    return math.log(100) / -math.log(rate) if rate > 0 else 0.0

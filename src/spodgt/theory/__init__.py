"""The convergence theory: constants, conditions and bounds, and exact dynamics on quadratics."""

from __future__ import annotations

from spodgt._util.deprecation import renamed_attribute
from spodgt.theory.conditions import Condition, Start, conditions, rigorous_bound, theorem_terms
from spodgt.theory.constants import Constants, Data, Infeasible
from spodgt.theory.dynamics import Dynamics
from spodgt.theory.estimates import Estimate, Estimates, estimate
from spodgt.theory.graph import (
    Contraction,
    EdgeUtility,
    contraction,
    distances,
    doubly_stochasticable,
    edge_utility,
    expected_matrices,
    perron_vectors,
    pull_second_moment,
    push_second_moment,
)
from spodgt.theory.lemmas import constants
from spodgt.theory.model import QuadraticModel, independent_probabilities, quadratic_model
from spodgt.theory.prediction import prediction
from spodgt.theory.summary import Outlook, Setting, TheorySummary, setting, summarize
from spodgt.theory.vanishing import VanishingSchedule, vanishing_schedule

__all__ = [
    "Condition", "Constants", "Contraction", "Data", "Dynamics", "EdgeUtility", "Estimate",
    "Estimates", "Infeasible", "Outlook", "QuadraticModel", "Setting", "Start", "TheorySummary",
    "VanishingSchedule",
    "conditions", "constants", "contraction", "distances", "doubly_stochasticable", "edge_utility",
    "estimate", "expected_matrices", "independent_probabilities", "perron_vectors", "prediction",
    "pull_second_moment", "push_second_moment", "quadratic_model", "rigorous_bound", "setting",
    "summarize", "theorem_terms", "vanishing_schedule",
]  # fmt: skip

_RENAMED = {
    "Overview": "spodgt.theory.TheorySummary",
    "overview": "spodgt.theory.summarize",
    "independent": "spodgt.theory.independent_probabilities",
}


def __getattr__(name: str) -> object:
    return renamed_attribute(__name__, name, _RENAMED)


def __dir__() -> list[str]:
    return __all__

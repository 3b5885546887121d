"""The convergence theory as a tool: constants, conditions and bounds, and exact analysis of quadratics."""

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
from spodgt.theory.overview import Outlook, Overview, Setting, independent, overview, setting
from spodgt.theory.prediction import prediction
from spodgt.theory.vanishing import VanishingSchedule, vanishing_schedule

__all__ = [
    "Condition", "Constants", "Contraction", "Data", "Dynamics", "EdgeUtility", "Estimate", "Estimates",
    "Infeasible", "Outlook", "Overview", "Setting", "Start", "VanishingSchedule", "conditions",
    "constants", "contraction", "distances", "doubly_stochasticable", "edge_utility", "estimate",
    "expected_matrices", "independent", "overview", "perron_vectors", "prediction", "pull_second_moment",
    "push_second_moment", "rigorous_bound", "setting", "theorem_terms", "vanishing_schedule",
]  # fmt: skip

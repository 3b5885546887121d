"""The convergence theory as a tool: constants, conditions and bounds, and what is exactly true."""

from spodgt.theory.conditions import Condition, conditions
from spodgt.theory.constants import constants
from spodgt.theory.contraction import Contraction, contraction, pull_second_moment, push_second_moment
from spodgt.theory.estimates import Estimate, Estimates, estimate
from spodgt.theory.exact import Analysis, Dynamics
from spodgt.theory.graph import (
    EdgeUtility,
    distances,
    doubly_stochasticable,
    edge_utility,
    expected_matrices,
    greedy_covering,
    perron_vectors,
)
from spodgt.theory.record import Constants, Infeasible
from spodgt.theory.schedules import RateCheck, VanishingSchedule, check_nonincreasing, vanishing_schedule
from spodgt.theory.section import Section, section
from spodgt.theory.survey import Survey, setup, survey
from spodgt.theory.theorem import rigorous_bound, theorem_terms

__all__ = [
    "Analysis",
    "Condition",
    "Constants",
    "Contraction",
    "Dynamics",
    "EdgeUtility",
    "Estimate",
    "Estimates",
    "Infeasible",
    "RateCheck",
    "Section",
    "Survey",
    "VanishingSchedule",
    "check_nonincreasing",
    "conditions",
    "constants",
    "contraction",
    "distances",
    "doubly_stochasticable",
    "edge_utility",
    "estimate",
    "expected_matrices",
    "greedy_covering",
    "perron_vectors",
    "pull_second_moment",
    "push_second_moment",
    "rigorous_bound",
    "section",
    "setup",
    "survey",
    "theorem_terms",
    "vanishing_schedule",
]

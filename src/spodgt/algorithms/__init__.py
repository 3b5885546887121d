"""The methods, one file each, and the list of them: `registry.METHODS`."""

from spodgt.algorithms.base import Algorithm, Rate, Schedule, Traits
from spodgt.algorithms.compose.momentum import Momentum
from spodgt.algorithms.compose.schedules import Constant, Cosine, Inverse, InverseSqrt, Scheduled
from spodgt.algorithms.registry import ALGORITHMS, algorithms, describe, method, register, stack
from spodgt.algorithms.table import table

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Constant",
    "Cosine",
    "Inverse",
    "InverseSqrt",
    "Momentum",
    "Rate",
    "Schedule",
    "Scheduled",
    "Traits",
    "algorithms",
    "describe",
    "method",
    "register",
    "stack",
    "table",
]

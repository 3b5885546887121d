"""The methods, one file each, and the list of them: `registry.METHODS`."""

from spodgt.algorithms.base import Algorithm, Rate, Schedule, Traits
from spodgt.algorithms.compose.active_degree_weights import Working
from spodgt.algorithms.compose.adam import Adam
from spodgt.algorithms.compose.clipping import ClipGradient, ClipTracker
from spodgt.algorithms.compose.local_steps import Local
from spodgt.algorithms.compose.momentum import Momentum
from spodgt.algorithms.compose.schedules import Constant, Cosine, Inverse, InverseSqrt, Scheduled
from spodgt.algorithms.compose.weight_decay import L2, WeightDecay
from spodgt.algorithms.registry import (
    ALGORITHMS,
    LAYERS,
    algorithms,
    describe,
    installed,
    method,
    register,
    stack,
)
from spodgt.algorithms.table import table

__all__ = [
    "ALGORITHMS",
    "L2",
    "LAYERS",
    "Adam",
    "Algorithm",
    "ClipGradient",
    "ClipTracker",
    "Constant",
    "Cosine",
    "Inverse",
    "InverseSqrt",
    "Local",
    "Momentum",
    "Rate",
    "Schedule",
    "Scheduled",
    "Traits",
    "WeightDecay",
    "Working",
    "algorithms",
    "describe",
    "installed",
    "method",
    "register",
    "stack",
    "table",
]

"""The methods, one file each, and the list of them: `registry.METHODS`."""

from spodgt._util.deprecation import renamed_attribute
from spodgt.algorithms.base import Algorithm, Rate, Schedule, Traits
from spodgt.algorithms.compose.active_degree_weights import ActiveDegreeLayer
from spodgt.algorithms.compose.adam import Adam
from spodgt.algorithms.compose.clipping import ClipGradient, ClipTracker
from spodgt.algorithms.compose.compression import Compression
from spodgt.algorithms.compose.local_steps import LocalStepsLayer
from spodgt.algorithms.compose.momentum import Momentum
from spodgt.algorithms.compose.running_mean import RunningMean
from spodgt.algorithms.compose.schedules import Constant, Cosine, Inverse, InverseSqrt, Scheduled
from spodgt.algorithms.compose.weight_decay import L2, WeightDecay
from spodgt.algorithms.registry import (
    ALGORITHMS,
    ALIASES,
    LAYERS,
    algorithms,
    describe,
    find_class,
    is_installed,
    method,
    plain_step_size,
    register,
    stack,
    user_code,
)
from spodgt.algorithms.table import table

__all__ = [
    "ALGORITHMS",
    "ALIASES",
    "L2",
    "LAYERS",
    "ActiveDegreeLayer",
    "Adam",
    "Algorithm",
    "ClipGradient",
    "ClipTracker",
    "Compression",
    "Constant",
    "Cosine",
    "Inverse",
    "InverseSqrt",
    "LocalStepsLayer",
    "Momentum",
    "Rate",
    "RunningMean",
    "Schedule",
    "Scheduled",
    "Traits",
    "WeightDecay",
    "algorithms",
    "describe",
    "find_class",
    "is_installed",
    "method",
    "plain_step_size",
    "register",
    "stack",
    "table",
    "user_code",
]

_RENAMED = {
    "Local": "spodgt.algorithms.LocalStepsLayer",
    "Working": "spodgt.algorithms.ActiveDegreeLayer",
    "installed": "spodgt.algorithms.is_installed",
}


def __getattr__(name: str) -> object:
    return renamed_attribute(__name__, name, _RENAMED)

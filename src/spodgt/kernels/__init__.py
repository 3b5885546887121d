"""Compiled loops, each beside its plain twin, and the registry of compiled steps.

A method names its compiled step in `Traits.compiled`; a world looks it up here. No kernel knows a method.
"""

from spodgt.kernels.linear import LinearStep
from spodgt.kernels.steps import CompiledStep
from spodgt.kernels.tracking import GradientTracking

STEPS: dict[str, type[CompiledStep]] = {"gradient-tracking": GradientTracking, "linear": LinearStep}

__all__ = ["STEPS", "CompiledStep"]

"""Decentralized federated learning over directed graphs, when clients and links come and go.

Public names are loaded when they are first used: importing the package itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

from spodgt._util.deprecation import renamed_attribute

if TYPE_CHECKING:
    from spodgt import problems
    from spodgt.algorithms import ALGORITHMS, method, register
    from spodgt.algorithms.ab_push_pull import ABPushPull
    from spodgt.algorithms.g_push_pull import GPushPull
    from spodgt.algorithms.k_gt import KGT
    from spodgt.algorithms.spod_gt import SpodGT
    from spodgt.algorithms.spod_gt_importance import SpodGTImportance
    from spodgt.algorithms.spod_gt_memory import SpodGTMemory
    from spodgt.algorithms.sporadic_k_gt import SporadicKGT
    from spodgt.experiment import Experiment
    from spodgt.network import Network, graphs
    from spodgt.participation import (
        Always,
        Bernoulli,
        Beta,
        Bursts,
        DayNight,
        EveryK,
        GilbertElliott,
        Intersection,
        Markov,
        OneLink,
        Outages,
        Trace,
    )
    from spodgt.problems import Learning, Quadratic
    from spodgt.runtimes.events.durations import Time
    from spodgt.sweeps.api import sweep
    from spodgt.sweeps.tune import Search, tune
    from spodgt.training import Result, compare, loggers, run, train

_MODULES = {
    "graphs": "spodgt.network.graphs",
    "loggers": "spodgt.training.loggers",
    "problems": "spodgt.problems",
}
_NAMES = {
    "spodgt.algorithms": ("ALGORITHMS", "method", "register"),
    "spodgt.algorithms.ab_push_pull": ("ABPushPull",),
    "spodgt.algorithms.g_push_pull": ("GPushPull",),
    "spodgt.algorithms.k_gt": ("KGT",),
    "spodgt.algorithms.spod_gt": ("SpodGT",),
    "spodgt.algorithms.spod_gt_importance": ("SpodGTImportance",),
    "spodgt.algorithms.spod_gt_memory": ("SpodGTMemory",),
    "spodgt.algorithms.sporadic_k_gt": ("SporadicKGT",),
    "spodgt.experiment": ("Experiment",),
    "spodgt.network": ("Network",),
    "spodgt.participation": (
        "Always",
        "Bernoulli",
        "Beta",
        "Bursts",
        "DayNight",
        "EveryK",
        "GilbertElliott",
        "Markov",
        "OneLink",
        "Outages",
        "Intersection",
        "Trace",
    ),
    "spodgt.problems": ("Learning", "Quadratic"),
    "spodgt.runtimes.events.durations": ("Time",),
    "spodgt.sweeps.tune": ("Search", "tune"),
    "spodgt.sweeps.api": ("sweep",),
    "spodgt.training": ("Result", "compare", "run", "train"),
}
_RENAMED = {"Together": "spodgt.participation.Intersection"}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "ALGORITHMS",
    "KGT",
    "ABPushPull",
    "Always",
    "Bernoulli",
    "Beta",
    "Bursts",
    "DayNight",
    "EveryK",
    "Experiment",
    "GPushPull",
    "GilbertElliott",
    "Intersection",
    "Learning",
    "Markov",
    "Network",
    "OneLink",
    "Outages",
    "Quadratic",
    "Result",
    "Search",
    "SpodGT",
    "SpodGTImportance",
    "SpodGTMemory",
    "SporadicKGT",
    "Time",
    "Trace",
    "compare",
    "graphs",
    "loggers",
    "method",
    "problems",
    "register",
    "run",
    "sweep",
    "train",
    "tune",
]


__version__: str  # of the installed package


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = metadata.version("spodgt")
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        return renamed_attribute(__name__, name, _RENAMED)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

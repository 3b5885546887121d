"""Partial participation: recipes, availability of clients and links, the delay clock."""

from spodgt.participation.correlated import (
    Bursts,
    DayNight,
    GilbertElliott,
    Intersection,
    Markov,
    Outages,
)
from spodgt.participation.recipes import (
    PARTICIPATIONS,
    Always,
    Bernoulli,
    Beta,
    EveryK,
    OneLink,
    Participation,
    as_availability,
    check_participation,
)
from spodgt.participation.traces import Trace, TraceFile

__all__ = [
    "PARTICIPATIONS",
    "Always",
    "Bernoulli",
    "Beta",
    "Bursts",
    "DayNight",
    "EveryK",
    "GilbertElliott",
    "Intersection",
    "Markov",
    "OneLink",
    "Outages",
    "Participation",
    "Trace",
    "TraceFile",
    "as_availability",
    "check_participation",
]

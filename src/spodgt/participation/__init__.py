"""Who takes part in a round, and what a round costs: recipes, availability, the delay clock."""

from spodgt.participation.bursts import Bursts, DayNight, GilbertElliott, Markov, Outages, Together
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
    "Markov",
    "OneLink",
    "Outages",
    "Participation",
    "Together",
    "Trace",
    "TraceFile",
    "as_availability",
    "check_participation",
]

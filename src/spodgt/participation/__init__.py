"""Partial participation: recipes, availability of clients and links, the delay clock.

A recipe is what a user gives; `draw(network, seed)` turns it into an availability, the active
clients and links of every round. A method may wrap the availability to change them.

    recipes.py correlated.py    recipes: independent draws; Markov chains, days and nights, outages
    fields.py samplers.py       fields and masks of the correlated recipes
    traces.py trace_logs.py trace_masks.py
                                replay of recorded availability: recipe, logs, fit to a network
    availability.py             availabilities, and the wrappers of methods
    local_blocks.py tree_routing.py roles.py
                                wrappers for local steps and for routing over two trees
    delay.py                    the delay of a round, from p and p̂
"""

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

"""A smaller schedule that still fails."""

from __future__ import annotations

from tests.peer.simulation.plan import Plan
from tests.peer.simulation.simulator import simulate


def fails(plan: Plan) -> bool:
    return bool(simulate(plan).failure)


def shrink(plan: Plan) -> Plan:
    """Drop faults, half of them at a time, then a quarter, then one, while the plan still fails."""
    size = max(1, len(plan.faults) // 2)
    while True:
        start = 0
        while start < len(plan.faults):
            smaller = plan.without(set(range(start, start + size)))
            if fails(smaller):
                plan = smaller
            else:
                start += size
        if size == 1:
            return plan
        size //= 2

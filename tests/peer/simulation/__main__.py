"""`python -m tests.peer.simulation --seed N | --seeds A:B | --minutes M`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from tests.peer.simulation.pool import measure_all
from tests.peer.simulation.shrink import shrink
from tests.peer.simulation.simulator import Outcome, plan_of, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peer.simulation", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--seed", type=int, help="one seed, with its schedule and its log")
    chosen.add_argument("--seeds", help="A:B, from A to B - 1")
    chosen.add_argument(
        "--minutes", type=float, help="as many seeds as fit, beginning with --first"
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed, not given.no_shrink)
    return _many(_seeds(given), not given.no_shrink, given.workers)


def _seeds(given: argparse.Namespace) -> Iterator[int]:
    if given.seeds is not None:
        first, _, last = given.seeds.partition(":")
        yield from range(int(first), int(last))
        return
    end = time.monotonic() + 60 * given.minutes
    seed = given.first
    while time.monotonic() < end:
        yield seed
        seed += 1


def _one(seed: int, shrinks: bool) -> int:
    plan = plan_of(seed)
    print(plan)
    outcome = simulate(plan)
    print("\n".join(outcome.log))
    _report(outcome, shrinks)
    figures = f"{outcome.virtual_seconds:.0f} virtual s in {outcome.real_seconds:.2f} s"
    print(f"{figures}, {outcome.commits} commits, {outcome.starts} starts, digest {outcome.digest}")
    return int(bool(outcome.failure))


def _many(seeds: Iterator[int], shrinks: bool, workers: int) -> int:
    begun = time.monotonic()
    failed = []
    count = 0
    hours = 0.0
    cpu_seconds = 0.0
    for measured in measure_all(seeds, workers):
        outcome = measured.outcome
        count += 1
        hours += outcome.virtual_seconds / 3600
        cpu_seconds += measured.cpu_seconds
        if outcome.failure:
            failed.append(outcome.plan.seed)
            _report(outcome, shrinks)
        if count % 100 == 0:
            print(f"{count} seeds, {len(failed)} failed", flush=True)
    seconds = time.monotonic() - begun
    print(f"{count} seeds in {seconds:.0f} s, {len(failed)} failed {failed}")
    if count:
        rates = f"{count / cpu_seconds:.2f} seeds and {hours / cpu_seconds:.4f} virtual hours"
        print(f"{rates} per second of a core")
    return int(bool(failed))


def _report(outcome: Outcome, shrinks: bool) -> None:
    if not outcome.failure:
        return
    print(f"seed {outcome.plan.seed}: {outcome.failure}")
    if shrinks:
        print("the smallest schedule that fails:", shrink(outcome.plan), sep="\n  ")
    print(f"again: python -m tests.peer.simulation --seed {outcome.plan.seed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

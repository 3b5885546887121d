# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""The corollary "Arbitrarily Small Bound": a gradient that vanishes with the length of the run.

    python examples/vanishing_bound.py [--small] [--picture FILE]

Logistic regression on heterogeneous clients. The mean of |∇F|² over K rounds is measured for Spod-GT with
fixed step size, participation and batches; with those of `vanishing_schedule(K)`; and with memory and full
batches, at the fixed participation. Takes less than a minute.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

import spodgt
from spodgt import figures
from spodgt.theory import vanishing_schedule

CLIENTS, SAMPLES, FEATURES, CLASSES = 6, 60, 5, 3
STEP, IDLENESS, BATCH = 1.0, 0.9, 2.0  # the constants that the corollary leaves open
FIXED_STEP, FIXED_P, FIXED_BATCH = 0.2, np.array([0.9, 0.15, 0.6, 0.2, 0.9, 0.3]), 8
ROUNDS = (10, 30, 100, 300, 1000, 3000)
SEEDS = range(6)
SMALL_ROUNDS, SMALL_SEEDS = (10, 100), range(2)  # with --small


def problem() -> spodgt.Learning:
    """Clients label their samples by different rules, so ignoring one biases the result."""
    draw = np.random.default_rng(0)
    clients = []
    for _ in range(CLIENTS):
        inputs = draw.normal(size=(SAMPLES, FEATURES))
        scores = inputs @ draw.normal(size=(FEATURES, CLASSES)) + draw.gumbel(
            size=(SAMPLES, CLASSES)
        )
        clients.append((torch.from_numpy(inputs).float(), torch.from_numpy(scores.argmax(1))))
    return spodgt.Learning(nn.Linear(FEATURES, CLASSES), nn.CrossEntropyLoss(), clients)


def gap(
    algorithm: spodgt.SpodGT,
    work: spodgt.Learning,
    participation: spodgt.Bernoulli,
    rounds: int,
    seeds: range,
) -> float:
    """Mean over rounds and seeds of |∇F|² at the average model."""
    network = spodgt.Network.directed_geometric(CLIENTS, 0.4, 0.8, seed=1)
    options = {"rounds": rounds, "seeds": seeds, "evaluations": 1, "gradient_norm": False}
    result = spodgt.train(algorithm, work, network, participation, keep_states=True, **options)
    return float(np.mean([squares(work, state.x.mean(1)) for state in result.states.values()]))


def squares(work: spodgt.Learning, models: torch.Tensor) -> float:
    """Mean of |∇F|² over models (rounds, parameters); clients hold equally many samples."""
    inputs, targets = work.samples.inputs, work.samples.targets
    W, b = models[:, :-CLASSES].reshape(-1, CLASSES, FEATURES), models[:, -CLASSES:]
    slopes = torch.softmax(inputs @ W.mT + b[:, None], -1) - nn.functional.one_hot(targets, CLASSES)
    by_W, by_b = slopes.mT @ inputs / len(inputs), slopes.mean(1)
    return float((by_W.square().sum((1, 2)) + by_b.square().sum(1)).mean())


def main(small: bool = False, picture: str = "") -> dict[str, float]:
    """Measure, and return the last value of each setting, by name."""
    lengths = SMALL_ROUNDS if small else ROUNDS
    seeds = SMALL_SEEDS if small else SEEDS
    work = problem()
    found: dict[str, list[float]] = {
        "fixed": [],
        "vanishing schedule": [],
        "memory, full batches": [],
    }
    for rounds in lengths:
        plan = vanishing_schedule(
            rounds, work.client_indices.sizes, step_size=STEP, idleness=IDLENESS, batch=BATCH
        )
        fixed = spodgt.Bernoulli(FIXED_P, 0.8)
        scheduled = plan.participation(0.8)
        batches = work.with_batch_size(FIXED_BATCH)
        all_data = work.with_batch_size(None)
        memory = spodgt.SpodGTMemory(FIXED_STEP)
        gaps = {
            "fixed": gap(spodgt.SpodGT(FIXED_STEP), batches, fixed, rounds, seeds),
            "vanishing schedule": gap(
                spodgt.SpodGT(plan.step_size), plan.batches(work), scheduled, rounds, seeds
            ),
            "memory, full batches": gap(memory, all_data, fixed, rounds, seeds),
        }
        for name, value in gaps.items():
            found[name].append(value)
        print(
            f"{rounds:6,} rounds: "
            + ", ".join(f"{name} {gaps[-1]:.2e}" for name, gaps in found.items())
        )
    if picture:
        draw(lengths, found, Path(picture))
    return {name: gaps[-1] for name, gaps in found.items()}


def draw(lengths: tuple[int, ...], found: dict[str, list[float]], path: Path) -> None:
    """Draw |∇F|² against the length of the run, and 1/√(K+1) through the last point."""
    figure, axes = figures.new_figure(6.4, 4.2)
    for number, (name, gaps) in enumerate(found.items()):
        axes.loglog(lengths, gaps, "-", marker="o", color=figures.COLOURS[number], label=name)
    last = found["vanishing schedule"][-1] * np.sqrt((lengths[-1] + 1) / (np.array(lengths) + 1))
    axes.loglog(lengths, last, ":", color="#999999", label="1/√(K+1)")
    axes.set_xlabel("rounds K of the run")
    axes.set_ylabel("mean of |∇F|² over the run")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    figures.save(figure, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="two short lengths, two seeds")
    parser.add_argument("--picture", metavar="FILE", help="draw the three settings")
    main(**vars(parser.parse_args()))

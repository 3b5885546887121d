# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""Tabular data: hospitals of very different size train a network with BatchNorm.

    python examples/tabular.py [--small] [--picture FILE]

Clients are given by name, each with a pair of numpy arrays. Running statistics of BatchNorm travel with the
models (buffers="pull"). The classes are rare in some hospitals, so F1 is measured beside accuracy.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

import spodgt

SIZES = {"north": 400, "south": 250, "east": 120, "west": 60, "village": 12}


def table(draw: np.random.Generator, samples: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Measurements in units of their own, and whether a patient is readmitted."""
    age, pressure, dose = (
        draw.normal(60, 12, samples),
        draw.normal(120 + shift, 15, samples),
        draw.random(samples),
    )
    noise = draw.normal(size=(samples, 3))
    risk = (age - 60) / 12 + (pressure - 130) / 15 - 2 * dose + draw.logistic(0, 0.3, samples)
    return np.column_stack([age, pressure, 50 * dose, noise]), (risk > 0.5).astype(np.int64)


def f1(outputs: Tensor, targets: Tensor) -> float:
    found, true = outputs.argmax(1) == 1, targets == 1
    return float(2 * (found & true).sum() / (found.sum() + true.sum()).clamp_min(1))


def main(*, small: bool = False, picture: str | None = None) -> dict[str, float]:
    draw = np.random.default_rng(0)
    clients = {name: table(draw, size, 5.0 * i) for i, (name, size) in enumerate(SIZES.items())}
    torch.manual_seed(0)
    problem = spodgt.Learning(
        nn.Sequential(
            nn.BatchNorm1d(6), nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)
        ),
        nn.CrossEntropyLoss(),
        clients,
        test=table(draw, 500, 10.0),
        batch_size=[min(32, size) for size in SIZES.values()],
        metrics={"f1": f1},
        init="fresh",
        buffers="pull",
    )
    result = spodgt.train(
        spodgt.SpodGTMemory(step_size=0.1),
        problem,
        spodgt.Network.ring(len(SIZES)),
        spodgt.Bernoulli(0.7, 0.7),
        rounds=60 if small else 400,
        evaluations=40,
    )
    print(result.frame[["round", "loss", "accuracy", "f1"]].iloc[::10].to_string(index=False))
    if picture:
        result.plot(picture, metric="f1", against="round")
    last = result.frame.iloc[-1]
    return {"f1": float(last["f1"]), "accuracy": float(last["accuracy"])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a few rounds only")
    parser.add_argument("--picture", metavar="FILE", help="draw what came out")
    main(**vars(parser.parse_args()))

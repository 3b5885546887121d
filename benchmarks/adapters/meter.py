"""The work every competitor gets, and the clock that measures it. Needs numpy only: it runs in every venv.

An adapter reads its arguments with `begin`, builds its clients from `Work`, calls `meter.start()` and then
`meter.tick(gradients, model)` after every round, until that returns True. Evaluations are done here, with the
clock stopped; nobody evaluates inside the timed part unless the framework insists.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Work:
    """Shares of images, a graph with weights, a model and its start: the same for everybody.

    Attributes:
        inputs: (samples, 784) pixels between 0 and 1, the clients' shares one after the other.
        targets: (samples,) labels.
        bounds: (clients + 1,) where the shares begin and end.
        test_inputs: (tests, 784) pixels.
        test_targets: (tests,) labels.
        weights: (clients, clients) gossip weights W, symmetric and doubly stochastic.
        start: (parameters,) the model all clients start from.
        hidden: units of the hidden layer; 0 for a linear model.
        step_size: γ.
        batch: samples of a gradient.
        local_steps: gradients of a client between two averagings; 1 unless a whole epoch is asked for.
    """

    inputs: Floats
    targets: Ints
    bounds: Ints
    test_inputs: Floats
    test_targets: Ints
    weights: Floats
    start: Floats
    hidden: int = 0
    step_size: float = 0.05
    batch: int = 16
    local_steps: int = 1

    @property
    def clients(self) -> int:
        return len(self.bounds) - 1

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the parameters, in the order of torch: weight and bias of each layer."""
        widths = [784, self.hidden, 10] if self.hidden else [784, 10]
        return [shape for a, b in pairwise(widths) for shape in ((b, a), (b,))]

    def share(self, client: int) -> tuple[Floats, Ints]:
        part = slice(*self.bounds[client : client + 2])
        return self.inputs[part], self.targets[part]

    def neighbours(self, client: int) -> list[int]:
        return [int(j) for j in np.flatnonzero(self.weights[client]) if j != client]

    def arrays(self, flat: Floats) -> list[Floats]:
        """The parameters of `flat`, each in its own shape."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [
            part.reshape(shape)
            for part, shape in zip(np.split(flat, ends), self.shapes, strict=True)
        ]

    def accuracy(self, flat: Floats) -> float:
        """Of one model on the test images."""
        weight, bias, *rest = self.arrays(np.asarray(flat, np.float32))
        found = self.test_inputs @ weight.T + bias
        if rest:
            found = np.maximum(found, 0) @ rest[0].T + rest[1]
        return float((found.argmax(1) == self.test_targets).mean())

    def save(self, path: Path) -> None:
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Work:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(
                **{
                    name: value.item() if value.ndim == 0 else value
                    for name, value in arrays.items()
                }
            )


class Meter:
    """Counts gradients against time. The clock stands still during evaluations."""

    def __init__(self, work: Work, seconds: float, warm: float = 0.2) -> None:
        self.work, self.seconds, self.warm = work, seconds, warm
        self.began = self.paused = 0.0
        self.first: tuple[float, int] | None = None  # where steady state begins
        self.last = (0.0, 0)
        self.curve: list[tuple[float, int, float]] = []  # seconds, gradients, accuracy

    def start(self) -> None:
        self.began = time.perf_counter()

    def tick(self, gradients: int, model: Callable[[], Floats]) -> bool:
        """So many gradients of single clients are done in all; True when the time is over.

        Args:
            gradients: since `start`.
            model: gives the average of the clients' models, (parameters,); called only for an evaluation.
        """
        now = time.perf_counter() - self.began - self.paused
        if self.first is None and now >= self.warm * self.seconds:
            self.first = now, gradients
        self.last = now, gradients
        if not self.curve or now >= 1.1 * self.curve[-1][0] + 0.005 or now >= self.seconds:
            self.curve.append((now, gradients, self.work.accuracy(model())))
            self.paused = time.perf_counter() - self.began - now
        return now >= self.seconds

    def result(self) -> dict[str, Any]:
        first = self.first or (0.0, 0)
        if self.last[1] == first[1]:  # the whole run had a single tick in steady state
            first = (0.0, 0)
        return {
            "gradients_per_s": (self.last[1] - first[1]) / (self.last[0] - first[0]),
            "seconds": self.last[0],
            "gradients": self.last[1],
            "curve": [[round(a, 5), b, round(c, 4)] for a, b, c in self.curve],
        }


def begin() -> tuple[Work, Meter]:
    """Work and meter from the command line: `adapter.py WORK.npz OUT.json SECONDS`."""
    arguments = _arguments()
    work = Work.load(arguments.work)
    return work, Meter(work, arguments.seconds)


def finish(meter: Meter, *packages: str) -> None:
    """Write what was measured, with the versions of the installed `packages`."""
    found = meter.result() | {"versions": {name: version(name) for name in packages}}
    _arguments().out.write_text(json.dumps(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("seconds", type=float)
    return parser.parse_args()

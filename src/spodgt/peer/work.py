"""A client's own part of the problem: its data, its gradients and its initial model."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.experiment.config import read_problem
from spodgt.peer.capacity import Capacity
from spodgt.peer.manifest import Manifest, layout_of
from spodgt.problems import refuse_statistics
from spodgt.types import Evaluation, Minibatches, Problem


class Work:
    """What client `name` computes; on the problem of the manifest unless `make` gives another."""

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        capacity: Capacity,
        make: Callable[[str], object] | None = None,
    ) -> None:
        problem = own_problem(make, name) if make else manifest_problem(manifest)
        refuse_statistics(problem, "peers")
        self.problem = problem.to(torch.device("cpu"), torch.float32)
        self.place, self.seed, self.capacity = manifest.client(name).place, manifest.seed, capacity
        self.row = 0 if problem.clients == 1 else self.place
        if self.row >= problem.clients:
            raise InvalidInput(
                f"the problem has {problem.clients} clients, but {name} is number {self.place}; give it data."
            )
        if layout_of(problem) != manifest.layout:
            raise InvalidInput(
                f"the model of {name} has {problem.parameters} parameters, with other names or shapes "
                f"than the {manifest.parameters} of the manifest; use the model the run was made with, "
                "or make the run with spodgt peer init --problem."
            )
        self.keys = np.array([rng.key(self.seed, "batch")])

    def start(self) -> Tensor:
        """(parameters,): the initial model."""
        return self.problem.start(self.seed)[self.row]

    def gradient(self, x: Tensor, k: int) -> Tensor:
        """(1, parameters): the stochastic gradient of local round k."""
        begun = time.perf_counter()
        g = self.problem.grad(x, Minibatches(np.array([self.row]), self.keys, np.array([self.place]), k))
        self.capacity.spent(time.perf_counter() - begun)
        return g

    def evaluate(self, x: Tensor) -> Evaluation:
        return self.problem.evaluate(x)


def manifest_problem(manifest: Manifest) -> Problem:
    """The problem that a manifest describes, divided among the clients the run began with."""
    clients = manifest.divided_into or len(manifest.clients)
    return read_problem(manifest.problem).build(clients).draw(manifest.seed)


def own_problem(make: Callable[[str], object], name: str) -> Problem:
    """What a user's function returns for a client, if it is a problem."""
    try:
        problem = make(name)
    except Exception as error:
        raise InvalidInput(f"--problem failed for {name!r}: {type(error).__name__}: {error}.") from error
    if not isinstance(problem, Problem):
        raise InvalidInput(
            f"--problem must return a spodgt.Learning for {name!r}, got {type(problem).__name__}."
        )
    return problem

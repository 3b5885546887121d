"""What a runtime works on: the draw of one seed, a method fitted to it, and the batch of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spodgt.network import Network
from spodgt.types import Availability, Problem


@dataclass(frozen=True, eq=False)
class Draw:
    """One seed of an experiment; made by `Experiment.draw` only."""

    seed: int
    network: Network
    availability: Availability
    problem: Problem  # divided among the clients
    start: Tensor  # (clients, parameters): the initial models

"""The steps of the Spod-GT family in two passes over memory instead of twenty.

The method's own file stays the definition; this is the same arithmetic, in place, block by block:

    exchange    y ← B̂ y;  x ← Â x - η y;  y ← y - g, g ← 0 where a gradient is dropped
    gradients   y ← y + g⁺ - g, g ← g⁺ for the clients that compute

A fused step overwrites the state it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.ab_push_pull import ABPushPull
from spodgt.algorithms.g_push_pull import GPushPull
from spodgt.algorithms.spod_gt import SpodGT, SpodGTState
from spodgt.algorithms.spod_gt_importance import SpodGTImportance
from spodgt.algorithms.spod_gt_memory import SpodGTMemory
from spodgt.algorithms.sporadic_k_gt import SporadicKGT
from spodgt.compiled import usable
from spodgt.problems.linear import Draw
from spodgt.runtimes.kernels import exchange, kept
from spodgt.types import Algorithm, Floats, Round

_FAMILY = (SpodGT, SpodGTMemory, SpodGTImportance, ABPushPull, GPushPull, SporadicKGT)


def fused(algorithm: Algorithm, device: torch.device) -> Algorithm:
    """The compiled form of a method where there is one, else the method itself."""
    step = getattr(algorithm, "step_size", None)
    if device.type == "cpu" and type(algorithm) in _FAMILY and isinstance(step, int | float | Tensor):
        return Fused(algorithm)
    return algorithm


@dataclass(frozen=True)
class Fused(Algorithm):
    """A method of the family, stepping in place."""

    method: Any

    @property
    def name(self) -> str:  # type: ignore[override]
        return str(self.method.name)

    def init(self, x: Tensor, round: Round) -> SpodGTState:
        state = self.method.init(x, round)
        return SpodGTState(x, state.y.clone(), state.g)  # y and g must not share their memory

    def step(self, state: SpodGTState, round: Any) -> SpodGTState:
        x, y, g = state
        running = round.world.statistics.shape[1]  # only the method's own calls carry these along
        if running or not usable(x, y, g) or round.pull_links is not round.push_links:
            return self.method.step(state, round)  # type: ignore[no-any-return]
        world, active = round.world, round.pull_links
        links, a, b = world.links, world.weights["a"], world.weights["b"]
        memory = isinstance(self.method, SpodGTMemory)
        round.count(active, y)
        round.count(active, x)
        drop = np.zeros_like(round.before) if memory else round.before
        step = np.broadcast_to(np.asarray(self.method.step_size, dtype=np.float64).reshape(-1), (len(x),))
        diagonal = kept(links.receivers, links.senders, a, b, active, len(x))
        exchange(x, y, g, drop, step, world.starts, (links.pointers, links.senders, a, b, *diagonal), active)
        rows = np.flatnonzero(round.active)
        if len(rows):
            world.tally.gradients[world.rows[0]] += round.active
            weight = np.ones(len(rows))
            if isinstance(self.method, SpodGTImportance):
                weight = 1 / round.p.double().numpy()[rows, 0]
            track(world.problem, x, g, y, Draw(rows, world.keys[rows], world.places[rows], round.k), weight)
        return state


def track(problem: Any, x: Tensor, g: Tensor, y: Tensor, draw: Draw, weight: Floats) -> None:
    """y ← y + g⁺ - g and g ← g⁺ in the rows drawn, in one pass where the problem can."""
    into = getattr(problem, "grad_into", None)
    if into is not None and into(x, g, y, draw.rows, draw, weight):
        return
    index = torch.from_numpy(draw.rows)
    new = problem.grad(x[index], draw.rows, draw.keys, draw.places, draw.k)
    new = new * torch.from_numpy(weight)[:, None].to(x.dtype)
    y[index] += new - g[index]
    g[index] = new

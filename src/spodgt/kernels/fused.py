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
from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.g_push_pull import GPushPull
from spodgt.algorithms.spod_gt import SpodGT, SpodGTState
from spodgt.algorithms.spod_gt_importance import SpodGTImportance
from spodgt.algorithms.spod_gt_memory import SpodGTMemory
from spodgt.algorithms.sporadic_k_gt import SporadicKGT
from spodgt.compiled import usable
from spodgt.kernels.loops import exchange, exchange_rows, kept, renew, rounds
from spodgt.types import Floats, Minibatches, Round

_ALONE = 2**18  # numbers of a single run above which it pays to share each of its rounds among threads
_MANY = 200  # clients of a run whose blocks of columns do not stay in a cache
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
        if running or not usable(x, y, g) or round.links.push is not None:
            return self.method.step(state, round)  # type: ignore[no-any-return]
        world, active = round.world, round.links.pull
        links, a, b = world.links, world.weights["a"], world.weights["b"]
        memory = isinstance(self.method, SpodGTMemory)
        round.count(active, y)
        round.count(active, x)
        drop = np.zeros_like(round.before) if memory else round.before
        step = self._steps(len(x))
        diagonal = kept(links.pointers, links.senders, a, b, active)
        rows = links.pointers, links.senders, a, b, *diagonal
        if max(world.sizes) > _MANY:
            spare = links.memory.spare if links.memory.spare is not None else torch.empty_like(x)
            x, y, links.memory.spare = exchange_rows(x, y, g, spare, drop, step, rows, active)
        else:
            exchange(x, y, g, drop, step, world.starts, rows, active)
        who = np.flatnonzero(round.active)
        if len(who):
            world.tally.gradients[world.rows[0]] += round.active
            weight = self._weights(world)[who]
            track(
                world.problem, x, g, y, Minibatches(who, world.keys[who], world.places[who], round.k), weight
            )
        return SpodGTState(x, y, g)

    def advance(self, state: SpodGTState, world: Any, k: int, activity: Any) -> bool:
        """All rounds of `activity` from k on in one compiled call; False where that does not fit or pay."""
        x, y, g = state
        data = getattr(world.problem, "linear_data", lambda _: None)(x.dtype)
        few = len(world.live) < torch.get_num_threads() and x.numel() > _ALONE
        if few or data is None or world.statistics.shape[1] or not usable(x, y, g):
            return False
        batch = np.unique(world.problem.batches(np.arange(len(x))))
        if len(batch) > 1 or activity.links.push is not None:
            return False
        links, sent = world.links, activity.links.pull.sum(0)
        world.tally.gradients[world.rows[0]] += activity.computes[1:].sum(0)
        world.tally.messages[world.rows[1]] += sent
        world.tally.bytes[world.rows[1]] += sent * (2 * x.shape[1] * x.element_size())
        rounds(
            x,
            y,
            g,
            activity.computes,
            activity.links.pull,
            isinstance(self.method, SpodGTMemory),
            (self._steps(len(x)), self._weights(world), world.keys, world.places),
            k,
            world.starts,
            (links.pointers, links.senders, world.weights["a"], world.weights["b"]),
            data,
            int(batch[0]),
        )
        return True

    def _steps(self, clients: int) -> Floats:
        each = np.asarray(self.method.step_size, dtype=np.float64).reshape(-1)
        return np.ascontiguousarray(np.broadcast_to(each, (clients,)))

    def _weights(self, world: Any) -> Floats:
        """By what each client's gradient counts."""
        p: Floats = world.p.double().numpy()[:, 0]
        ones = np.ones(len(p))
        # p = 0: a client that never computes has no gradient to weigh
        return np.divide(1, p, out=ones, where=p > 0) if isinstance(self.method, SpodGTImportance) else ones


def track(problem: Any, x: Tensor, g: Tensor, y: Tensor, draw: Minibatches, weight: Floats) -> None:
    """y ← y + g⁺ - g and g ← g⁺ in the rows drawn, in one pass where the problem can."""
    into = getattr(problem, "grad_into", None)
    if into is not None and into(x, g, y, draw.rows, draw, weight):
        return
    models = x if len(draw.rows) == len(x) else x[torch.from_numpy(draw.rows)]
    renew(y, g, problem.grad(models, draw), draw.rows, weight)

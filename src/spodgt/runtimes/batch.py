"""Several runs side by side: the disjoint union of their networks, and the draws of their rounds.

Algorithm code does not change: several seeds, networks or partitions of one method run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.algorithms import stack
from spodgt.algorithms.base import Algorithm
from spodgt.kernels.links import Links
from spodgt.kernels.steps import Activity
from spodgt.participation import delay
from spodgt.participation.roles import HasRoles, Roles
from spodgt.runtimes.world import Run
from spodgt.types import ActiveLinks, Bools, Floats, Ints, Problem, Words

_CHUNK = 2**20  # draws made at once


class MixingMatrix(Enum):
    """The matrix of a mixing call; values are the keys of `RunBatch.weights`."""

    PULL = "a"  # row-stochastic
    PUSH = "b"  # column-stochastic: the sender keeps the weight that it does not send
    GOSSIP = "w"  # doubly stochastic


class RunBatch:
    """The runs of `every` that are still going, `live`, as one."""

    def __init__(
        self,
        every: Sequence[Run],
        dtype: torch.dtype,
        device: torch.device,
        runs: Ints | None = None,
    ) -> None:
        self.every, self.dtype, self.device = every, dtype, device
        self.runs: Ints = np.arange(len(every)) if runs is None else runs
        self.live = [every[run] for run in self.runs]
        self._activity: Activity | None = None

    @cached_property
    def sizes(self) -> list[int]:
        """Clients of each run."""
        return [run.network.clients for run in self.live]

    @cached_property
    def starts(self) -> Ints:
        """The first client of every run, and the end."""
        return np.cumsum([0, *self.sizes])

    @cached_property
    def algorithm(self) -> Algorithm:
        methods = [run.algorithm for run in self.live]
        return stack(methods, self.sizes, dtype=self.dtype, device=self.device)

    @cached_property
    def problem(self) -> Problem:
        first, *others = [run.problem for run in self.live]
        joined: Problem = first.join(others) if others else first
        return joined.to(self.device, self.dtype)

    @cached_property
    def links(self) -> Links:
        pairs = list(zip(self.live, self.starts, strict=False))
        return Links(
            len(self.live) if len(set(self.sizes)) == 1 else 1,
            int(self.starts[-1]),
            np.concatenate([run.network.receivers + start for run, start in pairs]),
            np.concatenate([run.network.senders + start for run, start in pairs]),
        )

    @cached_property
    def weights(self) -> dict[str, Floats]:
        """(links,) by name: a pulls, b pushes, w gossips (where links are two-way)."""
        networks = [run.network for run in self.live]
        weights = {
            "a": np.concatenate([n.a for n in networks]),
            "b": np.concatenate([n.b for n in networks]),
        }
        if all(n.w is not None for n in networks):
            weights["w"] = np.concatenate([n.w for n in networks if n.w is not None])
        return weights

    @cached_property
    def counted(self) -> tuple[Ints | slice, Ints | slice]:
        """Where the live clients and links stand in a tally of all runs."""
        if len(self.runs) == len(self.every):
            return slice(None), slice(None)
        live = np.isin(np.arange(len(self.every)), self.runs)
        clients = np.repeat(live, [run.network.clients for run in self.every])
        links = np.repeat(live, [run.network.links for run in self.every])
        return np.flatnonzero(clients), np.flatnonzero(links)

    @cached_property
    def keys(self) -> Words:
        """(clients,): the key of each client's run, for its mini-batches."""
        return np.repeat([rng.key(run.seed, "batch") for run in self.live], self.sizes)

    @cached_property
    def client_index(self) -> Ints:
        """(clients,): each client's number in its own run."""
        return np.concatenate([np.arange(size) for size in self.sizes])

    @cached_property
    def p(self) -> Tensor:
        p = np.concatenate([run.availability.p for run in self.live])
        return torch.from_numpy(p).to(self.device, self.dtype)[:, None]

    # --- who does what ---------------------------------------------------------------------------
    def activity(self, k: int) -> Activity:
        """Round k and some after it."""
        known = self._activity
        if known is None or k not in known.rounds:
            known = self._activity = self._draw(k)
        return known

    def _draw(self, k: int) -> Activity:
        width = self.links.clients + len(self.links.receivers)
        rounds = range(k, k + max(1, min(256, _CHUNK // width)))
        each = zip(self.live, self._clocks, strict=True)
        computes, links, cost = zip(
            *(_activity(run, clock, rounds) for run, clock in each), strict=True
        )
        together = all(each.push is None for each in links)
        pull = _joined([each.pull for each in links])
        found = ActiveLinks(pull, None if together else _joined([each.pushing for each in links]))
        return Activity(k, _joined(computes), found, np.stack(cost, 1), self._roles(rounds))

    @cached_property
    def _clocks(self) -> list[delay.Costs]:
        return [delay.costs(run.network, run.availability) for run in self.live]

    def _roles(self, rounds: range) -> Roles | None:
        """Of all runs side by side; they have one method, so all of them have roles or none."""
        given = [
            run.availability.roles(rounds)
            for run in self.live
            if isinstance(run.availability, HasRoles)
        ]
        return (
            Roles(*(np.concatenate(parts, 1) for parts in zip(*given, strict=True)))
            if given
            else None
        )


def _joined(parts: Sequence[Bools]) -> Bools:
    """(rounds, …) side by side; of a single run, without a copy."""
    return np.concatenate(parts, 1) if len(parts) > 1 else parts[0]


def _activity(run: Run, clock: delay.Costs, rounds: range) -> tuple[Bools, ActiveLinks, Floats]:
    """Clients (from one round before), links and delays of some rounds of one run.

    Round 0 has no links, no delay and nothing before it.
    """
    availability = run.availability
    v = availability.computes(range(max(0, rounds.start - 1), rounds.stop))
    links = availability.links(rounds)
    if rounds.start == 0:
        v = np.concatenate([np.zeros_like(v[:1]), v])
        links.pull[0] = links.pushing[0] = False
    return v, links, clock.processing(v[:-1]) + clock.transmission(links.used)

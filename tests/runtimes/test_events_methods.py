"""The methods made for virtual time, once more: event by event, message by message, in plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from spodgt import rng
from spodgt.network import Network, graphs
from spodgt.problems import Quadratic
from spodgt.runtimes.events.durations import NANO, Time
from spodgt.runtimes.events.world import EventWorld
from spodgt.types import Floats
from tests.helpers import build, make_run

STEP, TICKS, CLIENTS = 0.1, 60, 4
TIMES = [
    Time(compute=0.1),
    Time(compute={"kind": "lognormal", "median": 0.1, "sigma": 0.6}),
    Time(
        compute=[0.05, 0.1, 0.2, 0.13],
        latency={"kind": "uniform", "low": 0.0, "high": 0.4},
        tick=0.1,
    ),
]


class Events:
    """A world of clients that wake, messages on their way, and the models at every tick."""

    def __init__(self, name: str, time: Time, *, two_way: bool = False) -> None:
        if two_way:
            self.network = Network.random_geometric(CLIENTS, 0.9, seed=3)
        else:
            self.network = Network.draw(graphs.ErdosRenyi(CLIENTS, 0.6), seed=2)
        self.problem, self.time = Quadratic.random(CLIENTS, 2, seed=1), time
        self.x0 = np.random.default_rng(1).standard_normal((CLIENTS, 2))
        self.run = make_run(
            build(name, step_size=STEP), self.problem, self.network, x0=self.x0, seed=4
        )
        clock = time.draw(self.network, 4)
        self.durations, self.latencies = clock.durations(range(400)), clock.latencies(range(400))

    def grad(self, i: int, x: Floats) -> Floats:
        return np.asarray(self.problem.H[i].numpy() @ (x - self.problem.c[i].numpy()))

    def wakes(self, overlap: int | None) -> dict[int, list[tuple[int, int]]]:
        """Time → (client, its round), until the last tick; nobody is ahead by more than `overlap` rounds."""
        net, d = self.network, self.durations
        free = np.concatenate([np.zeros((1, CLIENTS), np.int64), np.cumsum(d, 0)])
        when = free.copy()
        while overlap is not None:  # earlier wakes make earlier messages, until nothing changes
            before = when.copy()
            for way in range(net.links):
                comes = before[:-1, net.senders[way]] + self.latencies[:, way]
                first = np.minimum.accumulate(comes[::-1])[::-1]  # of this message or a newer one
                held = when[overlap + 1 :, net.receivers[way]]
                held[:] = np.maximum(held, first[1 : len(held) + 1])
            for k in range(1, len(when)):
                when[k] = np.maximum(when[k], when[k - 1] + d[k - 1])
            if (when == before).all():
                break
        found: dict[int, list[tuple[int, int]]] = {}
        for k, i in zip(*np.nonzero((when > 0) & (when <= TICKS * self.time.step)), strict=True):
            found.setdefault(int(when[k, i]), []).append((int(i), int(k)))
        return found

    def play(
        self,
        send: Callable[[int], Any],
        take: Callable[[int, dict[int, list[Any]]], None],
        overlap: int | None = None,
    ) -> list[Floats]:
        """The models at every tick; `send(i)` gives what i sends, `take(i, by sender)` what has arrived."""
        net, models, ways = self.network, [self.x.copy()], range(self.network.links)
        flying: list[list[tuple[int, Any]]] = [[] for _ in ways]
        moments, done = sorted(self.wakes(overlap).items()), 0
        for tick in range(1, TICKS + 1):
            while done < len(moments) and moments[done][0] <= tick * self.time.step:
                now, awake = moments[done]
                done += 1
                for j, k in awake:
                    message = send(j)
                    for way in ways:
                        if net.senders[way] == j:
                            flying[way].append((now + int(self.latencies[k, way]), message))
                for i, _ in awake:
                    got: dict[int, list[Any]] = {}
                    for way in ways:
                        if net.receivers[way] == i:
                            here = [n for n, (at, _) in enumerate(flying[way]) if at <= now]
                            count = (
                                here[-1] + 1 if here else 0
                            )  # a newer total contains the older ones
                            got[int(net.senders[way])] = [
                                message for _, message in flying[way][:count]
                            ]
                            del flying[way][:count]
                    take(i, got)
            models.append(self.x.copy())
        return models

    def agrees(self, models: list[Floats]) -> None:
        world = EventWorld([self.run], self.time, dtype=torch.float64)
        state = world.init()
        for k in range(1, TICKS + 1):
            world.costs(k)
            state = world.advance(state, range(k, k + 1))
            np.testing.assert_allclose(state[0].numpy(), models[k], rtol=0, atol=1e-12)

    x: Floats


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", ["asy-sonata", "r-fast"])
def test_running_sums(name: str, time: Time) -> None:
    """A message is v and the total ρ of its link; what was taken of it is ρ̃, and the last v is remembered."""
    world = Events(name, time)
    A, B, world.x = world.network.A, world.network.B, world.x0.copy()
    g = np.stack([world.grad(i, world.x[i]) for i in range(CLIENTS)])
    half, v = g.copy(), world.x.copy()
    rho, taken = np.zeros((CLIENTS, CLIENTS, 2)), np.zeros((CLIENTS, CLIENTS, 2))
    known: dict[tuple[int, int], Floats] = {}

    def send(j: int) -> Any:
        for i in range(CLIENTS):
            if i != j:
                rho[i, j] += B[i, j] * half[j]
        half[j] = B[j, j] * half[j]  # now z
        v[j] = world.x[j] - STEP * half[j]
        return v[j].copy(), rho[:, j].copy()

    def take(i: int, got: dict[int, list[Any]]) -> None:
        for j, messages in got.items():
            if messages:
                known[i, j] = messages[-1][0]
                total = messages[-1][1][i]
                half[i] += total - taken[i, j]
                taken[i, j] = total
        new = v[i] + sum(A[i, j] * (known[i, j] - v[i]) for j in got if (i, j) in known)
        gradient = world.grad(i, new)
        half[i] += gradient - g[i]
        world.x[i], g[i] = new, gradient

    world.agrees(world.play(send, take))


@pytest.mark.parametrize("time", [TIMES[0], Time(TIMES[1].compute, latency=0.01), TIMES[2]])
def test_overlap(time: Time) -> None:
    world = Events("osgp", time)
    P, u, w = world.network.B, world.x0.copy(), np.ones(CLIENTS)
    world.x = world.x0.copy()

    def send(j: int) -> Any:
        u[j] -= STEP * world.grad(j, world.x[j])
        message = u[j].copy(), float(w[j])
        u[j], w[j] = P[j, j] * u[j], P[j, j] * w[j]
        return message

    def take(i: int, got: dict[int, list[Any]]) -> None:
        for j, messages in got.items():
            for value, weight in messages:
                u[i] += P[i, j] * value
                w[i] += P[i, j] * weight
        world.x[i] = u[i] / w[i]

    world.agrees(world.play(send, take, overlap=1))


@pytest.mark.parametrize("time", TIMES)
def test_pairs(time: Time) -> None:
    """A client that has its gradient asks a neighbour, waits for the answer, averages, and steps."""
    world = Events("ad-psgd", time, two_way=True)
    net = world.network
    assert net.reverse is not None
    meetings = []
    for i in range(CLIENTS):
        now, ways = 0, np.flatnonzero(net.receivers == i)
        for k in range(1, 300):
            way = int(ways[int(rng.uniform(rng.key(4, "meet"), k, i) * len(ways))])
            now += int(world.durations[k - 1, i])
            now += int(world.latencies[k, way] + world.latencies[k, net.reverse[way]])
            meetings.append((now, i, int(net.senders[way])))
    x, models = world.x0.copy(), [world.x0.copy()]
    begun, queue = x.copy(), sorted(meetings)
    for tick in range(1, TICKS + 1):
        while queue[0][0] <= tick * world.time.step:
            _, i, j = queue.pop(0)
            x[i] = x[j] = (x[i] + x[j]) / 2
            x[i] = x[i] - STEP * world.grad(i, begun[i])
            begun[i] = x[i]
        models.append(x.copy())
    world.agrees(models)


def test_times_are_long_enough_for_the_oracle() -> None:
    assert all(Events("osgp", time).durations.sum(0).min() > TICKS * time.step for time in TIMES)
    assert NANO == 10**9

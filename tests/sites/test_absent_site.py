"""A site that is killed: the others keep their mass, and all converge after its return."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spodgt.peer.membership.run_folders import audit_folders
from spodgt.peer.protocol.client_state import State
from spodgt.sites.api import join
from spodgt.sites.site import Site
from tests.sites.fleet_of_threads import Point, Quadratics, make_run, run_sites

pytestmark = pytest.mark.network

ABSENT = "p3"
SITES = 4
N = 5


class Killed(Exception):
    """Ends a site without its last block, as a crash does."""


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_down(site: Site) -> bool:
    """Whether the site is connected to the absent one no more, or has no link to it."""
    assert site._connection is not None
    stream = site._connection.transport.out.get(ABSENT)
    return stream is None or stream.traffic.state != "up"


def sent(site: Site) -> int:
    """Messages on the link to the absent site."""
    assert site._connection is not None
    link = site._connection.node.state.out.get(ABSENT)
    return 0 if link is None else link.number


def in_flight(site: Site, receiver: State) -> Tensor:
    """Mass on the link to the absent site that it does not have."""
    assert site._connection is not None
    link = site._connection.node.state.out.get(ABSENT)
    if link is None:
        return torch.zeros(N, dtype=torch.float64)
    into = receiver.into[site.name]
    total = link.total[:N].double()  # a tracker has no more columns
    return total - into.total[:N].double() if link.base == into.base else total


def limit_without(problem: Quadratics, absent: int, remainder: Tensor) -> Tensor:
    """The minimiser of the other losses + <remainder, x>."""
    others = [number for number in range(SITES) if number != absent]
    total = torch.stack([problem.q[n] for n in others]).sum(0)
    right = torch.stack([problem.q[n] @ problem.m[n] for n in others]).sum(0)
    solution: Tensor = torch.linalg.solve(total, right - remainder)
    return solution


class Meeting:
    """Sites train until all have arrived: one that stopped would leave its receivers waiting."""

    def __init__(self, count: int) -> None:
        self.missing = count

    def join(self, train: Callable[[int], None]) -> None:
        self.missing -= 1
        while self.missing > 0:
            train(1)


def test_mass_stays_with_senders_while_a_receiver_is_away(tmp_path: Path) -> None:
    """The others minimise their losses + <c - y - mass in flight to the absent one, x>."""
    problem = Quadratics(SITES)
    manifest = make_run(tmp_path / "run", Point(N), SITES)
    first = Meeting(SITES)
    second = Meeting(SITES - 1)
    absent_state: list[State] = []
    away: dict[str, Tensor] = {}
    pending: dict[str, Tensor] = {}
    added: dict[str, int] = {}
    errors: dict[str, float] = {}

    def run(number: int, name: str) -> None:
        model = Point(N)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

        def train(blocks: int) -> None:
            for _ in range(4 * blocks):
                optimizer.zero_grad()
                torch.autograd.backward(problem.loss(number, model.x))
                optimizer.step()

        def joined() -> Site:
            folder = tmp_path / "run" / name
            return join(
                folder, model, optimizer, block_steps=4, durability="process", max_silent_blocks=2
            )

        site = joined()
        if name == ABSENT:
            with suppress(Killed), site:
                train(5)
                first.join(train)
                raise Killed
            assert site._connection is not None
            # a copy: the next process of the site uses its rows
            absent_state.append(copy.deepcopy(site._connection.node.committed))
            wait_until(lambda: second.missing == 0, 60)
            site = joined()
        with site:
            if name != ABSENT:
                train(5)
                first.join(train)
                wait_until(lambda: is_down(site) and bool(absent_state))
                before = sent(site)
                train(250)
                away[name] = model.x.detach().clone()
                added[name] = sent(site) - before
                pending[name] = in_flight(site, absent_state[0])
                second.join(train)
            train(300)
            errors[name] = problem.error(model.x.detach())

    run_sites(manifest.names, run)
    state = absent_state[0]
    remainder = (state.method.g - state.method.y)[0, :N]
    remainder = remainder - torch.stack(list(pending.values())).sum(0)
    expected = limit_without(problem, manifest.names.index(ABSENT), remainder)
    distances = {name: float((x - expected).norm()) for name, x in away.items()}
    print(added, distances, errors)
    assert set(added.values()) == {0}
    assert max(distances.values()) < 1e-4
    assert max(errors.values()) < 1e-4
    assert audit_folders([tmp_path / "run" / name for name in manifest.names]).passed(1e-12)

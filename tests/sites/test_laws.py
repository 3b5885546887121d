"""Laws of sites on loopback: the minimiser of the average, whatever blocks, rates and optimizers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from spodgt.peer.membership.run_folders import audit_folders
from spodgt.peer.protocol.audit import local_error
from spodgt.sites.api import join
from spodgt.sites.site import Site
from tests.sites.fleet_of_threads import Point, Quadratics, make_run, run_sites

pytestmark = [pytest.mark.network, pytest.mark.slow]

EXACT = 1e-12
Train = Callable[[int, str], None]


class LocalAudits:
    """The largest error of the local identity y - c - z - Σρ + Σσ = 0 over all commits."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.commits = 0
        self.lock = threading.Lock()

    def watch(self, site: Site) -> None:
        assert site._connection is not None
        node = site._connection.node
        commit = node.commit

        def audited() -> set[str]:
            error = local_error(node.state)
            with self.lock:
                self.largest = max(self.largest, error)
                self.commits += 1
            return commit()

        node.commit = audited  # type: ignore[method-assign]


def sgd(model: Point, site: int) -> Optimizer:
    """Learning rates up to 30 times apart."""
    return torch.optim.SGD(model.parameters(), lr=0.2 / (1, 3, 10, 30)[site])


def momentum(model: Point, site: int) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=site % 2 == 0)


def adam(model: Point, site: int) -> Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.03)


@pytest.mark.parametrize(
    ("make_optimizer", "blocks", "tolerance", "compress"),
    [
        (sgd, 700, 1e-8, False),
        (sgd, 700, 1e-5, True),
        (momentum, 700, 1e-8, False),
        (adam, 700, 1e-6, False),
    ],
    ids=["sgd", "sgd, 8 bits", "momentum", "adam, cosine"],
)
def test_sites_reach_the_minimiser_of_the_average(
    tmp_path: Path,
    make_optimizer: Callable[[Point, int], Optimizer],
    blocks: int,
    tolerance: float,
    compress: bool,
) -> None:
    problem = Quadratics(4)
    dtype = torch.float32 if compress else torch.float64
    manifest = make_run(tmp_path / "run", Point(5, dtype), 4, p_hat=0.8, compress=compress)
    errors = {}
    audits = LocalAudits()

    def train(number: int, name: str) -> None:
        model = Point(5, dtype)
        optimizer = make_optimizer(model, number)
        scheduler = CosineAnnealingLR(optimizer, blocks, eta_min=1e-6)
        draw = random.Random(number)
        with join(
            tmp_path / "run" / name,
            model,
            optimizer,
            durability="process",
            max_silent_blocks=2,
            checkpoint_blocks=10**6,
        ) as site:
            audits.watch(site)
            for _ in range(blocks):
                for _ in range(draw.randint(1, 20)):
                    optimizer.zero_grad()
                    torch.autograd.backward(problem.loss(number, model.x.double()))
                    optimizer.step()
                site.exchange()
                if make_optimizer is adam:
                    scheduler.step()
            errors[name] = problem.error(model.x.detach())

    run_sites(manifest.names, train, seconds=240)
    print(errors, audits.largest, audits.commits)
    assert max(errors.values()) < tolerance
    assert audits.largest <= EXACT
    assert audits.commits > 4 * blocks
    assert audit_folders([tmp_path / "run" / name for name in manifest.names]).passed(EXACT)

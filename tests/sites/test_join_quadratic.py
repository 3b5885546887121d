"""Sites on loopback: exactness, conservation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spodgt.peer.membership.run_folders import audit_folders
from spodgt.sites.api import join
from tests.sites.fleet_of_threads import Point, Quadratics, make_run, run_sites

pytestmark = pytest.mark.network


def test_join_reaches_the_minimiser_of_the_average_with_sgd(tmp_path: Path) -> None:
    problem = Quadratics(2)
    manifest = make_run(tmp_path / "run", Point(5), 2)
    errors = {}

    def train(number: int, name: str) -> None:
        model = Point(5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        with join(
            tmp_path / "run" / name, model, optimizer, block_steps=4, durability="process"
        ) as site:
            for _ in range(4 * 300):
                optimizer.zero_grad()
                torch.autograd.backward(problem.loss(number, model.x))
                optimizer.step()
            errors[site.name] = problem.error(model.x.detach())

    run_sites(manifest.names, train)
    print(errors)
    assert max(errors.values()) < 1e-8
    found = audit_folders([tmp_path / "run" / name for name in manifest.names])
    assert found.passed(1e-12)

"""When blocks end, when a site waits, and what is exchanged beside parameters."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spodgt.peer.membership.run_folders import audit_folders
from spodgt.sites.api import join
from spodgt.sites.connection import Connection, _open_stores
from spodgt.sites.site import Site
from tests.sites.fleet_of_threads import Point, Quadratics, make_run, run_sites

pytestmark = pytest.mark.network


def blocks(site: Site) -> int:
    """Blocks that the exchange has finished."""
    assert site._connection is not None
    handover = site._connection.handover
    handover.wait_until(lambda: handover.block is None)
    return site._connection.node.state.k - 1


def step(model: Point, optimizer: torch.optim.Optimizer, count: int = 1) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        torch.autograd.backward(model.x.square().sum())
        optimizer.step()


def alone(folder: Path, **options: Any) -> tuple[Point, torch.optim.Optimizer, Site]:
    model = Point(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"max_silent_blocks": None, "linger_seconds": 0.1, **options}
    return model, optimizer, join(folder, model, optimizer, durability="process", **options)


def test_blocks_end_by_steps_by_seconds_or_by_a_call(tmp_path: Path) -> None:
    make_run(tmp_path / "run", Point(2), 2)
    model, optimizer, joining = alone(tmp_path / "run" / "p0", block_steps=3)
    with joining as site:
        step(model, optimizer, 7)
        assert blocks(site) == 2
        site.exchange()
        assert blocks(site) == 3
        step(model, optimizer, 2)
        assert blocks(site) == 3  # the next block has begun with the call
    model, optimizer, joining = alone(tmp_path / "run" / "p0", block_seconds=0.2)
    with joining as site:
        before = blocks(site)
        assert before == 4  # the last block of the first process, which had two steps
        assert site.steps == 9
        time.sleep(0.3)
        step(model, optimizer)
        assert blocks(site) == before + 1
    model, optimizer, joining = alone(tmp_path / "run" / "p0")
    with joining as site:
        before = blocks(site)
        step(model, optimizer, 50)
        assert blocks(site) == before  # without limits only a call ends a block


def test_site_waits_after_silent_blocks_until_a_message_arrives(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spodgt.sites.connection._PATIENCE", 0.1)
    manifest = make_run(tmp_path / "run", Point(2), 2)
    made: dict[str, Any] = {}
    has_joined = threading.Event()

    def train(number: int, name: str) -> None:
        if number == 1:
            assert has_joined.wait(60)
            time.sleep(1.0)
            assert made["p0"]._connection.node.state.k <= 4  # three blocks, and no more
        model, optimizer, joining = alone(
            tmp_path / "run" / name, block_steps=1, max_silent_blocks=3, linger_seconds=20
        )
        with joining as site:
            made[name] = site
            has_joined.set()
            step(model, optimizer, 12)

    run_sites(manifest.names, train)
    assert made["p0"].steps == 12
    assert "p0: waits: no message from p1 in 3 blocks" in capfd.readouterr().err
    assert audit_folders([tmp_path / "run" / name for name in manifest.names]).passed(1e-12)


def test_running_statistics_are_mixed_like_the_model(tmp_path: Path) -> None:
    manifest = make_run(tmp_path / "run", nn.BatchNorm1d(2), 2)
    models: dict[str, Any] = {}

    def train(number: int, name: str) -> None:
        model = nn.BatchNorm1d(2).eval()
        assert model.running_mean is not None
        assert model.num_batches_tracked is not None
        model.running_mean.fill_(float(number))
        model.num_batches_tracked.fill_(number)
        models[name] = model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with join(
            tmp_path / "run" / name,
            model,
            optimizer,
            block_steps=1,
            initial="own",
            max_silent_blocks=1,
            durability="process",
        ):
            for _ in range(20):
                torch.autograd.backward(model(torch.ones(2, 2)).sum())
                optimizer.step()

    run_sites(manifest.names, train)
    first, second = (models[name] for name in manifest.names)
    assert 0 < float(first.running_mean.mean()) < 1
    assert torch.allclose(first.running_mean, second.running_mean, atol=0.05)
    assert [int(each.num_batches_tracked) for each in (first, second)] == [0, 1]


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_data_loader_does_not_hold_the_folder_and_does_not_crash(tmp_path: Path) -> None:
    """Workers of a data loader are forked from the process in which a site exchanges messages."""
    assert os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "0"
    make_run(tmp_path / "run", Point(2), 2)
    model, optimizer, joining = alone(tmp_path / "run" / "p0", block_steps=1)
    with joining as site:
        step(model, optimizer, 2)
        assert site._connection is not None
        store = site._connection.store
        assert store in _open_stores
        descriptor = store.file._descriptor  # type: ignore[attr-defined]
        child = os.fork()
        if child == 0:
            time.sleep(0.3)
            try:
                os.fstat(descriptor)
            except OSError:
                os._exit(0)
            os._exit(1)
        step(model, optimizer, 2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert blocks(site) == 4


def test_first_model_is_that_of_the_first_client_also_after_a_restart(tmp_path: Path) -> None:
    """A site that is ended right after the initial model has arrived continues from it."""
    manifest = make_run(tmp_path / "run", Point(2), 2)
    problem = Quadratics(2, n=2)
    taken: dict[int, torch.Tensor] = {}
    has_begun = threading.Event()

    def train(number: int, name: str) -> None:
        model = Point(2)
        model.x.data.fill_(float(number + 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        options: dict[str, Any] = {"durability": "process", "max_silent_blocks": None}
        if number == 0:
            with join(tmp_path / "run" / name, model, optimizer, **options):
                torch.autograd.backward(problem.loss(number, model.x))
                optimizer.step()
                assert has_begun.wait(60)
            return
        for _ in range(2):
            with join(tmp_path / "run" / name, model, optimizer, linger_seconds=0.1, **options):
                taken[len(taken)] = model.x.detach().clone()
                torch.autograd.backward(problem.loss(number, model.x))
                optimizer.step()
            model.x.data.fill_(7.0)
        has_begun.set()

    run_sites(manifest.names, train)
    assert torch.equal(taken[0], torch.ones(2, dtype=torch.float64))
    assert torch.equal(taken[1], torch.ones(2, dtype=torch.float64))


def test_initial_model_that_arrives_before_training_begins_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange thread runs already while the site is being joined."""

    def start(connection: Connection) -> None:
        connection.exchange._take_initial_model(torch.tensor([3.0, 3.0, 0.0, 0.0]))

    make_run(tmp_path / "run", Point(2), 2)
    monkeypatch.setattr(Connection, "start", start)
    model, _, joining = alone(tmp_path / "run" / "p1")

    def script() -> None:
        with joining:
            assert model.x.tolist() == [3.0, 3.0]
            raise InterruptedError  # no thread runs here, so the normal end would wait

    with pytest.raises(InterruptedError):
        script()

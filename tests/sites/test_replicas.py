"""DistributedDataParallel inside a site: two processes train one model, rank 0 is the peer."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spodgt.peer.membership.run_folders import audit_folders
from spodgt.sites.api import join
from tests.sites.fleet_of_threads import Point, Quadratics, make_run

pytestmark = [pytest.mark.network, pytest.mark.slow]
STEPS = 1600


class Vector(Point):
    """The vector as the output of a forward pass, as DistributedDataParallel needs it."""

    def forward(self) -> Tensor:
        return self.x * 1.0


def train(folder: Path, site: int, rank: int | None, meeting: Path) -> None:
    """One process of a site; writes the distance of its model from the optimum.

    The steps are made in two `with` blocks, as by a script that was started again in between.
    """
    torch.set_num_threads(1)
    problem = Quadratics(2)
    vector = Vector(5)
    model: nn.Module = vector
    share = 1.0
    if rank is not None:
        dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
        model = DistributedDataParallel(vector)
        share = (0.5, 1.5)[rank]  # each process has a part of the data
    for steps in (STEPS // 2, STEPS):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9998)
        with join(
            folder,
            model,
            optimizer,
            scheduler=scheduler,
            block_steps=4,
            max_silent_blocks=2,
            durability="process",
        ) as joined:
            while joined.steps < steps:
                optimizer.zero_grad()
                torch.autograd.backward(share * problem.loss(site, model()))
                optimizer.step()
                scheduler.step()
    row = {
        "error": problem.error(vector.x.detach()),
        "x": vector.x.tolist(),
        "rate": scheduler.get_last_lr(),
    }
    (folder / f"rank{rank or 0}.json").write_text(json.dumps(row))
    if rank is not None:
        dist.destroy_process_group()


def test_processes_of_a_site_hold_one_model_and_reach_the_minimiser(tmp_path: Path) -> None:
    manifest = make_run(tmp_path / "run", Point(5), 2)
    folders = [tmp_path / "run" / name for name in manifest.names]
    context = multiprocessing.get_context("spawn")
    processes = []
    for site, rank in ((0, 0), (0, 1), (1, None)):
        arguments = (folders[site], site, rank, tmp_path / "meeting")
        processes.append(context.Process(target=train, args=arguments, daemon=True))
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    files = [folders[0] / "rank0.json", folders[0] / "rank1.json", folders[1] / "rank0.json"]
    rows = [json.loads(file.read_text()) for file in files]
    assert max(row["error"] for row in rows) < 1e-8
    assert rows[0]["x"] == rows[1]["x"]
    assert rows[0]["rate"] == rows[1]["rate"]
    assert audit_folders(folders).passed(1e-12)
